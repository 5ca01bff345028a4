"""SGLRW: its law against the exact stationary law of the lattice walk, with and without gradient noise and clipping."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from learned_samplers import SGLRW
from learned_samplers.classical.sglrw import sglrw_rule
from tests.harness import sgld_variance

N = 100


def walk(k, h, noise=0.0, temperature=1.0):
    """Stationary variance of the walk and its share of clipped steps, by detailed balance between neighbours.

    From x the walk goes up with P(x) = ½(1 + E clip(−c(kx + √V·ζ), −1, 1)), c = √(h/2T), so that π(x+δ)/π(x) =
    P(x)/(1 − P(x+δ)). Where a walk starts fixes its lattice: the mean over eight of them, as for many coordinates.
    """
    delta, c = math.sqrt(2 * h * temperature), math.sqrt(h / (2 * temperature))
    reach = math.ceil(14 * math.sqrt(sgld_variance(k, h, temperature, noise)) / delta)
    variances, shares = [], []
    for offset in (np.arange(8) + 0.5) / 8:
        x = (np.arange(-reach, reach + 1) + offset) * delta
        mean, spread = -c * k * x, max(c * math.sqrt(noise), 1e-12)
        low, high = (-1 - mean) / spread, (1 - mean) / spread
        inside = stats.norm.cdf(high) - stats.norm.cdf(low)
        slope = stats.norm.pdf(high) - stats.norm.pdf(low)
        drift = mean * inside - spread * slope + stats.norm.sf(high) - stats.norm.cdf(low)
        up, down = np.clip((1 + drift) / 2, 1e-300, 1), np.clip((1 - drift) / 2, 1e-300, 1)
        log = np.concatenate([[0.0], np.cumsum(np.log(up[:-1]) - np.log(down[1:]))])
        law = np.exp(log - log.max())
        law /= law.sum()
        variances.append(law @ x**2)
        shares.append(law @ (1 - inside))
    return np.mean(variances), np.mean(shares)


def simulate(k, h, noise=0.0, temperature=1.0, cls=SGLRW, coordinates=20_000, steps=400, seed=0):
    """Variance over the second half of ``steps``, and the mean share of clipped coordinates."""
    torch.manual_seed(seed)
    theta = (torch.randn(coordinates) * math.sqrt(walk(k, h, noise, temperature)[0])).requires_grad_()
    sampler = cls([theta], h * N, N, temperature=temperature)
    squares, clipped = [], []
    for step in range(steps):
        theta.grad = (k * theta.detach() + math.sqrt(noise) * torch.randn(coordinates)) / N
        if step >= steps // 2:
            clipped += sampler.clipped_share()
        sampler.step()
        squares.append(theta.detach().square().mean().item())
    return np.mean(squares[steps // 2 :]), np.mean(clipped)


CASES = [  # hk, hV/T, T
    (0.05, 0.0, 1.0),
    (0.05, 1.0, 1.0),
    (0.05, 2.0, 1.0),
    (0.5, 0.0, 0.1),
    (0.2, 0.3, 0.1),
]


@pytest.mark.parametrize(("stiffness", "heat", "temperature"), CASES)
def test_the_variance_and_the_clipped_share_are_those_of_the_walk(stiffness, heat, temperature):
    """Tolerance: 2 % of the variance, 0.005 of the share; 20,000 coordinates, 200 steps."""
    h = 1e-3
    settings = dict(k=stiffness / h, h=h, noise=heat * temperature / h, temperature=temperature)
    variance, clipped = walk(**settings)
    measured, share = simulate(**settings)
    assert measured == pytest.approx(variance, rel=0.02)
    assert share == pytest.approx(clipped, abs=0.005)


def test_the_bias_vanishes_with_the_step_and_is_none_without_clipping_whatever_the_noise():
    biases = [abs(walk(50.0, h, 1000.0)[0] * 50 - 1) for h in (2e-3, 1e-3, 5e-4)]
    assert biases[0] > 2 * biases[1] > 4 * biases[2]
    variance, clipped = walk(50.0, 1e-3, 50.0)  # hV/T = 0.05
    assert clipped < 1e-5
    assert variance * 50 == pytest.approx(1, abs=1e-4)


class _DriftOfSGLD(SGLRW):
    """Doubles the drift: a wrong factor in P(+)."""

    @staticmethod
    def rule(x, g, noise, **settings):
        return sglrw_rule(x, [2 * one for one in g], noise, **settings)


class _UniformFromTheNormal(SGLRW):
    """Takes the normal draw itself for uniform noise on (−1, 1)."""

    @staticmethod
    def rule(x, g, noise, **settings):
        return sglrw_rule(x, g, [math.sqrt(2) * torch.erfinv(z.clamp(-0.999, 0.999)) for z in noise], **settings)


class _VarianceForLength(SGLRW):
    """Steps of δ² in place of δ (here as a wrong temperature)."""

    def hyper(self, group, **settings):
        hyper = super().hyper(group, **settings)
        return {**hyper, "temperature": hyper["temperature"] ** 2}


@pytest.mark.parametrize("broken", [_DriftOfSGLD, _UniformFromTheNormal, _VarianceForLength])
def test_planted_faults_are_found(broken):
    settings = dict(k=50.0, h=1e-3, temperature=0.5)
    assert abs(simulate(**settings, cls=broken)[0] / walk(**settings)[0] - 1) > 0.1


def test_every_step_has_the_same_length():
    torch.manual_seed(0)
    theta = torch.randn(1000, requires_grad=True)
    before = theta.detach().clone()
    sampler = SGLRW([theta], 0.1, N, temperature=0.5)
    theta.grad = 10 * torch.randn(1000)
    sampler.step()
    assert torch.allclose((theta - before).abs(), torch.tensor(math.sqrt(2 * 0.1 * 0.5 / N)), atol=1e-6)


@pytest.mark.parametrize(
    ("start", "prior", "options", "share"),
    [(1.0, 1e4, {}, 1.0), (1.0, 1.0, {}, 0.0), (10.0, 1e4, {}, 1.0), (10.0, 1e4, {"prior_mean": "initial"}, 0.0)],
)
def test_the_clipped_share_is_of_the_drift_to_the_prior_s_mean(start, prior, options, share):
    p = torch.full((4,), start, requires_grad=True)
    sampler = SGLRW([{"params": [p], **options}], 0.1, N, prior_precision=prior)
    assert math.isnan(sampler.clipped_share()[0]), "there are no gradients yet"
    p.grad = torch.zeros(4)
    assert sampler.clipped_share() == [share]
