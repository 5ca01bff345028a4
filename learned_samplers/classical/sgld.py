"""Stochastic gradient Langevin dynamics."""

from __future__ import annotations

from typing import Any, Unpack

import torch

from learned_samplers.base.group_keys import SamplerOptions
from learned_samplers.base.operations import FUNCTIONAL, Operations, scalar_sqrt
from learned_samplers.base.prior_mean import PriorMean
from learned_samplers.base.sampler import Sampler, arguments


def sgld_rule(
    parameter: Any,
    gradient: Any,
    noise: Any,
    *,
    lr: Any,
    num_data: Any,
    temperature: Any,
    prior_precision: Any,
    ops: Operations = FUNCTIONAL,
) -> tuple[Any]:
    """One step of `SGLD` as a pure function, with any leading batch axes.

    θ ← θ − (lr/N)·(N·g + λθ) + √(2·lr·T/N)·ξ, all tensors of one shape.
    """
    decay = lr * prior_precision / num_data
    if isinstance(decay, torch.Tensor) or decay != 0:
        parameter = ops.scale(parameter, 1 - decay)
    parameter = ops.add(parameter, gradient, -lr)
    if noise is not None:
        parameter = ops.add(parameter, noise, scalar_sqrt(2 * lr * temperature / num_data))
    return (parameter,)


class SGLD(Sampler):
    """SGD plus noise, so that the weights it visits are samples of the posterior.

    Source: Welling and Teh, Bayesian learning via stochastic gradient Langevin dynamics, ICML 2011.

    Update, with g the gradient of the mean minibatch loss and ξ ~ N(0, I):

        θ ← θ − (lr/N)·∇Ũ + √(2·lr·T/N)·ξ,    ∇Ũ = N·g + λθ

    Invariant law: exp(−U/T) up to O(lr): on a quadratic of curvature k the variance is T / (k(1 − hk/2)), h = lr/N. At
    temperature 0 it is ``torch.optim.SGD(lr)``, with ``weight_decay = λ/N``.

    Args:
        params: parameters, named parameters or groups, as for any torch optimizer.
        lr: learning rate of ordinary training, dimensionless (lr = N·h for Welling and Teh's h = ε/2).
        num_data: N, the number of training points.
        temperature: T; 1 is the Bayes posterior, below 1 a cold posterior, 0 an optimizer.
        prior_precision: λ of the Gaussian prior N(0, 1/λ), in 1/θ²; a weight decay of λ/N on the mean loss.
        prior_mean: μ of the prior N(μ, 1/λ): None for zero, "initial" for the weights at construction, or one tensor
            a parameter (several groups: in the groups' own dicts). It is saved with the state.
        foreach: update in lists of tensors (default) or one at a time (False); the two agree bit for bit.
        generator: source of the noise; the default is torch's global generator.
        options: ``master_weights``, ``missing_gradient`` and ``distributed``, see `SamplerOptions`.

    Raises:
        ValueError, TypeError: an argument is out of range or of a wrong type; see `Sampler.step` for those of a step.
    """

    badge = "O(h)"
    not_sharded = ""
    side_by_side = ("stacked", "separate")
    rule = staticmethod(sgld_rule)

    def __init__(
        self,
        params: Any,
        lr: float,
        num_data: float,
        *,
        temperature: float = 1.0,
        prior_precision: float = 0.0,
        prior_mean: PriorMean = None,
        foreach: bool | None = None,
        generator: torch.Generator | None = None,
        **options: Unpack[SamplerOptions],
    ):
        super().__init__(params, arguments(locals()), generator=generator)
