"""Stochastic gradient lattice random walk."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base import prior_mean as prior_means
from learned_samplers.base import validation
from learned_samplers.base.operations import FUNCTIONAL, Operations, as_number, kick, scalar_sqrt
from learned_samplers.base.sampler import Sampler
from learned_samplers.base.settings import setting


def lattice_drift(
    parameter: Any,
    gradient: Any,
    *,
    lr: Any,
    num_data: Any,
    temperature: Any,
    prior_precision: Any,
    ops: Operations = FUNCTIONAL,
) -> Any:
    """m = −√(lr/(2NT))·(N·g + λθ), the mean of a step in units of its length δ; a new tensor, not yet clipped."""
    rate = scalar_sqrt(lr / (2 * num_data * temperature))  # (lr/N)/δ, which is no division by zero at lr 0
    force = {"step_size": rate, "num_data": num_data, "prior_precision": prior_precision}
    return kick(ops.map(torch.zeros_like, gradient), parameter, gradient, **force, ops=ops)


def _direction(drift: Tensor, noise: Tensor) -> Tensor:
    """±1, + with probability ½(1 + clip(m, −1, 1)): erf(ξ/√2) is uniform on (−1, 1) for a standard normal ξ."""
    uniform = torch.erf(noise * math.sqrt(0.5))
    return torch.copysign(torch.ones_like(drift), drift.clamp(-1, 1) - uniform)


def sglrw_rule(
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
    """Update of `SGLRW` as a pure function, with any leading batch axes.

    θ ← θ ± δ, δ = √(2·lr·T/N), P(+) = ½(1 + clip(−(lr/N)(N·g + λθ)/δ, −1, 1)), each coordinate by itself.
    """
    target = {"num_data": num_data, "temperature": temperature, "prior_precision": prior_precision}
    drift = lattice_drift(parameter, gradient, lr=lr, **target, ops=ops)
    return (ops.add(parameter, ops.map(_direction, drift, noise), scalar_sqrt(2 * lr * temperature / num_data)),)


class SGLRW(Sampler):
    """Langevin dynamics whose every step has the same length: each weight moves up or down by δ, whatever its gradient.

    Source: Mensch et al., Robust stochastic gradient posterior sampling with lattice based discretisation, 2026 (arXiv
    2602.15925): stochastic gradient lattice random walk.

    With g the gradient of the mean minibatch loss, coordinate by coordinate,

        δ = √(2·lr·T/N);    θ ← θ ± δ,    P(+) = ½·(1 + clip(−(lr/N)·∇Ũ/δ, −1, 1)),    ∇Ũ = N·g + λθ

    The mean of a step is SGLD's drift −(lr/N)·∇Ũ and its mean square is 2·lr·T/N *whatever the gradient's noise*. So on
    a quadratic Var θ = T/k exactly, at any lr and with any minibatch noise, as long as nothing is clipped; SGLD's
    variance is (T + hV/2)/(k(1 − hk/2)), h = lr/N, V the noise's variance. What is left of the noise is between
    coordinates: minibatches that push two weights together correlate their steps by O(lr). Clipping makes the drift too
    weak where |∇Ũ| > √(2NT/lr) and the variance too large: `clipped_share` says how often.

    Invariant law: exp(−U/T) up to O(lr), in distribution: θ lives on a lattice of spacing 2δ around its start, so lr
    must be small against the posterior's width. Weights in half precision round the steps away.
    """

    temperature: float = setting(
        default=1.0,
        check=validation.positive,
        doc="T > 0. At 0 the step length is 0 and no walk is left; use `SGLD` to optimise.",
    )

    badge = "O(h)"
    not_sharded = ""
    side_by_side = ("stacked", "separate")
    not_differentiable = "its step is ±δ, whatever the gradient, so that nothing flows to what the gradient comes from"
    rule = staticmethod(sglrw_rule)

    @torch.no_grad()
    def clipped_share(self) -> list[float]:
        """Share of each group's coordinates whose next step is clipped; a few per cent already bias the variance.

        Call it between ``backward`` and ``step``, while the gradients belong to the parameters.

        Returns:
            One number in [0, 1] a parameter group; nan where there is no gradient.
        """
        shares = []
        for group in self.param_groups:
            hyper = {name: as_number(group[name]) for name in self.hyperparameters}
            moved = [p for p in group["params"] if p.requires_grad and p.grad is not None]
            centred = zip(prior_means.centred(group, moved), moved, strict=True)
            clipped = sum(int((lattice_drift(c, p.grad, **hyper).abs() > 1).sum().item()) for c, p in centred)
            size = sum(p.numel() for p in moved)
            shares.append(clipped / size if size else float("nan"))
        return shares
