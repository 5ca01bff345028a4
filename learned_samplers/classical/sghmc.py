"""Stochastic gradient Hamiltonian Monte Carlo."""

from __future__ import annotations

from typing import Any, Unpack

import torch

from learned_samplers.base import validation
from learned_samplers.base.group_keys import SamplerOptions
from learned_samplers.base.operations import FUNCTIONAL, Operations, kick, scalar_sqrt
from learned_samplers.base.prior_mean import PriorMean
from learned_samplers.base.sampler import Sampler, arguments


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
    """One step of `SGHMC` as a pure function, with any leading batch axes.

    r ← (1−a)·r − ε·(N·g + λθ) + √(2aT)·ξ;  θ ← θ + ε·r, with ε = √(lr/N).
    """
    step_size = scalar_sqrt(lr / num_data)
    momentum = ops.scale(momentum, 1 - momentum_decay)
    force = {"step_size": step_size, "num_data": num_data, "prior_precision": prior_precision}
    momentum = kick(momentum, parameter, gradient, **force, ops=ops)
    if noise is not None:
        momentum = ops.add(momentum, noise, scalar_sqrt(2 * momentum_decay * temperature))
    return ops.add(parameter, momentum, step_size), momentum


class SGHMC(Sampler):
    """SGD with momentum plus noise, so that the weights it visits are samples of the posterior.

    Source: Chen, Fox and Guestrin, Stochastic gradient Hamiltonian Monte Carlo, ICML 2014; here semi-implicit.

    Update, with ε = √(lr/N), momentum decay a (friction C = a/ε), ξ ~ N(0, I):

        r ← (1−a)·r − ε·∇Ũ + √(2aT)·ξ,    ∇Ũ = N·g + λθ
        θ ← θ + ε·r

    Invariant law: exp(−U/T − ‖r‖²/2T) up to O(lr): on a quadratic of curvature k, with η = lr/N,
    Var θ = 2T(2−a) / (k(4−2a−ηk)) and Var r = 4T / (4−2a−ηk); stable while ηk < 2(2−a). The stored momentum keeps
    variance ≈ T when lr changes. At temperature 0 it is ``torch.optim.SGD(lr, momentum=1−a)`` (r = −√(lr·N) × SGD's
    momentum buffer), with ``weight_decay = λ/N``; at a = 1 it is `SGLD`.

    Args:
        params, lr, num_data, temperature, prior_precision, prior_mean, foreach, generator, options: as for `SGLD`.
        momentum_decay: a in (0, 1], dimensionless; 1 − a is SGD's momentum, and may be given as ``momentum=``.
        momentum_init: "zero", or "normal" to draw the first momentum from N(0, T).

    Raises:
        ValueError, TypeError: an argument is out of range or of a wrong type; see `Sampler.step` for those of a step.
    """

    badge = "O(h)"
    not_sharded = ""
    side_by_side = ("stacked", "separate")
    state_names = ("momentum",)
    hyperparameters = ("lr", "num_data", "temperature", "prior_precision", "momentum_decay")
    rule = staticmethod(sghmc_rule)

    def __init__(
        self,
        params: Any,
        lr: float,
        num_data: float,
        *,
        momentum_decay: float = 0.1,
        temperature: float = 1.0,
        prior_precision: float = 0.0,
        prior_mean: PriorMean = None,
        momentum_init: str = "zero",
        foreach: bool | None = None,
        generator: torch.Generator | None = None,
        **options: Unpack[SamplerOptions],
    ):
        super().__init__(params, arguments(locals()), generator=generator)

    def _validate(self, group: dict[str, Any]) -> None:
        super()._validate(group)
        validation.momentum(group)
