"""Scores of probabilistic predictions of real numbers: likelihood, CRPS, and how often intervals hold the target.

Tensors and NumPy arrays are taken; sums run in float64; scores are Python floats, means over all targets.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base import validation
from learned_samplers.metrics.arrays import reals


def gaussian_nll(mean: Any, variance: Any, targets: Any) -> float:
    """Mean negative log-density of the targets under Gaussian predictions, −log N(y; m, v), in nats.

    With an axis of K samples in front of ``mean`` and ``variance`` the prediction is the mixture of the K Gaussians,
    −log (1/K) Σ_k N(y; m_k, v_k): the posterior predictive density itself. One Gaussian with the mixture's mean and
    variance (``posterior.uncertainty``) is an approximation to it.

    Args:
        mean: (N, ...), or (K, N, ...).
        variance: the same shape, or one that broadcasts to it; greater than 0.
        targets: (N, ...).
    """
    y = reals("targets", targets)
    m, v = _moments(mean, variance, y, mixture=True)
    if m.ndim == y.ndim:
        m, v = m[None], v[None]
    return -mixture_log_density(m, v, y).mean().item()


def mixture_log_density(mean: Tensor, variance: Tensor, targets: Tensor) -> Tensor:
    """Log-density log (1/K) Σ_k N(y; m_k, v_k) of each target under an equally weighted mixture of Gaussians, in nats.

    Args:
        mean: (K, N, ...).
        variance: the same shape, or one that broadcasts to it.
        targets: (N, ...).
    """
    density = -0.5 * ((targets - mean).square() / variance + variance.log() + math.log(2 * math.pi))
    return density.logsumexp(0) - math.log(len(mean))


def gaussian_crps(mean: Any, variance: Any, targets: Any) -> float:
    r"""Distance of Gaussian predictions from the targets (CRPS), in the targets' unit; smaller is better.

    The mean continuous ranked probability score: with z = (y − m)/σ it is σ [z (2Φ(z) − 1) + 2φ(z) − 1/√π] (Gneiting
    and Raftery, JASA 2007). Shapes as in :func:`gaussian_nll`, without mixtures; :func:`crps` takes any draws.
    """
    y = reals("targets", targets)
    m, v = _moments(mean, variance, y)
    sigma = v.sqrt()
    z = (y - m) / sigma
    density = (-0.5 * z.square()).exp() / math.sqrt(2 * math.pi)
    score = sigma * (z * torch.erf(z / math.sqrt(2)) + 2 * density - 1 / math.sqrt(math.pi))
    return score.mean().item()


def crps(draws: Any, targets: Any) -> float:
    r"""Distance of draws of the prediction from the targets (CRPS), in the targets' unit; smaller is better.

    (1/S) Σ_s |x_s − y| − 1/(2S(S−1)) Σ_{s≠t} |x_s − x_t|, which is unbiased in the number of draws.

    Args:
        draws: (S, N, ...) with S ≥ 2, as from ``posterior.draws``.
        targets: (N, ...).
    """
    y = reals("targets", targets)
    x = reals("draws", draws)
    count = len(x) if x.ndim else 0
    if count < 2 or x.shape[1:] != y.shape:
        raise ValueError(f"draws must have shape (S, {', '.join(map(str, y.shape))}), S ≥ 2; got {tuple(x.shape)}")
    x = x.to(y.device)
    # Sorted, the double sum is a single one: Σ_{s,t} |x_s − x_t| = 2 Σ_i (2i − S − 1) x_(i), i from 1.
    weights = 2 * torch.arange(1, count + 1, dtype=x.dtype, device=x.device) - count - 1
    spread = 2 * (weights.view(-1, *[1] * y.ndim) * x.sort(dim=0).values).sum(0)
    return ((x - y).abs().mean(0) - spread / (2 * count * (count - 1))).mean().item()


def interval(draws: Any, level: float = 0.9) -> Tensor:
    """Central intervals of probability ``level`` from draws (S, N, ...) of each prediction: their ends, (2, N, ...)."""
    validation.fraction("level", level, open_left=True, open_right=True)
    x = reals("draws", draws)
    if x.ndim < 2:
        raise ValueError(f"draws must have shape (S, N, ...), got {tuple(x.shape)}")
    ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=x.dtype, device=x.device)
    return x.quantile(ends, dim=0)


def coverage(lower: Any, upper: Any, targets: Any) -> float:
    """Share of targets inside their interval, ends included: ``level`` if predictions are calibrated.

    Args:
        lower, upper: ends of the intervals, (N, ...) each, as from :func:`interval`.
        targets: (N, ...).
    """
    y = reals("targets", targets)
    ends = (("lower", lower), ("upper", upper))
    low, high = (reals(name, value, tuple(y.shape)).to(y.device) for name, value in ends)
    if (low > high).any():
        raise ValueError(f"lower must not exceed upper, got {low[low > high][0].item()} > {high[low > high][0].item()}")
    return ((low <= y) & (y <= high)).double().mean().item()


def _moments(mean: Any, variance: Any, targets: Tensor, *, mixture: bool = False) -> tuple[Tensor, Tensor]:
    m, v = reals("mean", mean).to(targets.device), reals("variance", variance).to(targets.device)
    if m.shape != targets.shape and not (mixture and m.shape[1:] == targets.shape):
        raise ValueError(f"mean must have the shape of targets, {tuple(targets.shape)}, got {tuple(m.shape)}")
    try:
        v = v.expand_as(m)
    except RuntimeError as error:
        raise ValueError(f"variance of shape {tuple(v.shape)} does not fit mean of shape {tuple(m.shape)}") from error
    if (v <= 0).any():
        raise ValueError(f"variance must be greater than 0, got {v[v <= 0][0].item()}")
    return m, v
