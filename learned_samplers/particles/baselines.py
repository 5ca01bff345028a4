"""Baselines whose particles do not interact: multiple gradient descent, linear scalarisation, Pareto MTL."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from learned_samplers.particles.base import ParticleSampler, Role
from learned_samplers.particles.base_optimizer import BaseOptimizer
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

    def __init__(
        self,
        params: Any,
        lr: float,
        num_data: float = 1.0,
        *,
        prior_precision: float = 0.0,
        base_optimizer: BaseOptimizer | None = None,
        generator: torch.Generator | None = None,
    ):
        defaults = dict(lr=lr, num_data=num_data, temperature=0.0, prior_precision=prior_precision)
        super().__init__(params, defaults, base_optimizer=base_optimizer, generator=generator)

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

    Args:
        params, lr, num_data, prior_precision, base_optimizer, generator: as for `SVGD`.

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

    Args:
        target_weights: "equal", 1/K, or a sequence of K numbers, not negative, with sum one.
        params, lr, num_data, prior_precision, base_optimizer, generator: as for `SVGD`.

    Raises:
        ValueError, TypeError: as for `SVGD`.
    """

    settings = ("target_weights",)

    def __init__(self, params: Any, lr: float, num_data: float = 1.0, *, target_weights: Any = "equal", **shared: Any):
        self.target_weights = check_weights("target_weights", target_weights, ("equal",))
        super().__init__(params, lr, num_data, **shared)

    def _weigh(self, role: Role) -> Tensor:
        count = len(role.gradients)
        given = (1 / count,) * count if isinstance(self.target_weights, str) else self.target_weights
        return fixed_weights(given, role.gradients)


class ParetoMTL(IndependentSampler):
    """Pareto multi-task learning (Lin et al., NeurIPS 2019): each particle seeks its own trade-off.

    Particle m has a preference vector u_m and the constraints (u_j − u_m)·L(θ) ≤ 0 for all other j, which hold in its
    sector of the losses. Update: θ ← θ − (lr/N)·Σₖ wₖgₖ, gₖ = N·∇lossₖ + λθ, where Σ wₖgₖ is the shortest convex
    combination of the violated constraints' gradients until the particle has once been in its sector, and of those
    and the targets' gradients afterwards (`target_weights.pareto_weights`). A particle that was feasible stays in the
    second phase; that is saved in the state dict. Heads (groups with ``"task": k``) descend their own loss.

    Args:
        preferences: (M, K) non-negative numbers, one row a particle, none zero; by default unit vectors at equal
            angles, for two targets.
        params, lr, num_data, prior_precision, base_optimizer, generator: as for `SVGD`.

    Attributes:
        weights: (M, K), those of the last step, or None before it; they need not sum to one.

    Raises:
        ValueError, TypeError: as for `SVGD`, or ``preferences`` does not fit.
    """

    settings = ("preferences",)
    must_start_apart = False  # their preferences part them

    def __init__(self, params: Any, lr: float, num_data: float = 1.0, *, preferences: Any = None, **shared: Any):
        self.preferences: Tensor | None = None
        if preferences is not None:
            given = torch.as_tensor(preferences).detach().double()
            if given.dim() != 2 or not given.isfinite().all() or (given < 0).any() or not given.any(-1).all():
                raise ValueError(
                    f"preferences must be (M, K) non-negative numbers without zero rows, got {preferences}"
                )
            self.preferences = given
        super().__init__(params, lr, num_data, **shared)
        if self.preferences is not None and len(self.preferences) != self.num_particles:
            raise ValueError(
                f"preferences must have a row for each of {self.num_particles} particles, got {len(self.preferences)}"
            )
        # A plain list in the group, which torch's state dict carries as it is.
        self.param_groups[0]["feasible"] = [False] * self.num_particles

    def check_group(self, group: dict[str, Any], *, new: bool = False) -> None:
        super().check_group(group, new=new)
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
