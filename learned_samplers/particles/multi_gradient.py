"""Weights of several targets for each particle by itself: multiple gradient descent and Pareto MTL, pure functions.

Axes: M particles, d coordinates, K targets; gradients are (..., K, M, d), losses (..., K, M), weights (..., M, K).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from learned_samplers.particles.simplex_qp import min_norm_weights, shortest_combination


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


def circle_preferences(count: int, *, dtype: torch.dtype = torch.double, device: torch.device | None = None) -> Tensor:
    """``count`` unit vectors at equal angles in the first quadrant, axes included, (count, 2); one: the diagonal."""
    if count == 1:
        angles = torch.full((1,), math.pi / 4, dtype=torch.double)
    else:
        angles = torch.linspace(0, math.pi / 2, count, dtype=torch.double)
    vectors = torch.stack([angles.cos(), angles.sin()], dim=-1).clamp_min(0)
    return vectors.to(device=device, dtype=dtype)


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
