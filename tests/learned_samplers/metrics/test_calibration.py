"""Temperature scaling and conformal sets against closed forms."""

import math

import numpy as np
import pytest
import torch

from learned_samplers import metrics


def test_the_temperature_of_a_constant_prediction_is_known():
    # p = 0.9 for class 0, right in 7 of 10: the best temperature takes 0.9 to 0.7.
    probs, labels = torch.tensor([[0.9, 0.1]]).repeat(10, 1), torch.tensor([0] * 7 + [1] * 3)
    expected = math.log(9) / math.log(7 / 3)
    temperature = metrics.fit_temperature(probs, labels)
    assert temperature == pytest.approx(expected, rel=1e-4)
    scaled = metrics.with_temperature(probs, temperature)
    assert scaled.dtype == probs.dtype
    torch.testing.assert_close(scaled[0], torch.tensor([0.7, 0.3]), atol=1e-4, rtol=0)


def test_the_temperature_that_spoiled_predictions_is_found_again():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(20_000, 4)) * 2
    right = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = (right.cumsum(1) < rng.uniform(size=(20_000, 1))).sum(1).clip(max=3)
    sure = metrics.with_temperature(right, 0.5)
    assert metrics.fit_temperature(sure, labels) == pytest.approx(2, rel=0.05)
    assert metrics.fit_temperature(right, labels) == pytest.approx(1, rel=0.05)
    assert metrics.nll(metrics.with_temperature(sure, 2), labels) < metrics.nll(sure, labels)


def test_the_conformal_quantile_is_the_right_order_statistic():
    # Nine examples whose label has probability 0.1 … 0.9. Of n = 9 at level 0.9 the rank is ⌈10 · 0.9⌉ = 9: the worst.
    chosen = torch.arange(1, 10, dtype=torch.float64) / 10
    probs, labels = torch.stack([chosen, 1 - chosen], 1), torch.zeros(9, dtype=torch.long)
    assert metrics.conformal_threshold(probs, labels, 0.9) == pytest.approx(0.1)
    assert metrics.conformal_threshold(probs, labels, 0.5) == pytest.approx(0.5)
    assert metrics.conformal_threshold(probs, labels, 0.95) == -math.inf
    assert metrics.conformal_sets(probs, 0.5).tolist() == [[a >= 0.5, 1 - a >= 0.5] for a in chosen.tolist()]
    assert metrics.conformal_sets(probs, -math.inf).all()
    assert metrics.conformal_scale(torch.zeros(9), torch.full((9,), 4.0), torch.arange(1.0, 10), 0.9) == 4.5
    assert metrics.conformal_scale(torch.zeros(9), torch.ones(9), torch.ones(9), 0.95) == math.inf


@pytest.mark.parametrize("level", [0.5, 0.8, 0.9])
def test_conformal_sets_cover_even_if_the_network_is_wrong(level):
    rng = np.random.default_rng(0)
    shares, sizes, intervals = [], [], []
    for _ in range(300):
        probs = rng.dirichlet([1, 1, 1, 1], size=60)  # has nothing to do with the labels
        labels = rng.integers(4, size=60)
        threshold = metrics.conformal_threshold(probs[:30], labels[:30], level)
        sets = metrics.conformal_sets(probs[30:], threshold)
        shares.append(sets[torch.arange(30), torch.tensor(labels[30:])].double().mean().item())
        sizes.append(sets.double().sum(1).mean().item())
        targets = rng.standard_t(2, size=60)
        scale = metrics.conformal_scale(np.zeros(30), np.ones(30), targets[:30], level)
        intervals.append((np.abs(targets[30:]) <= scale).mean())
    # Between level and level + 1/(n + 1) on average, with a standard error below 0.007.
    for coverage in (shares, intervals):
        assert level - 0.03 < np.mean(coverage) < level + 1 / 31 + 0.03
    assert np.mean(sizes) < 4, "not all classes"


@pytest.mark.parametrize(("n", "targets", "level"), [(2, 100, 0.9), (9, 50, 0.95), (39, 20, 0.9)])
def test_targets_that_share_an_error_count_as_one_example(n, targets, level):
    """Counted one by one, two examples of 100 targets would promise 0.9 and hold 0.67."""
    stream, covered = torch.Generator().manual_seed(0), []
    for _ in range(600):
        errors = torch.randn(n + 1, 1, generator=stream).expand(-1, targets)
        zeros = torch.zeros(n, targets)
        scale = metrics.conformal_scale(zeros, torch.ones_like(zeros), errors[:-1], level)
        covered.append(float(errors[-1].abs().mean() <= scale))
    error = (level * (1 - level) / 600) ** 0.5
    assert sum(covered) / 600 >= level - 3 * error
    if n == 39:
        assert sum(covered) / 600 <= level + 1 / (n + 1) + 3 * error
