"""A loaded state goes with its weights and its schedule: a chain without them says so before its first step."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from learned_samplers.base.protocol import Chain
from learned_samplers.base.warning import warn


def weight_sums(params: Iterable[Tensor]) -> list[float]:
    """The sum of each parameter that is sampled, 0 for others. That of other weights differs by about their norm."""
    return [p.detach().sum(dtype=torch.float32).item() if p.requires_grad else 0.0 for p in params]


def other_weights(sampler: Chain) -> None:
    """Warn, before the first step after a state was loaded, unless the weights are those that were saved with it.

    (Not when it is loaded: the weights may be loaded after it.)
    """
    saved, sampler.saved_weights = sampler.saved_weights, None
    params = [p for group in sampler.param_groups for p in group["params"]]
    for p, before, now in zip(params, saved or (), weight_sums(params), strict=False):
        wide = torch.promote_types(p.dtype, torch.float32)
        if now != before and abs(now - before) > 0.01 * torch.linalg.vector_norm(p, dtype=wide).item():
            warn(
                f"the state of {type(sampler).__name__} was loaded, and the weights are not those that were saved with "
                "it: the chain goes on from elsewhere, with the momentum of another place. Load the model's state too "
                "(model.load_state_dict), before the first step"
            )
            return


def without_schedule(sampler: Chain) -> None:
    """Raise RuntimeError, before a step of a sampler that had a `CyclicalSchedule` when its state was saved."""
    raise RuntimeError(
        f"the lr and temperature of {type(sampler).__name__}, from a saved state, are those of one step of a "
        "CyclicalSchedule, and none is attached: make one, or set both and delete the groups' 'peak_lr' and "
        "'sampling_temperature'"
    )
