"""Gaussian priors N(μ, 1/λ) with a mean μ other than zero."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base import sharding

PriorMean = str | Sequence[Tensor] | None


def resolve(prior_mean: Any, params: list[Tensor], dtypes: list[torch.dtype]) -> list[Tensor] | None:
    """μ of each parameter as tensors of its own: None for zero, "initial" for the present weights, or given tensors.

    ``dtypes`` are those in which the parameters are updated.

    Raises:
        TypeError, ValueError: not one finite tensor of the same shape for each parameter.
    """
    if prior_mean is None:
        return None
    if isinstance(prior_mean, str):
        if prior_mean != "initial":
            raise ValueError(f"prior_mean must be None, 'initial' or tensors, got {prior_mean!r}")
        return [p.detach().clone() for p in params]
    if not isinstance(prior_mean, Sequence) or not all(isinstance(mean, Tensor) for mean in prior_mean):
        raise TypeError(f"prior_mean must be None, 'initial' or a list of tensors, got {type(prior_mean).__name__}")
    shapes, expected = [tuple(mean.shape) for mean in prior_mean], [tuple(p.shape) for p in params]
    if shapes != expected:
        raise ValueError(f"prior_mean must have the shapes {expected} of the group's parameters, got {shapes}")
    if not all(map(sharding.all_finite, prior_mean)):
        raise ValueError("prior_mean must be finite")
    return [
        sharding.placed_like(mean.detach().to(p.device, dtype, copy=True), p)
        for mean, p, dtype in zip(prior_mean, params, dtypes, strict=True)
    ]


def refuse_inherited(prior_mean: Any) -> None:
    """Raise ValueError if a further group would inherit the tensors of the first one's parameters."""
    if not isinstance(prior_mean, str | None):
        raise ValueError(
            "prior_mean holds tensors of the first group's parameters; give each further group a prior_mean of its own "
            "(None for zero)"
        )


def of_params(group: dict[str, Any], params: list[Tensor]) -> list[Tensor] | None:
    """μ of some of a group's parameters, on their device and in their dtype; None for a prior centred at zero."""
    means = group.get("prior_mean")
    if means is None:
        return None
    by_parameter = {id(p): mean for p, mean in zip(group["params"], means, strict=True)}
    return [by_parameter[id(p)].to(p) for p in params]


@torch.no_grad()
def centred(group: dict[str, Any], params: list[Tensor]) -> list[Tensor]:
    """θ − μ of each parameter (the parameters themselves for a prior centred at zero)."""
    means = of_params(group, params)
    return params if means is None else [p - mean for p, mean in zip(params, means, strict=True)]
