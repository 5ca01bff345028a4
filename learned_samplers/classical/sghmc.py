"""Stochastic gradient Hamiltonian Monte Carlo."""

from __future__ import annotations

from typing import Any

from learned_samplers.base.momentum import MomentumSampler
from learned_samplers.base.operations import FUNCTIONAL, Operations, kick, scalar_sqrt


def sghmc_rule(
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
    """Update of `SGHMC` as a pure function, with any leading batch axes.

    r ← (1−a)·r − ε·(N·g + λθ) + √(2aT)·ξ;  θ ← θ + ε·r, with ε = √(lr/N).
    """
    step_size = scalar_sqrt(lr / num_data)
    momentum = ops.scale(momentum, 1 - momentum_decay)
    force = {"step_size": step_size, "num_data": num_data, "prior_precision": prior_precision}
    momentum = kick(momentum, parameter, gradient, **force, ops=ops)
    if noise is not None:
        momentum = ops.add(momentum, noise, scalar_sqrt(2 * momentum_decay * temperature))
    return ops.add(parameter, momentum, step_size), momentum


class SGHMC(MomentumSampler):
    """SGD with momentum plus noise, so that the weights it visits are samples of the posterior.

    Source: Chen, Fox and Guestrin, Stochastic gradient Hamiltonian Monte Carlo, ICML 2014; here semi-implicit.

    Update, with ε = √(lr/N), momentum decay a (friction C = a/ε), ξ ~ N(0, I):

        r ← (1−a)·r − ε·∇Ũ + √(2aT)·ξ,    ∇Ũ = N·g + λθ
        θ ← θ + ε·r

    Invariant law: exp(−U/T − ‖r‖²/2T) up to O(lr): on a quadratic of curvature k, with η = lr/N,
    Var θ = 2T(2−a) / (k(4−2a−ηk)) and Var r = 4T / (4−2a−ηk); stable while ηk < 2(2−a). The stored momentum keeps
    variance ≈ T when lr changes. At temperature 0 it is ``torch.optim.SGD(lr, momentum=1−a)`` (r = −√(lr·N) × SGD's
    momentum buffer), with ``weight_decay = λ/N``; at a = 1 it is `SGLD`.
    """

    badge = "O(h)"
    not_sharded = ""
    side_by_side = ("stacked", "separate")
    rule = staticmethod(sghmc_rule)
