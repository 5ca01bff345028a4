"""Gaussian priors N(μ, 1/λ) with a mean μ other than zero."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base import sharding
from learned_samplers.base.protocol import Chain

PriorMean = str | Sequence[Tensor] | None


def resolve(sampler: Chain, prior_mean: Any, params: list[Tensor], dtypes: list[torch.dtype]) -> list[Tensor] | None:
    """μ of each parameter as tensors of its own: None for zero, "initial" for the present weights, or given tensors.

    ``dtypes`` are those in which the parameters are updated.

    Raises:
        TypeError, ValueError: as `validate`.
    """
    if isinstance(prior_mean, str):
        if prior_mean != "initial":
            raise ValueError(f"prior_mean must be None, 'initial' or tensors, got {prior_mean!r}")
        _refuse_untaken(sampler, "prior_mean")
        return [p.detach().clone() for p in params]
    validate(sampler, "prior_mean", prior_mean, params, laid_out=False)
    if prior_mean is None:
        return None
    return [
        sharding.placed_like(mean.detach().to(p.device, dtype, copy=True), p)
        for mean, p, dtype in zip(prior_mean, params, dtypes, strict=True)
    ]


def validate(sampler: Chain, name: str, means: Any, params: list[Tensor], *, laid_out: bool = True) -> None:
    """Raise TypeError or ValueError unless it is None, or one finite real tensor of each parameter's shape.

    None alone where the sampler takes no other; ``laid_out``: over processes as the parameters are.
    """
    if means is None:
        return
    _refuse_untaken(sampler, name)
    if not isinstance(means, Sequence) or not all(isinstance(mean, Tensor) for mean in means):
        raise TypeError(f"{name} must be None or a list of tensors, got {means!r:.60} of type {type(means).__name__}")
    shapes, expected = [tuple(mean.shape) for mean in means], [tuple(p.shape) for p in params]
    if shapes != expected:
        raise ValueError(f"{name} must have the shapes {expected} of the group's parameters, got {shapes}")
    for mean, p in zip(means, params, strict=True):
        if mean.is_complex() and not p.is_complex():  # one of a complex parameter, which is frozen, is not read
            raise ValueError(f"{name} must be real, got {mean.dtype}")
        if laid_out and not sharding.same_layout(mean, p):
            raise ValueError(f"{name} is not laid out over processes as the parameters are")
        if not sharding.all_finite(mean):
            raise ValueError(f"{name} must be finite, got {mean!r:.60}")


def _refuse_untaken(sampler: Chain, name: str) -> None:
    if not sampler.takes_prior_mean:
        raise ValueError(f"{name} must be None for {type(sampler).__name__}, whose energy has the prior at zero")


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


@contextmanager
def centred_at_zero(sampler: Chain, evaluation: Any) -> Iterator[None]:
    """Within it parameters are θ − μ: coordinates in which the prior's mean is zero."""
    shifted: list[tuple[list[Tensor], list[Tensor]]] = []
    for group, inputs in zip(sampler.param_groups, evaluation.groups, strict=True):
        if means := of_params(group, inputs.params):
            torch._foreach_sub_(inputs.params, means)
            shifted.append((inputs.params, means))
    try:
        yield
    finally:
        for params, means in shifted:
            torch._foreach_add_(params, means)


@torch.no_grad()
def centred(group: dict[str, Any], params: list[Tensor]) -> list[Tensor]:
    """θ − μ of each parameter (the parameters themselves for a prior centred at zero)."""
    means = of_params(group, params)
    return params if means is None else [p - mean for p, mean in zip(params, means, strict=True)]
