"""Equally weighted mixtures of Gaussian or Student distributions, one a sample: densities, quantiles, draws."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.stats import t as student
from torch import Tensor

#: Degrees of freedom of the Student likelihood, "student".
FREEDOM = 4.0
#: Variance of a component of scale 1.
VARIANCE = {"gaussian": 1.0, "student": FREEDOM / (FREEDOM - 2)}


def energies(likelihood: str, mean: Tensor, scale: Tensor, targets: Tensor) -> Tensor:
    """Negative log-density of the targets under components of this mean and scale, element by element."""
    z = (targets - mean) / scale
    if likelihood == "student":
        constant = math.lgamma(FREEDOM / 2) - math.lgamma((FREEDOM + 1) / 2) + 0.5 * math.log(math.pi * FREEDOM)
        return scale.log() + 0.5 * (FREEDOM + 1) * torch.log1p(z.square() / FREEDOM) + constant
    return scale.log() + 0.5 * z.square() + 0.5 * math.log(2 * math.pi)


def moments(likelihood: str, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the mixture over the first axis."""
    variance = VARIANCE[likelihood] * scale.square().mean(0) + mean.var(0, correction=0)
    return mean.mean(0), variance.sqrt()


def quantile(likelihood: str, mean: Tensor, scale: Tensor, share: float) -> Tensor:
    """Number below which ``share`` of the mixture over the first axis lies, by bisection."""
    farthest = 40.0  # a Gaussian has nothing beyond
    if likelihood == "student":
        farthest = max(farthest, -1.01 * float(student.ppf(min(share, 1 - share), FREEDOM)))
    low, high = (mean - farthest * scale).min(0).values, (mean + farthest * scale).max(0).values
    for _ in range(60):
        middle = (low + high) / 2
        less = _cumulative(likelihood, (middle - mean) / scale).mean(0) < share
        low, high = torch.where(less, middle, low), torch.where(less, high, middle)
    return (low + high) / 2


def _cumulative(likelihood: str, z: Tensor) -> Tensor:
    if likelihood == "student":  # at four degrees of freedom
        w = 1 + z.square() / 4
        return 0.5 + 0.375 * z / w.sqrt() * (1 - z.square() / (12 * w))
    return torch.special.ndtr(z)


def draws(likelihood: str, mean: np.ndarray, scale: np.ndarray, random: np.random.RandomState) -> np.ndarray:
    """Draw one number from every component."""
    noise = random.standard_t(FREEDOM, mean.shape) if likelihood == "student" else random.standard_normal(mean.shape)
    return mean + scale * noise
