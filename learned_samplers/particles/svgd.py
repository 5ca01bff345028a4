"""Stein variational gradient descent, of one target and of several."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base.settings import choice, setting
from learned_samplers.particles.base import ParticleSampler, Role
from learned_samplers.particles.directions import (
    NORMALISATIONS,
    WEIGHTINGS,
    normalise,
    repulsion,
    svgd_direction,
    target_weights,
    weighted,
)
from learned_samplers.particles.gradients import validate_outputs
from learned_samplers.particles.kernels import RBF, KernelMatrix, check_kernel
from learned_samplers.particles.target_weights import check_weights, fixed_weights


class SteinSampler(ParticleSampler):
    """Base class of the samplers with a kernel between the particles; each head is moved as by `SVGD`."""

    kernel: Any = setting(
        default=None,
        check=check_kernel,
        optional=True,
        of_sampler=True,
        doc="`RBF` with the full-matrix median by default; `IMQ`, `Linear`, or any function of that form.",
    )
    kernel_on: str = choice(
        "parameters",
        "features",
        default="parameters",
        of_sampler=True,
        doc='"parameters", or "features": the closure returns (losses, features), and particle i is repelled by '
        "(∂zᵢ/∂θᵢ)ᵀ Σⱼ ∇k(zⱼ, zᵢ) with its features zᵢ, one vector-Jacobian product a particle.",
    )

    def prepare(self, params: Any, values: dict[str, Any]) -> dict[str, Any]:
        values["kernel"] = RBF() if values["kernel"] is None else values["kernel"]
        return super().prepare(params, values)

    def _kernel(self, role: Role) -> tuple[KernelMatrix, Tensor]:
        """The kernel's matrices, and Σⱼ ∇k(·ⱼ, ·ᵢ) by the parameters of each particle i, (M, d)."""
        if self.kernel_on == "parameters":
            matrix = self.kernel(role.points)
            return matrix, repulsion(role.points, matrix)
        features = validate_outputs("features", role.features, len(role.points))
        # Those that the closure computed under autocast are in half precision.
        wide = torch.promote_types(features.dtype, role.points.dtype)
        flat = features.detach().reshape(len(features), -1).to(wide)
        matrix = self.kernel(flat)
        push = repulsion(flat, matrix).view_as(features).to(features.dtype)
        pulled = torch.autograd.grad(
            features, role.params, push, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        return matrix, torch.cat([g.reshape(len(g), -1) for g in pulled], dim=1)

    def _head(self, role: Role) -> Tensor:
        matrix, repelled = self._kernel(role)
        return svgd_direction(-role.gradients[0], repelled, matrix, role.temperature)


class SVGD(SteinSampler):
    """Moves M networks that stand for the posterior: each descends its energy, and a kernel keeps them apart.

    Stein variational gradient descent (Liu and Wang, NeurIPS 2016).

    Update of particle i of M, with the score s = −∇Ũ, ∇Ũ = N·g + λθ, temperature T and kernel k:

        φ(θᵢ) = (1/M) Σⱼ [k(θⱼ, θᵢ) s(θⱼ) + T ∇_{θⱼ} k(θⱼ, θᵢ)],    θᵢ ← θᵢ + (lr/N)·φ(θᵢ)

    The particles' law approaches exp(−U/T) as M grows; for finite M it is heuristic, but for the kernel `Linear` and a
    Gaussian target, where mean and covariance are exact. With one particle it is gradient descent. Particles that
    coincide have the same direction and stay together for ever: make each network anew, and stack no copies of one. The
    first step warns of them.

    Each tensor of ``params`` has a leading axis of M particles; ``torch.func.stack_module_state`` makes such tensors of
    M networks with initial weights of their own.

    Raises:
        ValueError, TypeError: an argument is out of range or of a wrong type; see `ParticleSampler.step` for those of
            a step.
    """

    not_taken = (*SteinSampler.not_taken, "task")
    several_targets = False

    def _trunk(self, role: Role) -> Tensor:
        return self._head(role)


class MTSGD(SteinSampler):
    """Moves M networks to where several tasks are likely at once, and keeps them apart by a kernel.

    Stochastic multiple target sampling gradient descent (Phan et al., NeurIPS 2022).

    Update, with φₖ the SVGD direction of target k and U its Gram matrix in the kernel's Hilbert space
    (`directions.stein_gram`; the paper's formula has a wrong sign, which does not change w):

        w* = argmin over the simplex of wᵀUw,    φ = Σₖ wₖ φₖ,    θ ← θ + (lr/N)·φ(θ)

    The particles move to where all targets are likely. One target gives SVGD; one particle gives MGDA; a bandwidth
    without limit gives MGDA on mean gradients. With groups for the heads of the tasks this is Algorithm 2: MT-SGD on
    the shared parameters, SVGD on each head, the kernel of each on its own parameters.

    Attributes:
        weights: (K,), those of the last step, or None before it.

    Raises:
        ValueError, TypeError: as for `SVGD`.
    """

    target_weights: Any = setting(
        default="exact",
        check=partial(check_weights, choices=WEIGHTINGS),
        of_sampler=True,
        doc='"exact"; "gradients": U has the first term alone, the published code\'s rule; "equal": 1/K, the baseline '
        'to show beside it; or a sequence of K fixed weights, not negative, with sum one. "exact" needs the kernel on '
        "parameters.",
    )
    gradient_normalisation: str = choice(
        *NORMALISATIONS,
        default="none",
        of_sampler=True,
        doc='of the scores that U is made of, not of those that the particles follow: "none", "particle" (each divided '
        'by its norm over the coordinates) or "coordinate" (by its norm over the particles). The published code has '
        'target_weights="gradients" with "coordinate" in the toy and on Multi-MNIST, "particle" elsewhere, and '
        'kernel_on="features" for networks. Normalised scores and a repulsion that is not have no common unit: "exact" '
        'is meant for "none".',
    )

    def prepare(self, params: Any, values: dict[str, Any]) -> dict[str, Any]:
        weights = values["target_weights"] = check_weights("target_weights", values["target_weights"], WEIGHTINGS)
        if weights == "exact" and values["kernel_on"] == "features":
            raise ValueError(
                "target_weights='exact' needs kernel_on='parameters': with features the directions are pulled back, "
                "and U has no closed form; take 'gradients' or 'equal'"
            )
        return super().prepare(params, values)

    def _trunk(self, role: Role) -> Tensor:
        matrix, repelled = self._kernel(role)
        scores = -role.gradients
        if isinstance(self.target_weights, str):
            weights = target_weights(
                normalise(scores, self.gradient_normalisation),
                repelled,
                matrix,
                rule=self.target_weights,
                temperature=role.temperature,
            )
        else:
            weights = fixed_weights(self.target_weights, scores)
        self._new_weights = weights
        return svgd_direction(weighted(scores, weights), repelled, matrix, role.temperature)
