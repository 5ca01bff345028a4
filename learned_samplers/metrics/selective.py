"""Selective prediction: errors among the predictions that are kept where the most doubtful are left to a person."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from scipy.stats import beta
from torch import Tensor

from learned_samplers.base import validation
from learned_samplers.metrics.arrays import as_tensor, reals

#: Shares of the calibration rows at whose doubt a threshold is tried.
TRIED = 20


class RiskCoverage(NamedTuple):
    """Share of the examples that are kept, and the share of errors among these, (N,) each, the surest first."""

    coverage: Tensor
    risk: Tensor


def risk_coverage(doubt: Any, wrong: Any) -> RiskCoverage:
    """Risk against coverage: the share of errors among the 1, 2, …, N predictions with the least doubt.

    Of equal doubts none comes first: their errors are spread evenly.

    Args:
        doubt: (N,) numbers, the larger the less sure, such as ``uncertainty(x).total`` or 1 − the largest probability.
        wrong: (N,) booleans, True for an error, ``probs.argmax(1) != labels``; or losses, numbers ≥ 0.
    """
    values, losses = _pairs(doubt, wrong)
    distinct, group = values.unique(return_inverse=True)
    sums = torch.zeros_like(distinct).index_add_(0, group, losses)
    counts = group.bincount(minlength=len(distinct))
    kept = torch.arange(1, len(values) + 1, device=values.device)
    mean_losses = (sums / counts)[group[values.argsort()]]
    return RiskCoverage(kept / len(values), mean_losses.cumsum(0) / kept)


def aurc(doubt: Any, wrong: Any) -> float:
    """Area under `risk_coverage`, the mean of the risks over all coverages: 0 is perfect, the error rate is guessing.

    Smaller errors make it smaller too, so that predictors differ by how good they are as well as by how well they doubt
    (Geifman, Uziel and El-Yaniv, ICLR 2019).

    Args:
        doubt, wrong: (N,) each, as for `risk_coverage`.
    """
    return risk_coverage(doubt, wrong).risk.mean().item()


def selective_threshold(doubt: Any, wrong: Any, risk: float, confidence: float = 0.95) -> float:
    """Doubt below which predictions are wrong in a share of ``risk`` at most, which holds with this ``confidence``.

    Keep what has ``doubt < threshold``. Over the draw of N calibration examples the probability that the kept ones of
    the test distribution are wrong more often is 1 − ``confidence`` at most, whatever network and doubt: for each of 20
    shares of the examples the threshold is tried by Clopper and Pearson's bound at (1 − ``confidence``)/20, and the
    largest that passes is returned (Bonferroni; Geifman and El-Yaniv, NeurIPS 2017, and Angelopoulos et al., Learn then
    test, 2021). The examples must be drawn as the test data are, independently, and not have been trained on.

    Args:
        doubt: (N,) numbers, the larger the less sure.
        wrong: (N,) booleans, True for an error.
        risk: wanted share of errors, in (0, 1).
        confidence: probability that it holds, in (0, 1).

    Returns:
        The threshold; inf to keep all, −inf where not even the surest share is shown to be good enough.
    """
    validation.fraction("risk", risk, open_left=True, open_right=True)
    validation.fraction("confidence", confidence, open_left=True, open_right=True)
    if as_tensor("wrong", wrong).dtype != torch.bool:
        raise TypeError(f"wrong must hold booleans, got {as_tensor('wrong', wrong).dtype}")
    values, errors = _pairs(doubt, wrong)
    ordered, level = values.sort().values, (1 - confidence) / TRIED
    for share in range(TRIED, 0, -1):
        place = math.ceil(share * len(values) / TRIED)
        threshold = ordered[place].item() if place < len(values) else math.inf
        # Those strictly below an order statistic are independent draws from the law below it.
        kept = values < threshold
        count, mistakes = int(kept.sum()), int(errors[kept].sum())
        if count and mistakes < count and beta.ppf(1 - level, mistakes + 1, count - mistakes) <= risk:
            return threshold
    return -math.inf


def _pairs(doubt: Any, wrong: Any) -> tuple[Tensor, Tensor]:
    """(N,) doubts and losses ≥ 0."""
    values = reals("doubt", doubt)
    if values.ndim != 1:
        raise ValueError(f"doubt must have shape (N,), got {tuple(values.shape)}")
    flags = as_tensor("wrong", wrong)
    losses = reals("wrong", flags.to(torch.uint8) if flags.dtype == torch.bool else flags, tuple(values.shape))
    if (losses < 0).any():
        raise ValueError(f"wrong must hold booleans or losses ≥ 0, got {losses.min().item()}")
    return values, losses.to(values.device)
