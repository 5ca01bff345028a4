"""Habits of training loops that harm no optimizer, or little, and break the law of a sampler: each warns once."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base.sharding import local

#: Steps with one and the same total norm after which the warning is given.
PATIENCE = 10
# Clipping divides by the norm plus 1e-6, in single precision.
_SAME = 1e-5


class ClippingWatch:
    """Gradients clipped to a norm: warns where their total keeps returning to its largest value.

    Clipped gradients have the total norm that they are clipped to, again and again, and never a larger one, while the
    norm of a single tensor changes. Gradients of one tensor alone cannot be told apart from a constant gradient, and
    clipping by value leaves no such trace.
    """

    def __init__(self) -> None:
        self.largest = self.share = 0.0
        self.hits = 0
        self.warned = False

    def __call__(self, sampler: Any, evaluation: Any, rule: Callable[[], None]) -> None:
        gradients = [g for inputs in evaluation.groups for g in inputs.gradients]
        total = evaluation.groups[0].total_norm
        if len(gradients) > 1 and 0 < total < math.inf and total >= self.largest * (1 - _SAME):
            first = gradients[0] if sampler.mesh is None else local(gradients[0])
            self._compare(torch.linalg.vector_norm(first).item() / total, total)
        rule()

    def _compare(self, share: float, total: float) -> None:
        """A total norm that may be the largest one again, and the share of the first tensor in it."""
        if total > self.largest * (1 + _SAME):
            self.largest, self.share, self.hits = total, share, 1
        else:
            changed = abs(share - self.share) > 1e-3 * max(share, self.share)
            self.share, self.hits = share, self.hits + changed
        if self.hits >= PATIENCE:
            self.warned = True
            warnings.warn(
                f"the gradients had the total norm {self.largest:g} in {PATIENCE} steps and never a larger one: they "
                "seem to be clipped. Clipping makes the posterior wider without bound (see "
                "docs/how-to/torch_habits.md#gradient-clipping); in the Hugging Face Trainer write max_grad_norm=0",
                stacklevel=6,
            )


class ReseedingWatch:
    """torch's generator set back again and again: warns where a step begins to draw in a state that was there before.

    A function that calls ``torch.manual_seed`` once an epoch, for its validation or its batches, makes a chain repeat
    its noise; noise that comes back adds up, and the chain drifts far out of its law. States are kept at steps 1, 2, 4,
    8, … of those seen, of which one lies in the part that repeats. (It stands where the noise is drawn,
    `Sampler.noise_like`, and not in the list of a step: a closure of `HMC` draws within its evaluation.)
    """

    def __init__(self) -> None:
        self.kept: set[int] = set()
        self.count = 0
        self.step: int | None = None
        self.warned = False

    def drawn(self, draw: Callable[[Tensor], Tensor], like: Tensor, step: int) -> Tensor:
        """``draw(like)``; the generator's state before the first draw of each step counts."""
        if step == self.step or self.warned or (before := _state(like.device)) is None:
            return draw(like)
        self.step, state = step, hash(before)
        self.count += 1
        noise = draw(like)
        # A draw that leaves the state where it was was none: `check_sampler` gives numbers of its own.
        if state in self.kept and _state(like.device) != before:
            self.warned = True
            warnings.warn(
                "torch's random generator is in a state that it had at an earlier step: something sets it back "
                "(torch.manual_seed in a function that validates or makes batches?), and the chain's noise repeats. A "
                "chain with such noise does not sample its law. Give the sampler a generator of its own: "
                "generator=torch.Generator().manual_seed(0)",
                stacklevel=3,
            )
        elif self.count & (self.count - 1) == 0:
            self.kept.add(state)
        return noise


def _state(device: torch.device) -> bytes | None:
    """The state of the default generator of a device; None where it cannot be had for nothing."""
    if device.type == "cpu":
        return torch.default_generator.get_state().numpy().tobytes()
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        return torch.cuda.default_generators[index].get_state().numpy().tobytes()
    return None


def weight_sums(params: Iterable[Tensor]) -> list[float]:
    """The sum of each parameter that is sampled, 0 for others. That of other weights differs by about their norm."""
    return [p.detach().sum(dtype=torch.float32).item() if p.requires_grad else 0.0 for p in params]


def other_weights(sampler: Any) -> None:
    """Before the first step after a saved state was loaded: warns unless the weights are those that were saved with it.

    (Not when it is loaded: the weights may be loaded after it.)
    """
    saved, sampler.saved_weights = sampler.saved_weights, None
    params = [p for group in sampler.param_groups for p in group["params"]]
    for p, before, now in zip(params, saved or (), weight_sums(params), strict=False):
        wide = torch.promote_types(p.dtype, torch.float32)
        if now != before and abs(now - before) > 0.01 * torch.linalg.vector_norm(p, dtype=wide).item():
            warnings.warn(
                f"the state of {type(sampler).__name__} was loaded, and the weights are not those that were saved with "
                "it: the chain goes on from elsewhere, with the momentum of another place. Load the model's state too "
                "(model.load_state_dict), before the first step",
                stacklevel=4,
            )
            return
