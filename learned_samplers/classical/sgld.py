"""Stochastic gradient Langevin dynamics."""

from __future__ import annotations

from typing import Any

import torch

from learned_samplers.base.operations import FUNCTIONAL, Operations, scalar_sqrt
from learned_samplers.base.sampler import Sampler


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
    """Update of `SGLD` as a pure function, with any leading batch axes.

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
    """

    badge = "O(h)"
    not_sharded = ""
    side_by_side = ("stacked", "separate")
    rule = staticmethod(sgld_rule)
