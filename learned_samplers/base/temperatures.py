"""The temperature that a chain has, estimated from its momenta and from its gradients."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base import prior_mean, sharding
from learned_samplers.base.operations import as_number


def temperatures_of(group: dict[str, Any], state: Mapping[Tensor, dict[str, Any]]) -> dict[str, float]:
    """The kinetic and the configurational temperature of a parameter group, as `Sampler.temperatures` has them."""
    moved = [p for p in group["params"] if p.requires_grad and p.grad is not None]
    size = sum(p.numel() for p in moved)
    momenta = [state[p]["momentum"] for p in moved if "momentum" in state.get(p, {})]
    held = sum(r.numel() for r in momenta)  # one that has just joined has none yet
    kinetic = sum(sharding.total(_single(r).square()) for r in momenta) / held if held else float("nan")
    num_data, prior = as_number(group["num_data"]), as_number(group["prior_precision"])
    offsets = zip(moved, prior_mean.centred(group, moved), strict=True)
    virial = sum(sharding.total(_single(x) * (num_data * _single(p.grad) + prior * _single(x))) for p, x in offsets)
    return {"kinetic": kinetic, "configurational": virial / size if size else float("nan")}


def warn_of_several(sampler: Any) -> None:
    """Warn, once, where groups of a sampler with a law have different temperatures above 0: heat flows between them."""
    groups = sampler.param_groups
    asked = {as_number(group.get("sampling_temperature", group["temperature"])) for group in groups} - {0.0}
    if len(asked) > 1 and not sampler.__dict__.get("_warned_of_temperatures") and sampler.badge != "heuristic":
        sampler._warned_of_temperatures = True
        values = ", ".join(map(format, sorted(asked)))
        warnings.warn(
            f"the parameter groups of {type(sampler).__name__} have temperatures {values}: heat flows between them, "
            "and the chain has the law of none. One temperature above 0 for all has a law; temperature 0 holds a group "
            "at its mode",
            stacklevel=5,
        )


def _single(x: Tensor) -> Tensor:
    # N·g of half precision would overflow.
    return x.to(torch.promote_types(x.dtype, torch.float32))
