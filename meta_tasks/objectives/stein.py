"""The Stein gradient estimator: ∇ log q of a distribution q of which there are only samples.

Source: Li and Turner, "Gradient estimators for implicit models", ICLR 2018.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from learned_samplers.base import validation
from learned_samplers.particles.kernels import squared_bandwidth, squared_distances

__all__ = ["stein_score"]


def stein_score(samples: Tensor, ridge: float = 0.05) -> Tensor:
    """The score ∇ log q of a distribution q at samples of it, by the Stein gradient estimator.

    With the kernel k(x, y) = exp(−‖x − y‖²/2h) between the samples and K its matrix:

        Ŝ = −(K + ηI)⁻¹ B,    Bᵢ = Σⱼ ∇_{xⱼ} k(xⱼ, xᵢ),    h = median of ‖xᵢ − xⱼ‖² over the pairs / 2

    The ridge η shrinks the estimate, and K samples span at most K − 1 directions of it: it is an estimate for the
    gradient of a divergence, not a density.

    Args:
        samples: (..., K, d) with K ≥ 2; no gradient flows through them.
        ridge: η > 0.

    Returns:
        (..., K, d), of the samples' dtype; zero where all samples are the same.

    Raises:
        ValueError: fewer than two samples, or a ridge that is not positive.
    """
    if samples.dim() < 2 or samples.shape[-2] < 2:
        raise ValueError(f"samples must be (..., K, d) with K of at least 2, got {tuple(samples.shape)}")
    validation.positive("ridge", ridge)
    count, x = samples.shape[-2], samples.detach()
    distances = squared_distances(x)
    # That rule divides the median by 2·log K.
    width = (squared_bandwidth(distances, "off_diagonal_median") * math.log(count))[..., None, None]
    some = width > 0
    values = torch.exp(-distances / (2 * torch.where(some, width, 1.0)))
    # B = −(K − diag K1)·X/h, the sum over the neighbours' pulls.
    pull = torch.where(some, (values - torch.diag_embed(values.sum(-1))) / width, 0.0)
    weights = torch.linalg.solve(values + ridge * torch.eye(count, dtype=values.dtype, device=values.device), pull)
    # The rows of K − diag K1 add up to zero, so the mean does not matter: without it single precision keeps its digits.
    return weights.to(x.dtype) @ (x - x.mean(-2, keepdim=True))
