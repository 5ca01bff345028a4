"""Pareto multi-task learning."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from learned_samplers.particles.base import Part
from learned_samplers.particles.base_optimizer import BaseOptimizer
from learned_samplers.particles.mgda import IndependentSampler
from learned_samplers.particles.multi_gradient import circle_preferences, pareto_weights


class ParetoMTL(IndependentSampler):
    """Pareto multi-task learning (Lin et al., NeurIPS 2019): each particle seeks its own trade-off.

    Particle m has a preference vector u_m and the constraints (u_j − u_m)·L(θ) ≤ 0 for all other j, which hold in its
    sector of the losses. Update: θ ← θ − (lr/N)·Σₖ wₖgₖ, gₖ = N·∇lossₖ + λθ, where Σ wₖgₖ is the shortest convex
    combination of the violated constraints' gradients until the particle has once been in its sector, and of those
    and the targets' gradients afterwards (`multi_gradient.pareto_weights`). A particle that was feasible stays in the
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

    _kept = (*IndependentSampler._kept, "preferences")

    def __init__(
        self,
        params: Any,
        lr: float,
        num_data: float = 1.0,
        *,
        preferences: Any = None,
        prior_precision: float = 0.0,
        base_optimizer: BaseOptimizer | None = None,
        generator: torch.Generator | None = None,
    ):
        self.preferences: Tensor | None = None
        if preferences is not None:
            given = torch.as_tensor(preferences).detach().double()
            bad = given.dim() != 2 or not given.isfinite().all() or (given < 0).any() or not given.any(-1).all()
            if bad:
                raise ValueError(
                    f"preferences must be (M, K) non-negative numbers without zero rows, got {preferences}"
                )
            self.preferences = given
        super().__init__(
            params,
            lr,
            num_data,
            prior_precision=prior_precision,
            base_optimizer=base_optimizer,
            generator=generator,
        )
        if self.preferences is not None and len(self.preferences) != self.num_particles:
            raise ValueError(
                f"preferences must have a row for each of {self.num_particles} particles, got {len(self.preferences)}"
            )
        # A plain list in the group, which torch's state dict carries as it is.
        self.param_groups[0]["feasible"] = [False] * self.num_particles

    def _validate(self, group: dict[str, Any]) -> None:
        super()._validate(group)
        feasible, count = group.get("feasible"), len(group["params"][0]) if "params" in group else 0
        if feasible is not None and (not isinstance(feasible, list) or len(feasible) != count):
            raise ValueError(f"feasible must be a list of {count} truth values, one a particle, got {feasible!r}")

    def _weigh(self, part: Part) -> Tensor:
        targets, device = len(part.losses), part.losses.device
        if self.preferences is None and targets != 2:
            raise ValueError(f"preferences must be given for {targets} targets, there is a default for 2")
        chosen = circle_preferences(self.num_particles) if self.preferences is None else self.preferences
        if chosen.shape[1] != targets:
            raise ValueError(f"preferences have {chosen.shape[1]} columns, there are {targets} losses")
        feasible = torch.tensor(self.param_groups[0]["feasible"], device=device)
        weights, reached = pareto_weights(part.gradients, part.losses, chosen.to(device), feasible)
        self._reached = reached.tolist()
        return weights

    def _end(self, parts: list[Part]) -> None:
        super()._end(parts)
        if self.weights is not None:
            self.param_groups[0]["feasible"] = self._reached
