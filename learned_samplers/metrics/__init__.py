"""Scores of predictions: of classes, of real numbers, and their calibration.

``from learned_samplers import metrics`` and then ``metrics.nll(probs, labels)``, for example with ``probs`` from
`PosteriorSamples.predict`. Everything is described in the modules ``classification``, ``regression``,
``calibration``, ``selective`` and ``labelling``.
"""

from learned_samplers.metrics.arrays import FLOOR, TOLERANCE
from learned_samplers.metrics.calibration import (
    conformal_scale,
    conformal_sets,
    conformal_threshold,
    fit_temperature,
    with_temperature,
)
from learned_samplers.metrics.classification import (
    CalibrationBins,
    accuracy,
    agreement,
    ambiguity,
    brier,
    calibration_bins,
    disagreement,
    ece,
    information_auroc,
    mutual_information,
    nll,
    ood_auroc,
    pairwise_kld,
    summary,
    total_variation,
)
from learned_samplers.metrics.labelling import batch_bald
from learned_samplers.metrics.regression import coverage, crps, gaussian_crps, gaussian_nll, interval
from learned_samplers.metrics.selective import RiskCoverage, aurc, risk_coverage, selective_threshold

__all__ = [
    "FLOOR",
    "TOLERANCE",
    "CalibrationBins",
    "RiskCoverage",
    "accuracy",
    "agreement",
    "ambiguity",
    "aurc",
    "batch_bald",
    "brier",
    "calibration_bins",
    "conformal_scale",
    "conformal_sets",
    "conformal_threshold",
    "coverage",
    "crps",
    "disagreement",
    "ece",
    "fit_temperature",
    "gaussian_crps",
    "gaussian_nll",
    "information_auroc",
    "interval",
    "mutual_information",
    "nll",
    "ood_auroc",
    "pairwise_kld",
    "risk_coverage",
    "selective_threshold",
    "summary",
    "total_variation",
    "with_temperature",
]
