"""The spread of predictions over samples: what is left if the weights were known, their disagreement, and draws."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from learned_samplers.posterior.outputs import OutputFormat


class Uncertainty(NamedTuple):
    """The average prediction of each example, and its uncertainty split in two: total = aleatoric + epistemic.

    mean: averaged probabilities, or the mean of a regression, (N, ...); aleatoric: what is left if the weights were
    known, such as noise in the targets; epistemic: the disagreement of the samples, which more data would lessen.
    For classes the three are entropies in nats, without the axis of the classes (logits of "binary" and "multilabel"
    have none); for a regression they are variances.
    """

    mean: Tensor
    total: Tensor
    aleatoric: Tensor
    epistemic: Tensor


class Entropies:
    r"""Splits the entropy of probabilities (N, ..., C, ...): H(mean of p_k) = mean of H(p_k) + mutual information.

    The mutual information between target and weights is the epistemic part (BALD; Houlsby et al., arXiv:1112.5745).
    Takes the samples one by one, and holds sums of double precision of the shape of one.
    """

    def __init__(self, form: OutputFormat) -> None:
        self.form, self.count = form, 0
        self.total = self.expected = torch.zeros(())

    def add(self, part: Tensor) -> None:
        """Take the predictions (k, N, ..., C, ...) of k more samples."""
        self.axis, self.dtype = self.form.axis(part.ndim - 1), part.dtype
        for prediction in part:
            probabilities = prediction.double()
            self.total = self.total + probabilities
            self.expected = self.expected + entropy(probabilities, self.axis)
        self.count += len(part)

    @property
    def nbytes(self) -> int:
        """The memory of the sums."""
        return self.total.nbytes + self.expected.nbytes

    def result(self) -> Uncertainty:
        """The decomposition over the samples so far."""
        mean, aleatoric = self.total / self.count, self.expected / self.count
        total = entropy(mean, self.axis)
        # Rounding can leave a mutual information of zero at −1e-17.
        epistemic = (total - aleatoric).clamp_min(0)
        return Uncertainty(*(value.to(self.dtype) for value in (mean, total, aleatoric, epistemic)))


def entropy(probabilities: Tensor, axis: int | None) -> Tensor:
    """Return the entropy in nats, over an axis of classes, or of each probability of two classes."""
    terms = -torch.xlogy(probabilities, probabilities)
    if axis is not None and probabilities.shape[axis] > 1:
        return terms.sum(axis)
    complement = 1 - probabilities
    return terms - torch.xlogy(complement, complement)


class Variances:
    """Splits the variance of moments (N, ..., 2): Var y = mean of the variances + variance of the means.

    The variance of K means is (1/K) Σ (m_k − m)²: that of the mixture of the K samples. Works as `Entropies`.
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean = self.spread = self.noise = torch.zeros(())

    def add(self, part: Tensor) -> None:
        """Take the moments (k, N, ..., 2) of k more samples."""
        require_moments(part)
        self.dtype = part.dtype
        for moments in part:
            mean, variance = moments.double().unbind(-1)
            # Welford's recursion: no difference of large sums of squares.
            self.count += 1
            shift = mean - self.mean
            self.mean = self.mean + shift / self.count
            self.spread = self.spread + shift * (mean - self.mean)
            self.noise = self.noise + variance

    @property
    def nbytes(self) -> int:
        """The memory of the sums."""
        return self.mean.nbytes + self.spread.nbytes + self.noise.nbytes

    def result(self) -> Uncertainty:
        """The decomposition over the samples so far."""
        aleatoric, epistemic = self.noise / self.count, self.spread / self.count
        parts = (self.mean, aleatoric + epistemic, aleatoric, epistemic)
        return Uncertainty(*(value.to(self.dtype) for value in parts))


def require_moments(part: Tensor) -> None:
    """Raise ValueError unless moments are finite, as those of a network without a variance above 0 are not."""
    if not part.isfinite().all():
        raise ValueError(
            "the network gave a mean or a variance that is not finite, or a variance or scale that is not above 0 "
            "(for its logarithm choose noise='log_variance')"
        )


def draw_classes(probabilities: Tensor, axis: int | None, generator: torch.Generator | None) -> Tensor:
    """Return a class for each distribution over ``axis``; 0 or 1 for each probability where there is no such axis."""
    if axis is None or probabilities.shape[axis] == 1:
        return torch.bernoulli(probabilities, generator=generator).long()
    last = probabilities.movedim(axis, -1)
    drawn = torch.multinomial(last.reshape(-1, last.shape[-1]), 1, generator=generator)
    return drawn.view(last.shape[:-1])


def draw_targets(moments: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return a normal draw for each mean and variance (..., 2)."""
    means, variances = moments.unbind(-1)
    noise = torch.randn(means.shape, generator=generator, dtype=means.dtype, device=means.device)
    return means + variances.sqrt() * noise
