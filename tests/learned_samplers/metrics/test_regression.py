"""Scores of regressions against closed forms, SciPy and torchmetrics."""

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.integrate import quad

from learned_samplers import metrics
from learned_samplers.metrics.regression import mixture_log_density


def test_gaussian_nll_is_that_of_scipy():
    rng = np.random.default_rng(0)
    mean, variance, targets = rng.normal(size=(3, 7)), rng.uniform(0.1, 2, size=(3, 7)), rng.normal(size=7)
    one = -stats.norm(mean[0], variance[0] ** 0.5).logpdf(targets).mean()
    assert metrics.gaussian_nll(mean[0], variance[0], targets) == pytest.approx(one)
    mixture = -np.log(stats.norm(mean, variance**0.5).pdf(targets).mean(0)).mean()
    assert metrics.gaussian_nll(mean, variance, targets) == pytest.approx(mixture)
    assert metrics.gaussian_nll(mean[:1], variance[:1], targets) == pytest.approx(one)
    assert metrics.gaussian_nll(torch.tensor(mean), 0.5, torch.tensor(targets)) == pytest.approx(
        metrics.gaussian_nll(mean, np.full((3, 7), 0.5), targets)
    )


def test_the_log_density_of_a_mixture_is_that_of_torch():
    torch.manual_seed(0)
    mean, variance, y = torch.randn(5, 7, 2).double(), torch.rand(5, 7, 2).double() + 0.1, torch.randn(7, 2).double()
    weights = torch.distributions.Categorical(torch.ones(7, 5))
    parts = torch.distributions.Normal(mean.movedim(0, 1), variance.sqrt().movedim(0, 1))
    for j in range(2):
        one = torch.distributions.Normal(parts.loc[..., j], parts.scale[..., j])
        expected = torch.distributions.MixtureSameFamily(weights, one).log_prob(y[:, j])
        torch.testing.assert_close(mixture_log_density(mean, variance, y)[:, j], expected)


@pytest.mark.parametrize(("mean", "sigma", "y"), [(0.0, 1.0, 0.0), (1.0, 0.3, 2.0), (-2.0, 3.0, 4.0)])
def test_gaussian_crps_is_the_integral_that_defines_it(mean, sigma, y):
    law = stats.norm(mean, sigma)
    below = quad(lambda t: law.cdf(t) ** 2, -60, y)[0]
    above = quad(lambda t: (1 - law.cdf(t)) ** 2, y, 60)[0]
    score = metrics.gaussian_crps(torch.tensor([mean]), torch.tensor([sigma**2]), torch.tensor([y]))
    assert score == pytest.approx(below + above, rel=1e-6)


def test_crps_of_draws_is_the_double_sum_and_unbiased():
    rng = np.random.default_rng(0)
    draws, targets = rng.normal(size=(5, 4, 2)), rng.normal(size=(4, 2))
    pairs = np.abs(draws[:, None] - draws[None]).sum((0, 1)) / (2 * 5 * 4)
    expected = (np.abs(draws - targets).mean(0) - pairs).mean()
    assert metrics.crps(draws, targets) == pytest.approx(expected)
    # Many sets of two draws from N(0, 1) for the target 0.5: their mean is the score of the law.
    few = rng.normal(size=(2, 200_000))
    exact = metrics.gaussian_crps([0.0], [1.0], [0.5])
    assert metrics.crps(few, np.full(200_000, 0.5)) == pytest.approx(exact, abs=0.006)  # 5 standard errors
    many = rng.normal(size=(20_000, 1))
    assert metrics.crps(many, [0.5]) == pytest.approx(exact, abs=0.02)


def test_intervals_and_coverage():
    draws = torch.linspace(0, 1, 101).view(101, 1).expand(101, 3)
    lower, upper = metrics.interval(draws, 0.8)
    torch.testing.assert_close(lower, torch.full((3,), 0.1, dtype=torch.float64))
    torch.testing.assert_close(upper, torch.full((3,), 0.9, dtype=torch.float64))
    assert metrics.coverage([0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0], [0.5, 1.0, 1.5, -1.0]) == 0.5
    rng = np.random.default_rng(0)
    ends = metrics.interval(rng.normal(size=(2000, 4000)), 0.9)
    assert metrics.coverage(*ends, rng.normal(size=4000)) == pytest.approx(0.9, abs=0.025)
