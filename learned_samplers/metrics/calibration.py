"""Calibrating predictions on held-out data: temperature scaling and split conformal prediction.

Both are fitted on calibration data that neither trained the network nor score it, drawn as the test data are. Of two
classes the probabilities (N,) or (N, 1) of class 1 will do for (N, C), which then means (N, 2).
"""

from __future__ import annotations

import math
from typing import Any

from scipy.optimize import minimize_scalar
from torch import Tensor

from learned_samplers.base import validation
from learned_samplers.metrics.arrays import FLOOR, as_tensor, class_labels, probabilities, reals

#: Range of the logarithm of the temperature that is searched.
LOG_RANGE = (-6.0, 6.0)


def fit_temperature(probs: Any, labels: Any) -> float:
    r"""The temperature τ at which probabilities softmax(log p / τ) fit held-out labels best (Guo et al., ICML 2017).

    Minimises the mean negative log-likelihood, which is convex in 1/τ. τ > 1 says that the predictions were too sure.
    (τ is applied to predictions; the temperature of a sampler's posterior is another one.)

    Args:
        probs: (N, C) probabilities on calibration data, such as an average over samples.
        labels: (N,) integers.

    Raises:
        ValueError: the fit leaves [e⁻⁶, e⁶]: every label is the most probable class, say, so that no finite τ is best.
    """
    p = probabilities("probs", probs)
    y = class_labels(labels, p)
    logs = p.clamp_min(FLOOR).log()
    if bool((logs.amax(1) - logs.amin(1) < 1e-9).all()):
        raise ValueError("probs must differ between classes: a temperature does not change equal probabilities")
    chosen = logs.gather(1, y.unsqueeze(1)).squeeze(1)

    def loss(log_temperature: float) -> float:
        inverse = math.exp(-log_temperature)
        return ((inverse * logs).logsumexp(1) - inverse * chosen).mean().item()

    best = float(minimize_scalar(loss, bounds=LOG_RANGE, method="bounded", options={"xatol": 1e-6}).x)
    if min(map(loss, LOG_RANGE)) <= loss(best) + 1e-12:
        raise ValueError(f"probs and labels have no best temperature: the likelihood grows beyond {math.exp(best):.4g}")
    return math.exp(best)


def with_temperature(probs: Any, temperature: float) -> Tensor:
    """Probabilities softmax(log p / τ), in the dtype of ``probs``; τ as from :func:`fit_temperature`."""
    validation.positive("temperature", temperature)
    p = probabilities("probs", probs)
    dtype = as_tensor("probs", probs).dtype
    return (p.clamp_min(FLOOR).log() / temperature).softmax(1).to(dtype)


def conformal_threshold(probs: Any, labels: Any, level: float = 0.9) -> float:
    """The threshold on probabilities for prediction sets that contain the label with probability ``level``.

    Split conformal prediction with the score 1 − p(y) (Sadinle, Lei and Wasserman, JASA 2019): of n calibration
    examples, the ⌈(n + 1)·level⌉-th smallest score is the quantile. For exchangeable data, whatever the network, the
    sets of :func:`conformal_sets` then hold the label with a probability of at least ``level``, on average over
    calibration and test data. −inf (all classes) if n is too small for the level.

    Args:
        probs: (N, C) probabilities on calibration data.
        labels: (N,) integers.
        level: wanted probability, in (0, 1).
    """
    validation.fraction("level", level, open_left=True, open_right=True)
    p = probabilities("probs", probs)
    chosen = p.gather(1, class_labels(labels, p).unsqueeze(1)).squeeze(1)
    return 1 - _conformal_quantile(1 - chosen, level)


def conformal_sets(probs: Any, threshold: float) -> Tensor:
    """Prediction sets, (N, C) booleans: True for a class with p ≥ ``threshold``. A set may be empty.

    Args:
        probs: (N, C) probabilities.
        threshold: a number, as from :func:`conformal_threshold`; −inf for all classes.
    """
    if threshold != -math.inf:
        validation.number("threshold", threshold)
    p = probabilities("probs", probs)
    # The same arithmetic as of the scores, so that a tie with the quantile is inside.
    return 1 - p <= 1 - threshold


def conformal_scale(mean: Any, variance: Any, targets: Any, level: float = 0.9) -> float:
    """Half-width, in standard deviations, of intervals that contain a target with probability ``level``.

    Split conformal prediction with the score |y − m|/√v: m ± q·√v holds a new target with a probability of at least
    ``level``, whatever the errors' law, if the N examples are exchangeable; of several targets an example, on average
    over them (those of one example may share an error, so that N counts, not their number). inf if there are too few
    for the level.

    Args:
        mean, variance, targets: (N, ...) each, on calibration data, such as from ``posterior.uncertainty``.
        level: wanted probability, in (0, 1).
    """
    validation.fraction("level", level, open_left=True, open_right=True)
    y = reals("targets", targets)
    if not y.ndim:
        raise ValueError("targets must have shape (N, ...), got ()")
    m, v = (reals(name, value, tuple(y.shape)).to(y.device) for name, value in (("mean", mean), ("variance", variance)))
    if (v <= 0).any():
        raise ValueError(f"variance must be greater than 0, got {v[v <= 0][0].item()}")
    return _conformal_quantile((y - m).abs() / v.sqrt(), level)


def _conformal_quantile(scores: Tensor, level: float) -> float:
    """Quantile of (N, ...) scores: every example has the weight 1/(N + 1), each of its k scores 1/k of that."""
    size = scores[0].numel() if len(scores) else 1
    # The subtraction keeps 10 · 0.9, which is 9.000000000000002 in floating point, from counting as more than 9.
    rank = math.ceil(size * (len(scores) + 1) * level - 1e-9)
    return scores.flatten().sort().values[rank - 1].item() if rank <= scores.numel() else math.inf
