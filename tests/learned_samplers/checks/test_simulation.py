"""The simulation: minibatches drawn without replacement, their noise and the law of their chains; steps that count."""

import numpy as np
import pytest
import torch

from learned_samplers import PSGLD, SGHMC, SGLD, SGLRW, check_sampler
from learned_samplers.checks.linear import read_linear_step
from learned_samplers.checks.simulation import ReshuffledNoise
from tests.harness import sghmc_variance
from tests.learned_samplers.checks.own_samplers import Langevin, N, bent, changed


def sgld_variance_reshuffled(k, h, gradient_noise, batches, temperature=1.0):
    """Mean over the epoch of the variance of θ ← θ − h(kθ + √V·ζ) + √(2hT)ξ, by summing the epoch out by hand."""
    c, m = 1 - h * k, batches
    covariance = m / (m - 1) * (np.eye(m) - np.ones((m, m)) / m) * gradient_noise * h**2 + 2 * h * temperature * np.eye(
        m
    )
    weights = np.array([[c ** (t - s) if s <= t else 0.0 for s in range(m)] for t in range(m)])
    noise = np.diag(weights @ covariance @ weights.T)
    start = noise[-1] / (1 - c ** (2 * m))
    return float(np.mean(start * c ** (2 * np.arange(1, m + 1)) + noise))


@pytest.mark.parametrize("batches", [2, 3, 10])
def test_the_noise_of_an_epoch_adds_up_to_zero_and_each_has_unit_variance(batches):
    source = ReshuffledNoise(torch.zeros(100_000, dtype=torch.float64), batches)
    epochs = []
    for _ in range(2):
        draws = []
        for _ in range(batches):
            source.draw()
            draws.append(source.current)
        epochs.append(torch.stack(draws))
        assert epochs[-1].sum(0).abs().max() < 1e-12
    expected = (batches * torch.eye(batches) - 1).double() / (batches - 1)
    assert torch.allclose(torch.cov(epochs[0]), expected, atol=0.02)
    assert torch.corrcoef(torch.stack([epochs[0][0], epochs[1][0]]))[0, 1].abs() < 0.02


@pytest.mark.parametrize("batches", [2, 7, 40])
def test_sgld_has_its_closed_form_variance(batches):
    settings = dict(gradient_noise=3000.0, without_replacement=batches, coordinates=8000)
    report = check_sampler(lambda p: SGLD(p, 0.1, N), **settings)
    assert report, report
    assert not check_sampler(changed(Langevin, noise=0.9), **settings)  # the planted fault
    for r in report.results:
        closed = sgld_variance_reshuffled(r.curvature, 0.1 / N, 3000.0, batches)
        assert r.expected_variance == pytest.approx(closed, rel=1e-9)
        assert r.measured_variance == pytest.approx(closed, rel=0.02)


def test_sghmc_loses_its_heat_when_epochs_are_short_and_keeps_it_when_they_are_long():
    def variance(batches):
        settings = dict(stiffness=(0.05,), gradient_noise=160.0, coordinates=4000)
        report = check_sampler(lambda p: SGHMC(p, 0.1, N), without_replacement=batches, **settings)
        assert report, report
        assert report.results[0].measured_variance == pytest.approx(report.results[0].expected_variance, rel=0.02)
        return report.results[0].expected_variance

    k, h = 50.0, 0.1 / N
    cold, hot = sghmc_variance(k, h, 0.1), sghmc_variance(k, h, 0.1, gradient_noise=160.0)
    assert hot > 1.7 * cold
    assert variance(None) == pytest.approx(hot, rel=1e-9)
    assert variance(2) == pytest.approx(cold, rel=0.03)
    assert cold * 1.3 < variance(20) < hot * 0.95
    # The longer the epoch, the more a minibatch looks like one that is drawn anew.
    step = read_linear_step(lambda p: SGHMC(p, 0.1, N), k / N, 160.0**0.5 / N)
    assert step.stationary_covariance(20_000)[0, 0] == pytest.approx(hot, rel=0.02)


def test_a_step_that_is_not_linear_is_simulated():
    def temperature(batches):
        def factory(p):
            return PSGLD(p, 0.02, N, eps=0.1, decay=0.9)

        settings = dict(stiffness=(0.05,), coordinates=4000, steps=400, refinement=1.1, gradient_noise=2000.0)
        return check_sampler(factory, without_replacement=batches, **settings).results[0].configurational_temperature

    assert temperature(2) < 0.97 * temperature(None)


def test_the_lattice_walk_is_too_hot_with_replacement_and_too_cold_reshuffled():
    # It lets the minibatch's noise stand for a part of its own; reshuffling takes that noise back in soft directions.
    def bias(**drawn):
        torch.manual_seed(0)
        settings = dict(stiffness=(0.05,), gradient_noise=160.0, coordinates=4000, refinement=1.1)
        report = check_sampler(lambda p: SGLRW(p, 1.0, 100), **settings, **drawn)
        return report.results[0].configurational_temperature - 1

    assert bias() > 0.25
    assert bias(without_replacement=10) < -0.08


def test_only_the_steps_count_in_which_a_sampler_samples():
    """A sampler that is somewhere else at every second step, and says so."""

    class Explores(bent(Langevin, 1e-3)):
        is_sampling = True

        @torch.no_grad()
        def step(self, closure=None):
            for p in self.param_groups[0]["params"]:
                p.mul_(3.0 if self.is_sampling else 1 / 3.0)
            self.is_sampling = not self.is_sampling
            if self.is_sampling:
                super().step(closure)

    report = check_sampler(Explores, stiffness=(0.2,), coordinates=4000, steps=300)
    assert not report.linear
    assert abs(report.results[0].bias) < 0.2
