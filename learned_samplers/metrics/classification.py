"""Scores of predicted probabilities.

Throughout, ``probs`` is (N, C): N examples, C classes, rows summing to one (to 1e-3, and 8e-3 in bfloat16); ``labels``
is (N,), integers in [0, C). Of two classes (N,) or (N, 1) will do, the probabilities of class 1, as ``output="binary"``
predicts them. Tensors and NumPy arrays are taken; sums run in float64, but for `ece` and the AUROCs; scores are Python
floats. Every function raises TypeError or ValueError naming the argument that is not as said here.

A probability of exactly zero (float32 underflows below 1e-45) would make a logarithm infinite. Under a logarithm
probabilities are therefore floored at 1.2e-38, the smallest normal float32: an example whose label was given
probability zero costs 87.3 nats.

`ece` and `ood_auroc` are torchmetrics' own, and need ``pip install '.[metrics]'``.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from learned_samplers.base import validation
from learned_samplers.base.optional import require
from learned_samplers.metrics.arrays import FLOOR, class_labels, probabilities, two_predictions


def accuracy(probs: Any, labels: Any) -> float:
    """Share of examples whose most probable class is the label, in [0, 1]."""
    p = probabilities("probs", probs)
    return (p.argmax(1) == class_labels(labels, p)).double().mean().item()


def nll(probs: Any, labels: Any) -> float:
    """Mean negative log-likelihood −(1/N) Σ_n log p_n(y_n), in nats; p is floored as the module says."""
    p = probabilities("probs", probs)
    chosen = p.gather(1, class_labels(labels, p).unsqueeze(1))
    return -chosen.clamp_min(FLOOR).log().mean().item()


def brier(probs: Any, labels: Any) -> float:
    """Brier score (1/N) Σ_n Σ_k (p_n(k) − [k = y_n])², summed over classes (not averaged), in [0, 2]."""
    p = probabilities("probs", probs)
    target = torch.nn.functional.one_hot(class_labels(labels, p), p.shape[1])
    return (p - target).square().sum(1).mean().item()


def ece(probs: Any, labels: Any, num_bins: int = 15) -> float:
    """Expected calibration error: how far confidence and accuracy are apart, in [0, 1]; 0 is calibrated.

    Σ_b (n_b/N) |accuracy_b − confidence_b| over bins of confidence (Guo et al., ICML 2017).

    The confidence is the largest probability of a row; the ``num_bins`` bins are [0, 1/B), …, [(B−1)/B, 1].
    """
    classification = require("torchmetrics.functional.classification", "metrics")
    p = probabilities("probs", probs)
    validation.integer("num_bins", num_bins)
    target = class_labels(labels, p)
    # torchmetrics gives a confidence of exactly 1 a bin of its own, and takes anything above 1 for logits. The largest
    # float32 below 1 belongs to the last bin, as the definition has it.
    p = p.float().clamp(max=1 - 2**-24)
    score = classification.multiclass_calibration_error(
        p, target, num_classes=p.shape[1], n_bins=int(num_bins), norm="l1"
    )
    return score.item()


class CalibrationBins(NamedTuple):
    """Per bin of confidence, each of shape (num_bins,): its mean, the accuracy (both NaN where empty), and the size."""

    confidence: Tensor
    accuracy: Tensor
    num_examples: Tensor


def calibration_bins(probs: Any, labels: Any, num_bins: int = 15) -> CalibrationBins:
    """The bins that :func:`ece` sums over, for a reliability diagram."""
    p = probabilities("probs", probs)
    validation.integer("num_bins", num_bins)
    target = class_labels(labels, p)
    confidence, predicted = p.max(1)
    edges = torch.linspace(0, 1, num_bins + 1, device=p.device)
    bins = torch.bucketize(confidence.float(), edges[1:-1], right=True)
    count = torch.bincount(bins, minlength=num_bins)
    # Not bincount with weights, which has no deterministic form on CUDA.
    sure, hits = (p.new_zeros(num_bins).index_add(0, bins, x) for x in (confidence, (predicted == target).double()))
    return CalibrationBins(sure / count, hits / count, count)


def pairwise_kld(sample_probs: Any) -> float:
    """Mean Kullback–Leibler divergence of the predictions of two samples, in nats: their difference as functions.

        (1/N) Σ_n 1/(K(K−1)) Σ_{i≠j} Σ_c p_i(c) log(p_i(c) / p_j(c)):

    (L2E, Appendix K, equation 18; the paper's typesetting leaves out the sum over classes, without which it is no
    divergence).

    Args:
        sample_probs: (K, N, C), or (K, N, 1) of two classes, with K ≥ 2, as from ``PosteriorSamples.predict_samples``.
    """
    p = _samples(sample_probs)
    count = len(p)
    total = 0.0
    # The double sum over samples factorises: K Σ_i p_i·log p_i − (Σ_i p_i)·(Σ_j log p_j). The diagonal adds zero.
    for part in p.split(4096, dim=1):
        logs = part.clamp_min(FLOOR).log()
        total += (count * (part * logs).sum() - (part.sum(0) * logs.sum(0)).sum()).item()
    # Rounding can leave a divergence of zero at −1e-17.
    return max(total, 0.0) / (count * (count - 1) * p.shape[1])


def disagreement(sample_probs: Any) -> float:
    """Share of the examples with different most probable classes in two samples, the mean over pairs.

    Args:
        sample_probs: (K, N, C) with K ≥ 2, as for `pairwise_kld`.
    """
    p = _samples(sample_probs)
    votes = torch.nn.functional.one_hot(p.argmax(-1), p.shape[-1]).sum(0).double()  # (N, C)
    same = (votes * (votes - 1)).sum(1) / (len(p) * (len(p) - 1))
    return 1 - same.mean().item()


def ambiguity(sample_probs: Any, labels: Any) -> float:
    """Gain by averaging, in nats, ≥ 0: the mean loss of the samples less the loss of their average.

    The NLL of an average is that of its samples, in the mean, less their ambiguity (Wood et al., JMLR 2023).

    Args:
        sample_probs: (K, N, C), as for `pairwise_kld`; of one sample it is 0.
    """
    p = probabilities("sample_probs", sample_probs, ndim=3)
    return max(sum(nll(single, labels) for single in p) / len(p) - nll(p.mean(0), labels), 0.0)


def mutual_information(sample_probs: Any) -> Tensor:
    """Disagreement of the samples about each example (epistemic uncertainty), (N,), in nats, ≥ 0: the score of BALD.

    The entropy of the average prediction less the mean entropy of the samples' predictions (Houlsby et al., 2011): 0
    where all predict the same, however unsure each of them is.

    Args:
        sample_probs: (K, N, C), as for `pairwise_kld`.
    """
    p = probabilities("sample_probs", sample_probs, ndim=3)
    entropy = torch.special.entr
    return (entropy(p.mean(0)).sum(-1) - entropy(p).sum(-1).mean(0)).clamp_min(0)


def agreement(probs: Any, reference: Any) -> float:
    """Share of examples for which two predictors choose the same class, in [0, 1] (L2E, Appendix K, equation 19).

    Args:
        probs, reference: (N, C) each; the reference is usually that of Hamiltonian Monte Carlo.
    """
    first, second = two_predictions(probs, reference)
    return (first.argmax(1) == second.argmax(1)).double().mean().item()


def total_variation(probs: Any, reference: Any) -> float:
    """Mean total variation distance (1/N) Σ_n ½ Σ_k |p_n(k) − q_n(k)|, in [0, 1] (L2E, Appendix K, equation 20).

    The numbers of L2E's Table 1 seem to be means over the C classes instead of half sums: multiply them by C/2.
    """
    first, second = two_predictions(probs, reference)
    return 0.5 * (first - second).abs().sum(1).mean().item()


def ood_auroc(probs: Any, ood_probs: Any) -> float:
    """Area under the ROC curve of the largest probability: does it tell in-distribution examples from others?

    It is P(max p > max p') + ½ P(max p = max p') over pairs of an in-distribution example and another one: 1 is
    perfect, ½ is guessing (Hendrycks and Gimpel, ICLR 2017).

    Args:
        probs: (N, C) on in-distribution examples.
        ood_probs: (N', C) on out-of-distribution examples.
    """
    inside, outside = probabilities("probs", probs), probabilities("ood_probs", ood_probs)
    if inside.shape[1] != outside.shape[1]:
        raise ValueError(f"ood_probs must have the {inside.shape[1]} classes of probs, got {outside.shape[1]}")
    return _auroc(inside.amax(1), outside.amax(1))


def information_auroc(sample_probs: Any, ood_sample_probs: Any) -> float:
    """Area under the ROC curve of the mutual information, of which examples from elsewhere have more.

    Args:
        sample_probs: (K, N, C) on in-distribution examples, as for `mutual_information`.
        ood_sample_probs: (K, N', C) on out-of-distribution examples.
    """
    (*_, classes), (*_, others) = (
        probabilities(name, value, ndim=3).shape
        for name, value in (("sample_probs", sample_probs), ("ood_sample_probs", ood_sample_probs))
    )
    if classes != others:
        raise ValueError(f"ood_sample_probs must have the {classes} classes of sample_probs, got {others}")
    most = math.log(classes)
    inside, outside = (1 - mutual_information(probs) / most for probs in (sample_probs, ood_sample_probs))
    return _auroc(inside, outside)


def _auroc(inside: Tensor, outside: Tensor) -> float:
    classification = require("torchmetrics.functional.classification", "metrics")
    # Scores outside [0, 1], by rounding, would be taken for logits.
    scores = torch.cat([inside, outside.to(inside.device)]).clamp(0, 1)
    target = torch.zeros(len(scores), dtype=torch.long, device=scores.device)
    target[: len(inside)] = 1
    return classification.binary_auroc(scores, target).item()


def _samples(sample_probs: Any) -> Tensor:
    """(K, N, C) of two samples or more."""
    p = probabilities("sample_probs", sample_probs, ndim=3)
    if len(p) < 2:
        raise ValueError(f"sample_probs must hold at least two samples, got {len(p)}")
    return p


def summary(probs: Any, labels: Any, ood_probs: Any = None) -> dict[str, float]:
    """The usual scores at once: accuracy, nll, ece (15 bins), brier, and ood_auroc if ``ood_probs`` are given."""
    scores = {metric.__name__: metric(probs, labels) for metric in (accuracy, nll, ece, brier)}
    if ood_probs is not None:
        scores["ood_auroc"] = ood_auroc(probs, ood_probs)
    return scores
