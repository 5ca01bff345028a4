"""Risk against coverage by hand, and a threshold whose guarantee holds in simulations, where a naive one does not."""

import math

import numpy as np
import pytest
import torch

from learned_samplers import metrics
from learned_samplers.metrics import selective


def test_risks_are_those_of_the_surest():
    curve = metrics.risk_coverage([0.3, 0.1, 0.2, 0.9], [True, False, False, True])
    assert curve.coverage.tolist() == [0.25, 0.5, 0.75, 1.0]
    torch.testing.assert_close(curve.risk, torch.tensor([0, 0, 1 / 3, 1 / 2]).double())
    assert metrics.aurc([0.3, 0.1, 0.2, 0.9], [True, False, False, True]) == pytest.approx((1 / 3 + 1 / 2) / 4)


def test_equal_doubts_come_in_no_order():
    flat = metrics.risk_coverage(np.zeros(4), np.array([True, False, False, False]))
    assert flat.risk.tolist() == [0.25] * 4
    first = metrics.aurc([0, 0, 1, 1], [True, False, False, True])
    assert first == metrics.aurc([0, 0, 1, 1], [False, True, True, False]) == 0.5


def test_losses_are_taken_too():
    assert metrics.risk_coverage([0.0, 1.0], [0.5, 1.5]).risk.tolist() == [0.5, 1.0]


def errors(random):
    """1,000 doubts, uniform on [0, 1], and errors with probability 0.8·d³: below t a share of 0.2·t³ is wrong."""
    doubt = random.uniform(size=1000)
    return doubt, random.uniform(size=1000) < 0.8 * doubt**3


def thresholds(risk, confidence=0.9):
    random = np.random.default_rng(0)
    return np.array([metrics.selective_threshold(*errors(random), risk, confidence) for _ in range(400)])


@pytest.mark.parametrize("risk", [0.05, 0.1])
def test_the_guarantee_holds_and_is_not_idle(risk):
    chosen = np.clip(thresholds(risk), 0, 1)
    assert (0.2 * chosen**3 > risk).mean() <= 0.1
    assert np.median(chosen) > 0.7 * (risk / 0.2) ** (1 / 3)  # the largest threshold that is good enough


def test_without_a_bound_on_the_risk_it_does_not_hold(monkeypatch):
    """The planted fault: the observed risk in the place of its bound."""
    monkeypatch.setattr(selective.beta, "ppf", lambda level, a, b: (a - 1) / (a - 1 + b))
    assert (0.2 * np.clip(thresholds(0.1), 0, 1) ** 3 > 0.1).mean() > 0.25


def test_all_or_nothing():
    doubt = np.linspace(0, 1, 400)
    assert metrics.selective_threshold(doubt, np.zeros(400, bool), 0.05) == math.inf
    assert metrics.selective_threshold(doubt, np.ones(400, bool), 0.05) == -math.inf
    assert metrics.selective_threshold(doubt[:5], np.zeros(5, bool), 0.05) == -math.inf  # too few to show it
    assert metrics.selective_threshold(np.zeros(400), np.zeros(400, bool), 0.05) == math.inf


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda: metrics.aurc([[0.1]], [True]), ValueError, r"doubt.*\(1, 1\)"),
        (lambda: metrics.aurc([0.1, math.nan], [True, True]), ValueError, "doubt.*nan"),
        (lambda: metrics.aurc([0.1, 0.2], [True]), ValueError, "wrong.*shape"),
        (lambda: metrics.aurc([0.1], [-1.0]), ValueError, r"wrong.*-1\.0"),
        (lambda: metrics.selective_threshold([0.1], [0], 0.1), TypeError, "wrong.*booleans"),
        (lambda: metrics.selective_threshold([0.1], [True], 0), ValueError, "risk.*0"),
        (lambda: metrics.selective_threshold([0.1], [True], 0.1, 1.0), ValueError, r"confidence.*1\.0"),
    ],
)
def test_what_it_refuses(call, error, named):
    with pytest.raises(error, match=named):
        call()
