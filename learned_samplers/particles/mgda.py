"""Multiple gradient descent and linear scalarisation: particles that do not interact."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from learned_samplers.particles.base import Part, ParticleSampler
from learned_samplers.particles.base_optimizer import BaseOptimizer
from learned_samplers.particles.directions import weighted
from learned_samplers.particles.multi_gradient import mgda_weights
from learned_samplers.particles.target_weights import check_weights, fixed_weights


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

    def _weigh(self, part: Part) -> Tensor:
        """(K,) or (M, K) weights of the shared parameters."""
        raise NotImplementedError

    def _trunk(self, part: Part) -> Tensor:
        self._new_weights = self._weigh(part)
        return -weighted(part.gradients, self._new_weights)

    def _head(self, part: Part) -> Tensor:
        return -part.gradients[0]


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

    def _weigh(self, part: Part) -> Tensor:
        return mgda_weights(part.gradients)


class LinearScalarisation(IndependentSampler):
    """Gradient descent of every particle by itself on Σₖ wₖ·Ũₖ with fixed weights; heads descend their own loss.

    Update of each particle: θ ← θ − (lr/N)·Σₖ wₖgₖ, gₖ = N·∇lossₖ + λθ: independent members of an ensemble.

    Args:
        target_weights: "equal", 1/K, or a sequence of K numbers, not negative, with sum one.
        params, lr, num_data, prior_precision, base_optimizer, generator: as for `SVGD`.

    Raises:
        ValueError, TypeError: as for `SVGD`.
    """

    _kept = (*IndependentSampler._kept, "target_weights")

    def __init__(
        self,
        params: Any,
        lr: float,
        num_data: float = 1.0,
        *,
        target_weights: Any = "equal",
        prior_precision: float = 0.0,
        base_optimizer: BaseOptimizer | None = None,
        generator: torch.Generator | None = None,
    ):
        self.target_weights = check_weights("target_weights", target_weights, ("equal",))
        super().__init__(
            params,
            lr,
            num_data,
            prior_precision=prior_precision,
            base_optimizer=base_optimizer,
            generator=generator,
        )

    def _weigh(self, part: Part) -> Tensor:
        count = len(part.gradients)
        given = (1 / count,) * count if isinstance(self.target_weights, str) else self.target_weights
        return fixed_weights(given, part.gradients)
