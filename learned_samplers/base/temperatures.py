"""Estimates of a chain's temperature, from its momenta and from its weights and gradients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base import prior, prior_mean, sharding
from learned_samplers.base.operations import as_number
from learned_samplers.base.protocol import Chain


def temperatures_of(sampler: Chain, group: dict[str, Any]) -> dict[str, float]:
    """Return the kinetic and the configurational temperature of one group, see `Sampler.temperatures`."""
    moved = [p for p in group["params"] if p.requires_grad and p.grad is not None]
    size = sum(p.numel() for p in moved)
    kinetic = _mean_square(sampler, moved)
    num_data, precision = as_number(group["num_data"]), as_number(group["prior_precision"])
    offsets = zip(moved, prior_mean.centred(group, moved), strict=True)
    slopes = [prior.pulled_by_input(sampler, group, p, _single(p.grad)) for p in moved]
    virial = sum(
        sharding.total(_single(x) * (num_data * slope + precision * _single(x)))
        for slope, (_, x) in zip(slopes, offsets, strict=True)
    )
    return {"kinetic": kinetic, "configurational": virial / size if size else float("nan")}


def kinetic_temperature(sampler: Chain, groups: Iterable[dict[str, Any]]) -> float:
    """Return the mean of r² over all momenta of some groups; nan where there are none."""
    return _mean_square(sampler, [p for group in groups for p in group["params"] if p.requires_grad])


def _mean_square(sampler: Chain, params: list[Tensor]) -> float:
    momenta = [sampler.state[p]["momentum"] for p in params if "momentum" in sampler.state.get(p, {})]
    held = sum(r.numel() for r in momenta)  # one that has just joined has none yet
    return sum(sharding.total(_single(r).square()) for r in momenta) / held if held else float("nan")


def _single(x: Tensor | None) -> Tensor:
    """In single precision at least: N·g of half precision would overflow."""
    assert x is not None
    return x.to(torch.promote_types(x.dtype, torch.float32))
