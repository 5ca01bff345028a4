"""Stein variational gradient descent, of one target and of several."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from learned_samplers.base import validation
from learned_samplers.particles.base import ParticleSampler, Role
from learned_samplers.particles.base_optimizer import BaseOptimizer
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
from learned_samplers.particles.kernels import RBF, Kernel, KernelMatrix, check_kernel
from learned_samplers.particles.target_weights import check_weights, fixed_weights


class SteinSampler(ParticleSampler):
    """Base class of the samplers with a kernel between the particles; each head is moved as by `SVGD`."""

    settings: ClassVar[tuple[str, ...]] = ("kernel", "kernel_on")

    kernel: Kernel
    kernel_on: str

    #: What the kernel may be on; the first is the default.
    spaces: ClassVar[tuple[str, ...]] = ("parameters", "features")

    def __init__(
        self,
        params: Any,
        lr: float,
        num_data: float = 1.0,
        *,
        kernel: Kernel | None = None,
        kernel_on: str | None = None,
        temperature: float = 1.0,
        prior_precision: float = 0.0,
        base_optimizer: BaseOptimizer | None = None,
        generator: torch.Generator | None = None,
    ):
        self.kernel = RBF() if kernel is None else kernel
        check_kernel("kernel", self.kernel)
        self.kernel_on = self.spaces[0] if kernel_on is None else kernel_on
        validation.one_of("kernel_on", self.kernel_on, self.spaces)
        defaults = dict(lr=lr, num_data=num_data, temperature=temperature, prior_precision=prior_precision)
        super().__init__(params, defaults, base_optimizer=base_optimizer, generator=generator)

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

    Args:
        params: tensors, named tensors or groups; each tensor with a leading axis of M particles
            (``torch.func.stack_module_state`` makes them of M networks with initial weights of their own).
        lr: learning rate, dimensionless; that of ``base_optimizer`` where one is given.
        num_data: N, by which the losses are multiplied: the number of training points where they are mean losses, 1
            (the default) where they are energies.
        kernel: `RBF` with the full-matrix median by default; `IMQ`, `Linear`, or any function of that form.
        kernel_on: "parameters" (the default), or "features": the closure returns (losses, features), and particle i is
            repelled by (∂zᵢ/∂θᵢ)ᵀ Σⱼ ∇k(zⱼ, zᵢ) with its features zᵢ, one vector-Jacobian product a particle.
        temperature: T; at 0 there is no repulsion.
        prior_precision: λ of the prior N(0, I/λ).
        base_optimizer: makes the optimizer that takes −φ/N as the gradient, from a list of groups with ``lr``, such as
            ``torch.optim.Adam`` or ``functools.partial(torch.optim.SGD, momentum=0.9)``. Schedulers act on the
            sampler's lr. By default the particles move by the formula above.
        generator: kept for resumption; nothing is drawn.

    Raises:
        ValueError, TypeError: an argument is out of range or of a wrong type; see `ParticleSampler.step` for those of
            a step.
    """

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

    Args:
        params: as for `SVGD`; groups with ``"task": k`` are heads.
        target_weights: "exact"; "gradients": U has the first term alone, the published code's rule; "equal": 1/K, the
            baseline to show beside it; or a sequence of K fixed weights, not negative, with sum one.
        gradient_normalisation: of the scores that U is made of, not of those that the particles follow: "none",
            "particle" (each divided by its norm over the coordinates) or "coordinate" (by its norm over the
            particles). The published code has target_weights="gradients" with "coordinate" in the toy and on
            Multi-MNIST, "particle" elsewhere, and kernel_on="features" for networks. Normalised scores and a
            repulsion that is not have no common unit: "exact" is meant for "none".
        lr, num_data, kernel, kernel_on, temperature, prior_precision, base_optimizer, generator: as for `SVGD`; the
            weights "exact" need the kernel on parameters.

    Attributes:
        weights: (K,), those of the last step, or None before it.

    Raises:
        ValueError, TypeError: as for `SVGD`.
    """

    settings = (*SteinSampler.settings, "target_weights", "gradient_normalisation")

    def __init__(
        self,
        params: Any,
        lr: float,
        num_data: float = 1.0,
        *,
        target_weights: Any = "exact",
        kernel: Kernel | None = None,
        kernel_on: str = "parameters",
        gradient_normalisation: str = "none",
        temperature: float = 1.0,
        prior_precision: float = 0.0,
        base_optimizer: BaseOptimizer | None = None,
        generator: torch.Generator | None = None,
    ):
        validation.one_of("gradient_normalisation", gradient_normalisation, NORMALISATIONS)
        self.gradient_normalisation = gradient_normalisation
        self.target_weights = check_weights("target_weights", target_weights, WEIGHTINGS)
        if isinstance(target_weights, str) and target_weights == "exact" and kernel_on == "features":
            raise ValueError(
                "target_weights='exact' needs kernel_on='parameters': with features the directions are pulled back, "
                "and U has no closed form; take 'gradients' or 'equal'"
            )
        super().__init__(
            params,
            lr,
            num_data,
            kernel=kernel,
            kernel_on=kernel_on,
            temperature=temperature,
            prior_precision=prior_precision,
            base_optimizer=base_optimizer,
            generator=generator,
        )

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
