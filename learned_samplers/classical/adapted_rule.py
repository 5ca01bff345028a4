"""A step of `AdaptedSGHMC` with its mass, as a pure function."""

from __future__ import annotations

from typing import Any

import torch

from learned_samplers.base.operations import FUNCTIONAL, Operations
from learned_samplers.classical.baoa import baoa_rule
from learned_samplers.classical.mass import MASSES


def adapted_rule(
    parameter: Any,
    gradient: Any,
    noise: Any,
    momentum: Any,
    state: Any,
    *,
    num_data: Any,
    prior_precision: Any,
    momentum_decay: Any,
    floor: Any = 0.0,
    rate: Any = None,
    freezes: bool = False,
    mass: str = "diagonal",
    ops: Operations = FUNCTIONAL,
    **settings: Any,
) -> tuple[Any, Any, Any]:
    """One step of `AdaptedSGHMC` that is none of its warm-up, as a pure function, with any leading batch axes.

    It is `baoa_rule` in the coordinates φ = S⁻¹·θ, where the gradient is S·ĝ, ĝ = g + λθ/N, and θ moves
    by S times φ's movement: the law exp(−U/T − ‖r‖²/2T) is `BAOA`'s for any S that does not depend on θ.

    Args:
        parameter, gradient, noise, momentum: as for that rule.
        state: of the mass: S, or where it is still measured what `Mass.measure` gives. A mass of matrices must have
            been renewed (`Mass.freeze`) by the caller; and there are no batch axes, because a tensor is one matrix.
        rate: weight of this gradient in the mass; None where it is frozen.
        freezes: return S in the place of the state.
        settings: lr and temperature. A tensor as ``momentum_decay`` is a friction for each coordinate (not in the form
            for lists, which have no arithmetic).
    """
    kind, frozen = MASSES[mass], state
    if rate is not None:
        state = kind.measure(state, gradient, rate, ops)
        frozen = kind.freeze(state, ops, momentum_decay=momentum_decay, floor=floor, moment=not freezes)
    pushed = kind.apply(ops.combine(gradient, parameter, prior_precision / num_data), frozen, ops)
    still = ops.map(torch.zeros_like, parameter)
    settings |= {"num_data": num_data, "momentum_decay": momentum_decay, "prior_precision": 0.0, "ops": ops}
    moved, momentum = baoa_rule(still, pushed, noise, momentum, **settings)
    return ops.add(parameter, kind.apply(moved, frozen, ops)), momentum, frozen if freezes else state
