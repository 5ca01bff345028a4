"""How uncertain predictions are, and why: from noise in the targets, or from too few data to know the weights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from learned_samplers.posterior.outputs import Reading


class Uncertainty(NamedTuple):
    """The average prediction of each example, and its uncertainty split in two: total = aleatoric + epistemic.

    mean: averaged probabilities, or the mean of a regression, (N, ...); aleatoric: what is left if the weights were
    known, such as noise in the targets; epistemic: the disagreement of the samples, which more data would lessen.
    For classes the three are entropies in nats, without the axis of the classes (logits (N, 1) of ``output="binary"``
    have none); for a regression they are variances.
    """

    mean: Tensor
    total: Tensor
    aleatoric: Tensor
    epistemic: Tensor


def entropy_decomposition(parts: Iterable[Tensor], reading: Reading) -> Uncertainty:
    r"""Split the entropy of (k, N, ..., C, ...) probabilities: H(mean of p_k) = mean of H(p_k) + mutual information.

    The mutual information between target and weights is the epistemic part (BALD; Houlsby et al., arXiv:1112.5745).
    """
    total = expected = torch.zeros(())
    count, axis = 0, None
    for part in parts:
        axis = reading.axis(part.ndim - 1)
        total = total + part.double().sum(0)
        expected = expected + _entropy(part.double(), axis).sum(0)
        count += len(part)
    mean, aleatoric = total / count, expected / count
    whole = _entropy(mean, axis)
    # Rounding can leave a mutual information of zero at −1e-17.
    epistemic = (whole - aleatoric).clamp_min(0)
    dtype = part.dtype
    return Uncertainty(mean.to(dtype), whole.to(dtype), aleatoric.to(dtype), epistemic.to(dtype))


def _entropy(probabilities: Tensor, axis: int | None) -> Tensor:
    """In nats, over an axis of classes, or of each probability of two classes."""
    terms = -torch.xlogy(probabilities, probabilities)
    if axis is not None and probabilities.shape[axis] > 1:
        return terms.sum(axis)
    other = 1 - probabilities
    return terms - torch.xlogy(other, other)


def variance_decomposition(parts: Iterable[Tensor]) -> Uncertainty:
    """Split the variance of (k, N, ..., 2) moments: Var y = mean of the variances + variance of the means.

    The variance of K means is (1/K) Σ (m_k − m)²: that of the mixture of the K samples.
    """
    mean = spread = noise = torch.zeros(())
    count = 0
    for part in parts:
        means, variances = part.double().unbind(-1)
        size = len(means)
        # Two sets of numbers in one (Chan, Golub and LeVeque): no difference of large sums of squares.
        shift = means.mean(0) - mean
        spread = spread + (means - means.mean(0)).square().sum(0) + shift.square() * (count * size / (count + size))
        mean = mean + shift * (size / (count + size))
        noise = noise + variances.sum(0)
        count += size
    aleatoric, epistemic = noise / count, spread / count
    dtype = part.dtype
    return Uncertainty(*(value.to(dtype) for value in (mean, aleatoric + epistemic, aleatoric, epistemic)))


def draw_classes(probabilities: Tensor, axis: int | None, generator: torch.Generator | None) -> Tensor:
    """One class for each distribution over ``axis``; 0 or 1 for each probability where there is no such axis."""
    if axis is None or probabilities.shape[axis] == 1:
        return torch.bernoulli(probabilities, generator=generator).long()
    last = probabilities.movedim(axis, -1)
    drawn = torch.multinomial(last.reshape(-1, last.shape[-1]), 1, generator=generator)
    return drawn.view(last.shape[:-1])


def draw_targets(moments: Tensor, generator: torch.Generator | None) -> Tensor:
    """One normal draw for each mean and variance (..., 2)."""
    means, variances = moments.unbind(-1)
    noise = torch.randn(means.shape, generator=generator, dtype=means.dtype, device=means.device)
    return means + variances.sqrt() * noise


def validated(moments: Tensor) -> Tensor:
    """The moments (..., 2), checked to be finite; ValueError otherwise, for a scale ≤ 0 too."""
    if not moments.isfinite().all():
        raise ValueError("the network gave a mean or a variance that is not finite, or a scale that is not above 0")
    return moments
