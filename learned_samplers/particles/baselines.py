"""Baselines whose particles do not interact: multiple gradient descent, linear scalarisation, Pareto MTL."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base.settings import setting
from learned_samplers.particles.base import ParticleSampler, Role
from learned_samplers.particles.directions import weighted
from learned_samplers.particles.target_weights import (
    check_weights,
    circle_preferences,
    fixed_weights,
    mgda_weights,
    pareto_weights,
)


class IndependentSampler(ParticleSampler):
    """Particles without kernel: each descends Σ wₖ∇Ũₖ with its own or common weights, each head its own ∇Ũₖ."""

    not_taken = (*ParticleSampler.not_taken, "temperature")

    def start(self, params: Any, defaults: dict[str, Any]) -> None:
        super().start(params, {**defaults, "temperature": 0.0})

    def _weigh(self, role: Role) -> Tensor:
        """(K,) or (M, K) weights of the shared parameters."""
        raise NotImplementedError

    def _trunk(self, role: Role) -> Tensor:
        self._new_weights = self._weigh(role)
        return -weighted(role.gradients, self._new_weights)

    def _head(self, role: Role) -> Tensor:
        return -role.gradients[0]


class MGDA(IndependentSampler):
    """Multiple gradient descent of every particle by itself (Désidéri 2012; Sener and Koltun, NeurIPS 2018).

    Update of each particle, with gₖ = ∇Ũₖ = N·∇lossₖ + λθ:

        w* = argmin over the simplex of ‖Σₖ wₖgₖ‖²,    θ ← θ − (lr/N)·Σₖ wₖgₖ

    An optimizer to a Pareto-stationary point, a baseline beside `MTSGD`: the particles differ by where they start.
    Heads (groups with ``"task": k``) descend their own loss.

    Attributes:
        weights: (M, K), those of the last step, or None before it.

    Raises:
        ValueError, TypeError: as for `SVGD`.
    """

    def _weigh(self, role: Role) -> Tensor:
        return mgda_weights(role.gradients)


class LinearScalarisation(IndependentSampler):
    """Gradient descent of every particle by itself on Σₖ wₖ·Ũₖ with fixed weights; heads descend their own loss.

    Update of each particle: θ ← θ − (lr/N)·Σₖ wₖgₖ, gₖ = N·∇lossₖ + λθ: independent members of an ensemble.

    Raises:
        ValueError, TypeError: as for `SVGD`.
    """

    target_weights: Any = setting(
        default="equal",
        check=partial(check_weights, choices=("equal",)),
        of_sampler=True,
        doc='"equal", 1/K, or a sequence of K numbers, not negative, with sum one.',
    )

    def prepare(self, params: Any, values: dict[str, Any]) -> dict[str, Any]:
        values["target_weights"] = check_weights("target_weights", values["target_weights"], ("equal",))
        return super().prepare(params, values)

    def _weigh(self, role: Role) -> Tensor:
        count = len(role.gradients)
        weights = (1 / count,) * count if isinstance(self.target_weights, str) else self.target_weights
        return fixed_weights(weights, role.gradients)


class ParetoMTL(IndependentSampler):
    """Pareto multi-task learning (Lin et al., NeurIPS 2019): each particle seeks its own trade-off.

    Particle m has a preference vector u_m and the constraints (u_j − u_m)·L(θ) ≤ 0 for all other j, which hold in its
    sector of the losses. Update: θ ← θ − (lr/N)·Σₖ wₖgₖ, gₖ = N·∇lossₖ + λθ, where Σ wₖgₖ is the shortest convex
    combination of the violated constraints' gradients until the particle has once been in its sector, and of those
    and the targets' gradients afterwards (`target_weights.pareto_weights`). A particle that was feasible stays in the
    second phase; that is saved in the state dict. Heads (groups with ``"task": k``) descend their own loss.

    Attributes:
        weights: (M, K), those of the last step, or None before it; they need not sum to one.

    Raises:
        ValueError, TypeError: as for `SVGD`, or ``preferences`` does not fit.
    """

    preferences: Any = setting(
        default=None,
        of_sampler=True,
        doc="(M, K) non-negative numbers, one row a particle, none zero; by default unit vectors at equal angles, for "
        "two targets.",
    )
    must_start_apart = False  # their preferences part them

    def prepare(self, params: Any, values: dict[str, Any]) -> dict[str, Any]:
        if values["preferences"] is not None:
            values["preferences"] = _preferences(values["preferences"])
        return super().prepare(params, values)

    def start(self, params: Any, defaults: dict[str, Any]) -> None:
        super().start(params, defaults)
        if self.preferences is not None and len(self.preferences) != self.num_particles:
            raise ValueError(
                f"preferences must have a row for each of {self.num_particles} particles, got {len(self.preferences)}"
            )
        # A plain list in the group, which torch's state dict carries as it is.
        self.param_groups[0]["feasible"] = [False] * self.num_particles

    def check_together(self, group: dict[str, Any]) -> None:
        super().check_together(group)
        real = [p for p in group.get("params", ()) if isinstance(p, Tensor) and p.is_floating_point()]
        feasible, count = group.get("feasible"), len(real[0]) if real else 0
        if feasible is not None and real and (not isinstance(feasible, list) or len(feasible) != count):
            raise ValueError(f"feasible must be a list of {count} truth values, one a particle, got {feasible!r}")

    def _weigh(self, role: Role) -> Tensor:
        targets, device = len(role.losses), role.losses.device
        if self.preferences is None and targets != 2:
            raise ValueError(f"preferences must be given for {targets} targets, there is a default for 2")
        chosen = self.preferences
        if chosen is None:
            chosen = circle_preferences(self.num_particles, device)
        if chosen.shape[1] != targets:
            raise ValueError(f"preferences have {chosen.shape[1]} columns, there are {targets} losses")
        feasible = torch.tensor(self.param_groups[0]["feasible"], device=device)
        weights, reached = pareto_weights(role.gradients, role.losses, chosen.to(device), feasible)
        self._reached = reached.tolist()
        return weights

    def _end(self) -> None:
        super()._end()
        if self.weights is not None:
            self.param_groups[0]["feasible"] = self._reached


def _preferences(values: Any) -> Tensor:
    """Preference vectors (M, K) in double precision; TypeError or ValueError if they are none."""
    try:
        rows = torch.as_tensor(values).detach().double()
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"preferences must be (M, K) numbers, got {values!r:.60}") from error
    if rows.dim() != 2 or not rows.isfinite().all() or (rows < 0).any() or not rows.any(-1).all():
        raise ValueError(f"preferences must be (M, K) non-negative numbers without zero rows, got {values}")
    return rows
