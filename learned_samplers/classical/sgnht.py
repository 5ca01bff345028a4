"""Stochastic gradient Nosé–Hoover thermostat."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from learned_samplers.base import validation
from learned_samplers.base.momentum import MomentumSampler
from learned_samplers.base.operations import FUNCTIONAL, Operations, kick, scalar_sqrt
from learned_samplers.base.settings import setting

MAX_FRICTION = 1.0  # of one step: the momentum is forgotten


def sgnht_rule(
    parameter: Any,
    gradient: Any,
    noise: Any,
    momentum: Any,
    thermostat: Any,
    *,
    lr: Any,
    num_data: Any,
    temperature: Any,
    prior_precision: Any,
    momentum_decay: Any,
    thermostat_rate: Any,
    ops: Operations = FUNCTIONAL,
) -> tuple[Any, Any, Any]:
    """Update of `SGNHT` as a pure function, with any leading batch axes.

    r ← (1−ζ)r − ε(Ng + λθ) + √(2aT)ξ;  θ ← θ + εr;  ζ ← min(1, ζ + κ((1−ζ/2)·mean r² − T)).

    The thermostat ζ has length 1 along the axes that share it and the batch's length along leading batch axes.
    """
    step_size = scalar_sqrt(lr / num_data)
    momentum = ops.add_product(momentum, momentum, thermostat, -1.0)
    force = {"step_size": step_size, "num_data": num_data, "prior_precision": prior_precision}
    momentum = kick(momentum, parameter, gradient, **force, ops=ops)
    if noise is not None:
        momentum = ops.add(momentum, noise, scalar_sqrt(2 * momentum_decay * temperature))
    parameter = ops.add(parameter, momentum, step_size)
    heat = ops.mean_square(momentum, thermostat)
    heat = ops.add_product(heat, heat, thermostat, -0.5)
    thermostat = ops.add(thermostat, heat, thermostat_rate)
    thermostat = ops.shift(thermostat, -thermostat_rate * temperature)
    return parameter, momentum, ops.at_most(thermostat, MAX_FRICTION)


class SGNHT(MomentumSampler):
    """`SGHMC` whose friction adapts, so that minibatch noise does not heat the chain.

    Source: Ding et al., Bayesian sampling using stochastic gradient thermostats, NeurIPS 2014: Nosé–Hoover; here
    one thermostat a tensor.

    Update, with ε = √(lr/N), a = ``momentum_decay``, κ = ``thermostat_rate``, ξ ~ N(0, I) and d the tensor's size:

        r ← (1−ζ)·r − ε·∇Ũ + √(2aT)·ξ,    ∇Ũ = N·g + λθ
        θ ← θ + ε·r
        ζ ← min(1, ζ + κ·((1−ζ/2)·‖r‖²/d − T))

    The friction ζ (it starts at a) rises until the momentum has the right temperature, so that gradient noise of
    unknown variance V on ∇Ũ is absorbed: it settles where (2aT + ηV)(2−ζ) = Tζ(4−2ζ−ηk), η = lr/N, near a + ηV/2T, and
    Var θ = T/k on quadratics of curvature k *whatever* V and lr. The factor 1 − ζ/2 is ours: in the semi-implicit step
    Var θ = T/k goes with Var r = T/(1 − ζ/2), and without the factor Var θ would be low by ζ/2. A tensor with several
    curvatures has the right temperature on average over its coordinates.

    A friction of 1 forgets the momentum at every step, and is the largest: it is reached near ηV = 2T(1−a). Noise
    beyond that heats the chain, which then has the temperature T(a + ηV/2T)/(1 − ηk/2), as `temperatures` shows, where
    `SGHMC` is hotter by 1/a and an unbounded friction, as that of Ding et al., explodes. A lower ``lr``, a larger
    minibatch or a higher ``temperature`` helps.
    """

    temperature: float = setting(
        default=1.0,
        check=validation.non_negative,
        check_new=validation.positive,
        doc="T > 0; a cyclical schedule may bring it to 0.",
    )
    momentum_decay: float = setting(
        default=0.1,
        check=partial(validation.fraction, open_left=True),
        doc="a in (0, 1], noise injected and first friction.",
    )
    thermostat_rate: float = setting(
        default=0.01,
        check=validation.positive,
        doc="κ > 0, change of the friction per step and unit of excess temperature. Ding et al. have κ = lr/N, very "
        "slow for large N. At equilibrium ζ fluctuates with standard deviation about √(κ/d).",
    )

    badge = "O(h)"
    not_sharded = "its thermostat follows the mean of r² over a whole tensor"
    state_names = ("momentum", "thermostat")
    rule = staticmethod(sgnht_rule)

    def initial_state(self, group: dict[str, Any], p: Tensor, name: str) -> Tensor:
        if name == "thermostat":
            return p.new_full(self.state_shape(name, p), validation.number("momentum_decay", group["momentum_decay"]))
        return super().initial_state(group, p, name)

    def is_possible_state(self, group: dict[str, Any], name: str, state: Tensor) -> bool:
        return name != "thermostat" or not bool((state > MAX_FRICTION).any())

    def state_shape(self, name: str, p: Tensor) -> tuple[int, ...]:
        return (1,) * p.dim() if name == "thermostat" else super().state_shape(name, p)
