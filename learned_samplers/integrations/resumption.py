"""Collectors of the callbacks: made as training begins, refused when a run is resumed without its samples."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from learned_samplers.base import validation
from learned_samplers.base.sampler import Sampler
from learned_samplers.posterior import PosteriorSamples

MISSING = ("refuse", "warn")


def begin(
    model: nn.Module,
    optimizer: Optimizer,
    options: Mapping[str, Any],
    state: Mapping[str, Any] | None,
    steps_done: int,
    missing: str,
    why: str = "its checkpoint holds no posterior samples (was it written without this callback?)",
    held: PosteriorSamples | None = None,
) -> PosteriorSamples:
    """Make a collector for a training run that begins, or goes on after ``steps_done`` steps with the ``state`` it had.

    Args:
        why: what is wrong, in a message, if a run goes on without a state.
        held: what the callback has collected before; it stops collecting.

    Raises:
        RuntimeError: samples would be lost, and ``missing`` is "refuse": the run is resumed without them, or begins
            anew while ``held`` has some in memory.
    """
    message = ""
    if steps_done and state is None:
        message = f"training goes on at step {steps_done}, but {why}: those collected so far would be lost"
    elif state is None and held is not None and len(held) and held.path is None:
        message = (
            f"training begins anew, but this callback holds {len(held)} posterior samples of a run before, which would "
            "be lost: give each run a CollectPosterior of its own, or keep them (samples = collect.posterior; "
            "samples.detach()) and set collect.posterior = None"
        )
    if message:
        if missing == "refuse":
            raise RuntimeError(f"{message}; CollectPosterior(..., missing='warn') starts an empty collection")
        warnings.warn(f"{message}; starting an empty collection", stacklevel=3)
    if held is not None:
        held.detach()  # here, so that an error before it leaves everything as it was
    posterior = PosteriorSamples(model, optimizer, **options)
    try:
        if message and len(posterior):
            raise RuntimeError(
                f"{message}, and path={str(options['path'])!r} holds {len(posterior)} of them: choose another path, or "
                "delete that folder to start an empty collection"
            )
        if state is not None:
            posterior.load_state_dict(state)
    except BaseException:
        posterior.detach()
        raise
    return posterior


def validate_missing(missing: str) -> str:
    """Return ``missing``, if it is one of `MISSING`; ValueError otherwise."""
    validation.one_of("missing", missing, MISSING)
    return missing


def warn_of_clipping(optimizer: Any, clipping: Any, remedy: str) -> None:
    """Warn if gradients are clipped before a sampler sees them: it then samples from another distribution."""
    if clipping and isinstance(optimizer, Sampler):
        warnings.warn(
            f"gradients are clipped ({clipping}), so that {type(optimizer).__name__} does not sample from the "
            f"posterior (clipping at 1 has made variances ten times too large): {remedy}",
            stacklevel=3,
        )
