"""Weights of several targets: the argument ``target_weights``, multiple gradient descent and Pareto MTL.

Axes: M particles, d coordinates, K targets; gradients are (..., K, M, d), losses (..., K, M), weights of each particle
(..., M, K). Multiple gradient descent is the quadratic programme min wᵀUw over the simplex (`min_norm_weights`), solved
exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from learned_samplers.base import validation


def check_weights(name: str, value: Any, choices: Iterable[str]) -> str | tuple[float, ...]:
    """Validate ``target_weights``: the name of a rule, or numbers on the simplex, returned as a tuple."""
    if isinstance(value, str):
        validation.one_of(name, value, choices)
        return value
    if not isinstance(value, Sequence | Tensor):
        raise TypeError(f"{name} must be a name or a sequence of numbers, got {value!r} of type {type(value).__name__}")
    numbers = tuple(validation.number(f"{name}[{i}]", w) for i, w in enumerate(value))
    if not numbers or min(numbers) < 0 or abs(sum(numbers) - 1) > 1e-6:
        raise ValueError(f"{name} must be non-negative numbers with sum 1, got {value}")
    return numbers


def fixed_weights(weights: tuple[float, ...], gradients: Tensor) -> Tensor:
    """The weights as a tensor (K,), for gradients (K, M, d)."""
    if len(weights) != len(gradients):
        raise ValueError(f"{len(weights)} weights were given for {len(gradients)} targets")
    return torch.tensor(weights, dtype=gradients.dtype, device=gradients.device)


def min_norm_weights(gram: Tensor) -> Tensor:
    """Weights of the shortest vector in the convex hull of vectors with Gram matrix U: argmin wᵀUw over the simplex.

    K = 2 has a closed form, w₁ = (U₂₂ − U₁₂)/(U₁₁ + U₂₂ − 2U₁₂) clamped to [0, 1]. Above, non-negative least squares on
    [A; 1ᵀ]x = [0; 1] with A = U^½, w = x/Σx, a matrix at a time. All in double precision after dividing U by its
    largest entry, so that the scale of U does not matter. Where several weights are optimal the answer is one of them;
    U = 0 gives equal weights.

    Args:
        gram: (..., K, K) symmetric, positive semi-definite.

    Returns:
        (..., K) weights, non-negative with sum one, in ``gram``'s dtype and on its device.

    Raises:
        TypeError: ``gram`` is not a real floating-point tensor.
        ValueError: ``gram`` is not square or not symmetric.
        FloatingPointError: ``gram`` is not finite.
    """
    if not isinstance(gram, Tensor) or not gram.is_floating_point():
        raise TypeError(f"gram must be a real floating-point tensor, got {getattr(gram, 'dtype', type(gram).__name__)}")
    if gram.dim() < 2 or gram.shape[-1] != gram.shape[-2] or gram.shape[-1] == 0:
        raise ValueError(f"gram must have shape (..., K, K), got {tuple(gram.shape)}")
    matrix = gram.detach().double()
    scale = matrix.abs().amax(dim=(-2, -1), keepdim=True)
    if not scale.isfinite().all():
        raise FloatingPointError("gram is not finite")
    matrix = matrix / torch.where(scale > 0, scale, 1.0)
    asymmetry = (matrix - matrix.mT).abs().max().item() if matrix.numel() else 0.0
    if asymmetry > 1e-4:
        raise ValueError(f"gram must be symmetric, its entries differ by {asymmetry:.1e} of the largest")
    matrix = (matrix + matrix.mT) / 2
    size = matrix.shape[-1]
    if size == 1:
        weights = torch.ones_like(matrix[..., 0])
    elif size == 2:
        weights = _two(matrix)
    else:
        weights = _by_nnls(matrix)
    weights = torch.where(scale[..., 0] > 0, weights, 1 / size)
    return weights.to(gram.dtype)


def _two(matrix: Tensor) -> Tensor:
    first, second, cross = matrix[..., 0, 0], matrix[..., 1, 1], matrix[..., 0, 1]
    curvature = first + second - 2 * cross
    # Without curvature the two vectors are the same one (up to rounding), and every weight is optimal.
    curved = curvature > 1e-15
    w = torch.where(curved, (second - cross) / torch.where(curved, curvature, 1.0), 0.5).clamp(0, 1)
    return torch.stack([w, 1 - w], dim=-1)


def _by_nnls(matrix: Tensor) -> Tensor:
    size = matrix.shape[-1]
    # What rounding leaves of negative eigenvalues is cut off.
    values, vectors = np.linalg.eigh(matrix.reshape(-1, size, size).cpu().numpy())
    roots = np.sqrt(np.clip(values, 0, None))[..., None] * vectors.swapaxes(-1, -2)
    weights = np.array([shortest_combination(root.T) for root in roots]).reshape(matrix.shape[:-1])
    return torch.from_numpy(weights).to(matrix.device)


def shortest_combination(vectors: np.ndarray) -> np.ndarray:
    """Weights on the simplex, (n,), of the shortest combination of n vectors (n, d) in double precision, by NNLS."""
    count, size = vectors.shape
    scale = np.abs(vectors).max()
    if scale == 0:
        return np.full(count, 1 / count)
    right = np.zeros(size + 1)
    right[size] = 1
    from scipy.optimize import nnls  # slow to import

    weights = nnls(np.vstack([vectors.T / scale, np.ones(count)]), right)[0]
    return weights / weights.sum()


def particle_grams(gradients: Tensor) -> Tensor:
    """⟨gᵢ, gⱼ⟩ of every pair of targets at each particle, (..., M, K, K) in double precision."""
    rows = gradients.transpose(-3, -2)
    return (rows @ rows.mT).double()


def mgda_weights(gradients: Tensor) -> Tensor:
    """Weights of the shortest convex combination of each particle's gradients, (..., M, K).

    Multiple gradient descent (Désidéri 2012; Sener and Koltun, NeurIPS 2018): −Σ wₖgₖ descends every target, or is zero
    where none can descend without another's ascending.
    """
    return min_norm_weights(particle_grams(gradients)).to(gradients.dtype)


def circle_preferences(count: int, device: torch.device) -> Tensor:
    """``count`` unit vectors at equal angles in the first quadrant, axes included, (count, 2); one: the diagonal."""
    first, last = (math.pi / 4, math.pi / 4) if count == 1 else (0.0, math.pi / 2)
    angles = torch.linspace(first, last, count, dtype=torch.double, device=device)
    return torch.stack([angles.cos(), angles.sin()], dim=-1).clamp_min(0)


def pareto_weights(gradients: Tensor, losses: Tensor, preferences: Tensor, feasible: Tensor) -> tuple[Tensor, Tensor]:
    """Weights of Pareto MTL, (M, K), which need not sum to one, and the particles that are in their sector, (M,).

    Lin et al. (NeurIPS 2019): particle m with preference u_m seeks a trade-off with (u_j − u_m)·L(θ) ≤ 0 for every
    other preference u_j. Until it is feasible it descends the violated constraints together (their shortest convex
    combination); afterwards the targets and the violated constraints. A constraint's gradient is Σₖ (u_j − u_m)ₖ gₖ,
    so that the direction is −Σ wₖgₖ always.

    Args:
        gradients: (K, M, d).
        losses: (K, M).
        preferences: (M, K).
        feasible: (M,) bool, which particles have been in their sector before.
    """
    count, targets = preferences.shape
    differences = (preferences[None, :, :] - preferences[:, None, :]).to(gradients.dtype)
    violated = (differences @ losses.T[:, :, None].to(gradients.dtype))[..., 0] > 0
    reached = feasible | ~violated.any(-1)
    # Of the gradients only their Gram matrix G counts: the rows of G^½ have the same lengths and angles.
    values, vectors = torch.linalg.eigh(particle_grams(gradients))
    roots = (values.clamp_min(0).sqrt()[:, :, None] * vectors.mT).mT.cpu().numpy()
    identity = np.eye(targets)
    made = differences.double().cpu().numpy()
    weights = np.zeros((count, targets))
    for m, (chosen, both) in enumerate(zip(violated.cpu().numpy(), reached.tolist(), strict=True)):
        # Rows: what the descended functions are made of, in terms of the targets.
        rows = np.concatenate([identity, made[m, chosen]]) if both else made[m, chosen]
        weights[m] = shortest_combination(rows @ roots[m]) @ rows
    return torch.from_numpy(weights).to(gradients.device, gradients.dtype), reached
