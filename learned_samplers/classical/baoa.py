"""Stochastic gradient Langevin dynamics with momentum in the BAOA splitting."""

from __future__ import annotations

from typing import Any

from learned_samplers.base.momentum import MomentumSampler
from learned_samplers.base.operations import FUNCTIONAL, Operations, kick, scalar_sqrt


def baoa_rule(
    parameter: Any,
    gradient: Any,
    noise: Any,
    momentum: Any,
    *,
    lr: Any,
    num_data: Any,
    temperature: Any,
    prior_precision: Any,
    momentum_decay: Any,
    ops: Operations = FUNCTIONAL,
) -> tuple[Any, Any]:
    """Update of `BAOA` as a pure function, with any leading batch axes.

    r ← r − ε(Ng + λθ);  θ ← θ + εr/2;  r ← (1−a)r + √(T(1−(1−a)²))ξ;  θ ← θ + εr/2.
    """
    step_size = scalar_sqrt(lr / num_data)
    force = {"step_size": step_size, "num_data": num_data, "prior_precision": prior_precision}
    momentum = kick(momentum, parameter, gradient, **force, ops=ops)
    parameter = ops.add(parameter, momentum, step_size / 2)
    momentum = ops.scale(momentum, 1 - momentum_decay)
    if noise is not None:
        momentum = ops.add(momentum, noise, scalar_sqrt(temperature * momentum_decay * (2 - momentum_decay)))
    return ops.add(parameter, momentum, step_size / 2), momentum


class BAOA(MomentumSampler):
    """SGD with momentum plus noise, ordered so that large steps cause no bias on Gaussians.

    Source: Leimkuhler and Matthews, Rational construction of stochastic numerical methods for molecular sampling, 2013:
    BAOAB, here with its two half kicks joined, so that a step takes one gradient.

    The same dynamics as `SGHMC` at the same cost, in the order kick, half a drift, friction and noise, half a drift.
    With ε = √(lr/N), momentum decay a, ξ ~ N(0, I):

        r ← r − ε·∇Ũ,    ∇Ũ = N·g + λθ
        θ ← θ + (ε/2)·r
        r ← (1−a)·r + √(T·(1 − (1−a)²))·ξ
        θ ← θ + (ε/2)·r

    Invariant law: exp(−U/T) up to O(lr), and without any error on Gaussians: on a quadratic of curvature k, with
    η = lr/N, Var θ = T/k and Var r = T at every stable step, ηk < 4 whatever a. Gradient noise of variance V on ∇Ũ
    heats it as it heats `SGHMC`: Var θ = (T/k)·(1 + ηV·(2−a) / (aT·(4−ηk))). At temperature 0 it is
    ``torch.optim.SGD(lr·(1−a/2), momentum=1−a)`` with ``weight_decay = λ/N`` (r = −√(lr·N)·(1−a) × SGD's momentum
    buffer); at a = 1 it is the method of Leimkuhler and Matthews without a momentum,
    θ ← θ − (η/2)·∇Ũ + √(ηT)·(ξ + ξ_before)/2.
    """

    badge = "O(h)"
    not_sharded = ""
    side_by_side = ("stacked", "separate")
    rule = staticmethod(baoa_rule)
