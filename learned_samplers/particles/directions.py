"""The directions of the particle samplers, as pure functions of tensors with any leading batch axes.

Axes: M particles, d coordinates, K targets. ``points`` are (..., M, d), ``scores`` of one target (..., M, d), of
several (..., K, M, d); a score is ∇log p = −∇U at each particle.
"""

from __future__ import annotations

import torch
from torch import Tensor

from learned_samplers.particles.kernels import KernelMatrix, coordinate_blocks
from learned_samplers.particles.target_weights import min_norm_weights

#: How the gradients of a target may be normalised; see `normalise`.
NORMALISATIONS = ("none", "particle", "coordinate")
#: How `MTSGD` may weigh its targets; see `target_weights`.
WEIGHTINGS = ("exact", "gradients", "equal")


def repulsion(points: Tensor, kernel: KernelMatrix) -> Tensor:
    """Σⱼ ∇_{xⱼ} k(xⱼ, xᵢ) of every particle i, (..., M, d)."""
    matrix = kernel.repulsion
    centre = points.mean(-2, keepdim=True)
    # The rows of a radial kernel's matrix sum to zero: with the centre taken out, far-off points keep their digits.
    return matrix.to(points.dtype) @ (points - centre) + matrix.sum(-1, keepdim=True).to(points.dtype) * centre


def smooth(scores: Tensor, kernel: KernelMatrix) -> Tensor:
    """Σⱼ k(xⱼ, xᵢ) sⱼ of every particle i, (..., M, d)."""
    return kernel.values.to(scores.dtype) @ scores


def svgd_direction(scores: Tensor, repelled: Tensor, kernel: KernelMatrix, temperature: float = 1.0) -> Tensor:
    """φ(xᵢ) = (1/M) Σⱼ [k(xⱼ, xᵢ) sⱼ + T ∇_{xⱼ} k(xⱼ, xᵢ)], (..., M, d).

    Stein variational gradient descent (Liu and Wang, NeurIPS 2016) on the tempered target exp(−U/T), multiplied by T:
    at T = 0 it is the smoothed gradient alone.

    Args:
        scores: (..., M, d).
        repelled: (..., M, d), `repulsion` of the points.
        kernel: of the points.
        temperature: T, dimensionless.
    """
    return (smooth(scores, kernel) + temperature * repelled) / scores.shape[-2]


def normalise(scores: Tensor, mode: str) -> Tensor:
    """Divide scores by their norms; zeros stay zeros.

    ``"particle"``: the norm of each target and particle, over the coordinates; ``"coordinate"``: of each target and
    coordinate, over the particles; ``"none"`` leaves the scores as they are.
    """
    if mode == "none":
        return scores
    norms = scores.norm(dim=-1 if mode == "particle" else -2, keepdim=True)
    return scores / torch.where(norms > 0, norms, 1.0)


def first_term(scores: Tensor, kernel: KernelMatrix) -> Tensor:
    """(1/M²) Σₐ_b k(xₐ, x_b)⟨sᵢ(xₐ), sⱼ(x_b)⟩ of every pair of targets, (..., K, K): U of MT-SGD's published code.

    Summed over blocks of coordinates: no smoothed copy of all scores is made.
    """
    targets = scores.shape[-3]
    gram = torch.zeros(*scores.shape[:-3], targets, targets, dtype=torch.double, device=scores.device)
    for block in coordinate_blocks(scores):
        smoothed = kernel.values.unsqueeze(-3).to(block.dtype) @ block
        gram += (block.flatten(-2) @ smoothed.flatten(-2).mT).double()
    return (gram + gram.mT) / (2 * scores.shape[-2] ** 2)


def stein_gram(scores: Tensor, repelled: Tensor, kernel: KernelMatrix, temperature: float = 1.0) -> Tensor:
    """Uᵢⱼ = ⟨φᵢ, φⱼ⟩ in the kernel's reproducing Hilbert space, (..., K, K) in double precision.

    For the RBF kernel, with Δ = θ − θ′ and the mean over all pairs of particles,

        Uᵢⱼ = mean k·( ⟨sᵢ(θ), sⱼ(θ′)⟩ + (T/σ²)⟨sᵢ(θ) − sⱼ(θ′), Δ⟩ + T²(d/σ² − ‖Δ‖²/σ⁴) ).

    Phan et al. (NeurIPS 2022) print −d/σ², with which U would be indefinite. The last term is the same in every entry
    and never changes the weights; the middle one is a1ᵀ + 1aᵀ and does.
    """
    count = scores.shape[-2]
    products = (scores.flatten(-2) @ repelled.flatten(-2)[..., None])[..., 0]
    cross = temperature * products.double() / count**2
    trace = temperature**2 * kernel.trace[..., None, None] / count**2
    return first_term(scores, kernel) + cross[..., :, None] + cross[..., None, :] + trace


def target_weights(
    scores: Tensor, repelled: Tensor, kernel: KernelMatrix, *, rule: str, temperature: float = 1.0
) -> Tensor:
    """Weights of the targets, (..., K) on the simplex.

    ``"exact"``: argmin wᵀUw with U of `stein_gram`; ``"gradients"``: with `first_term`, the published code's rule;
    ``"equal"``: 1/K, which is SVGD on the geometric mean of the targets.
    """
    if rule == "equal":
        return torch.full_like(scores[..., 0, 0], 1 / scores.shape[-3])
    if rule == "exact":
        return min_norm_weights(stein_gram(scores, repelled, kernel, temperature)).to(scores.dtype)
    return min_norm_weights(first_term(scores, kernel)).to(scores.dtype)


def weighted(scores: Tensor, weights: Tensor) -> Tensor:
    """Σₖ wₖ sₖ, (..., M, d), with weights of the targets (..., K) or of each particle (..., M, K)."""
    if weights.dim() == scores.dim() - 2:
        return (weights[..., None, :] @ scores.flatten(-2)).view_as(scores[..., 0, :, :])
    return torch.einsum("...mk,...kmd->...md", weights, scores)
