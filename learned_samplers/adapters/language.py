"""Scores of texts under a mixture of language models: log-likelihood, and uncertainty by token and by text."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from learned_samplers.base import validation

#: Labels that are no targets, as in ``torch.nn.functional.cross_entropy``.
IGNORED = -100


@dataclass(frozen=True)
class TextScores:
    """Log-likelihoods and uncertainties of N texts of T tokens, in nats; 0 where ``mask`` is False.

    Attributes:
        log_likelihood: of each token under the mixture of next-token distributions, (N, T).
        total: the entropy of that mixture, (N, T).
        aleatoric: the mean entropy of the samples' next-token distributions, the expected part, (N, T).
        samples: the log-likelihood of each text under each sample, (K, N).
        mask: whether a token counts, (N, T).
    """

    log_likelihood: Tensor
    total: Tensor
    aleatoric: Tensor
    samples: Tensor
    mask: Tensor

    @property
    def epistemic(self) -> Tensor:
        """The disagreement of the samples about each token, total − aleatoric, (N, T)."""
        return (self.total - self.aleatoric).clamp_min(0)

    @property
    def joint(self) -> Tensor:
        """The log of the average over samples of each text's probability, (N,): log (1/K) Σ_k Π_t p_k(y_t | y_<t)."""
        return self.samples.logsumexp(0) - math.log(len(self.samples))

    def by_text(self, field: str, *, normalised: bool = True) -> Tensor:
        """Return the sum over each text's tokens of a field, (N,), divided by their number if ``normalised``."""
        validation.one_of("field", field, ("log_likelihood", "total", "aleatoric", "epistemic"))
        sums, counts = getattr(self, field).sum(-1), self.mask.sum(-1)
        return sums / counts.clamp_min(1) if normalised else sums


class Mixture:
    """Averages next-token distributions (K, N, T, V) over samples, which may come in several parts."""

    def __init__(self) -> None:
        self.count = 0
        self.log_sum = self.entropies = torch.zeros(())

    def add(self, logs: Tensor) -> None:
        """Take logarithms of the distributions of some more samples."""
        log_sum, entropies = logs.logsumexp(0), -(logs.exp() * logs).nan_to_num(0).sum(-1).sum(0)
        self.log_sum = self.log_sum.logaddexp(log_sum) if self.count else log_sum
        self.entropies = self.entropies + entropies
        self.count += len(logs)

    @property
    def log_average(self) -> Tensor:
        """Logarithms of the averaged distributions, (N, T, V)."""
        return self.log_sum - math.log(self.count)

    def uncertainty(self) -> tuple[Tensor, Tensor]:
        """Return the entropy of the average, and the average entropy, (N, T)."""
        average = self.log_average
        return -(average.exp() * average).nan_to_num(0).sum(-1), self.entropies / self.count


def of_targets(logs: Tensor, targets: Tensor) -> Tensor:
    """Return the logarithms (..., N, T) of targets (N, T), 0 of those that are ignored."""
    if targets.numel() and (largest := int(targets.max())) >= logs.shape[-1]:
        raise ValueError(f"labels must be below the vocabulary's size {logs.shape[-1]}, got {largest}")
    safe = targets.clamp_min(0).expand(logs.shape[:-1]).unsqueeze(-1)
    return logs.gather(-1, safe).squeeze(-1).where(targets >= 0, 0.0)
