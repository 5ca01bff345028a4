"""Refusals of the metrics: an error of its class that names the argument."""

import math

import numpy as np
import pytest
import torch

from learned_samplers import metrics
from tests.learned_samplers.metrics.test_classification import LABELS, PROBS

NAN, ONE = math.nan, np.array([["a", "b"]])


@pytest.mark.parametrize(
    ("probs", "error", "named"),
    [
        (torch.tensor([[2.0, -1.0]]), ValueError, r"probs.*-1\.0 \(row 0\)"),
        (torch.tensor([[0.5, 0.5], [0.9, 0.5]]), ValueError, r"probs.*row 1 .*1\.4"),
        (torch.tensor([[0.5, 0.5], [NAN, 1]]), ValueError, r"probs.*nan \(row 1\)"),
        (torch.tensor([[1.5, 0.5]]), ValueError, r"probs.*1\.5 \(row 0\)"),
        (torch.ones(1, 1, 1), ValueError, r"probs.*\(1, 1, 1\)"),
        (torch.tensor([1.5]), ValueError, r"probs.*1\.5 \(row 0\)"),
        (torch.tensor([[-0.5]]), ValueError, r"probs.*-0\.5 \(row 0\)"),
        (torch.tensor([NAN]), ValueError, r"probs.*nan \(row 0\)"),
        (torch.ones(4, 1), ValueError, r"probs.*two classes.*accepted as \(4,\)"),
        (torch.zeros(0, 3), ValueError, r"probs.*\(0, 3\)"),
        (torch.tensor([[1, 0]]), TypeError, "probs.*int64"),
        ("probs", TypeError, "probs.*str"),
        (ONE, TypeError, r"probs.*ndarray"),
    ],
)
def test_probabilities(probs, error, named):
    labels = torch.zeros(len(probs) if isinstance(probs, torch.Tensor) else 1, dtype=torch.long)
    for metric in (metrics.accuracy, metrics.nll, metrics.ece, metrics.brier):
        with pytest.raises(error, match=named):
            metric(probs, labels)


@pytest.mark.parametrize(
    ("labels", "error", "named"),
    [
        (torch.tensor([0, 1, 2, 3]), ValueError, "labels.*3"),
        (torch.tensor([0, 1, 2, -1]), ValueError, "labels.*-1"),
        (torch.tensor([0, 1, 2]), ValueError, r"labels.*\(3,\)"),
        (torch.tensor([0.0, 1, 2, 0]), TypeError, "labels.*float32"),
        ("0120", TypeError, "labels.*str"),
        (np.array(["a"] * 4), TypeError, "labels.*ndarray"),
    ],
)
def test_labels(labels, error, named):
    for metric in (metrics.accuracy, metrics.nll, metrics.ece, metrics.brier, metrics.calibration_bins):
        with pytest.raises(error, match=named):
            metric(PROBS, labels)


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda: metrics.ece(PROBS, LABELS, num_bins=0), ValueError, "num_bins"),
        (lambda: metrics.pairwise_kld(PROBS[None]), ValueError, "sample_probs"),
        (lambda: metrics.pairwise_kld(PROBS), ValueError, "sample_probs"),
        (lambda: metrics.disagreement(PROBS[None]), ValueError, "sample_probs"),
        (lambda: metrics.mutual_information(PROBS), ValueError, "sample_probs"),
        (lambda: metrics.ambiguity(PROBS[None], LABELS[:2]), ValueError, "labels"),
        (lambda: metrics.information_auroc(PROBS[None], PROBS), ValueError, "sample_probs"),
        (
            lambda: metrics.information_auroc(PROBS[None], torch.ones(1, 2, 5) / 5),
            ValueError,
            "ood_sample_probs .* got 5",
        ),
        (lambda: metrics.agreement(PROBS, PROBS[:3]), ValueError, "reference"),
        (lambda: metrics.total_variation(PROBS, 2 * PROBS / 3 + 4 / 9), ValueError, "reference"),
        (lambda: metrics.ood_auroc(PROBS, torch.tensor([[0.5, 0.5]])), ValueError, "ood_probs"),
        (lambda: metrics.fit_temperature([[0.9, 0.1], [0.2, 0.8]], [0, 1]), ValueError, "temperature"),
        (lambda: metrics.fit_temperature(torch.full((6, 2), 0.5), [0, 1] * 3), ValueError, "probs"),
        (lambda: metrics.with_temperature(PROBS, 0), ValueError, "temperature"),
        (lambda: metrics.conformal_threshold(PROBS, LABELS, 1.0), ValueError, "level"),
        (lambda: metrics.conformal_sets(PROBS, NAN), ValueError, "threshold.*nan"),
        (lambda: metrics.conformal_sets(PROBS, "x"), TypeError, "threshold.*'x'"),
        (lambda: metrics.conformal_scale([0.0], [0.0], [1.0]), ValueError, "variance"),
        (lambda: metrics.conformal_scale(0.0, 1.0, 0.0), ValueError, "targets.*shape"),
        (lambda: metrics.gaussian_nll([0.0], [0.0], [0.0]), ValueError, "variance"),
        (lambda: metrics.gaussian_nll([0.0], [1.0], [0.0, 1.0]), ValueError, "mean"),
        (lambda: metrics.gaussian_crps([[0.0]], [[1.0]], [0.0]), ValueError, "mean"),
        (lambda: metrics.gaussian_nll([NAN], [1.0], [0.0]), ValueError, "mean"),
        (lambda: metrics.gaussian_nll(["a"], [1.0], [0.0]), TypeError, "mean"),
        (lambda: metrics.gaussian_nll([True], [1.0], [0.0]), TypeError, "mean"),
        (lambda: metrics.gaussian_nll([0.0, 1.0], [1.0] * 3, [0.0] * 2), ValueError, "variance"),
        (lambda: metrics.crps([[0.0]], [0.0]), ValueError, "draws"),
        (lambda: metrics.crps([], []), ValueError, "targets"),
        (lambda: metrics.interval([[0.0]], 1.0), ValueError, "level"),
        (lambda: metrics.interval([0.0], 0.5), ValueError, "draws"),
        (lambda: metrics.coverage([1.0], [0.0], [0.5]), ValueError, "lower"),
        (lambda: metrics.coverage([1.0], [0.0, 1.0], [0.5]), ValueError, "upper"),
    ],
)
def test_other_arguments(call, error, named):
    with pytest.raises(error, match=named):
        call()
