"""Targets of a user's own: moments of a double well and of a Gaussian, by optimizers and by other kernels."""

import math

import pytest
import torch

from learned_samplers import HMC, SGHMC, SGLD
from learned_samplers.checks.law import Law
from learned_samplers.checks.targets import Kernel, Target, gaussian, run
from tests.learned_samplers.checks.own_samplers import Langevin, changed

GRID = torch.linspace(-3, 3, 4001, dtype=torch.float64)


def well(x):
    return 2 * (x[..., 0] ** 2 - 1) ** 2


DENSITY = torch.exp(-well(GRID[:, None]))
SECOND = float((GRID**2 * DENSITY).sum() / DENSITY.sum())


def draws(chains):
    cumulative = DENSITY.cumsum(0) / DENSITY.sum()
    return GRID[torch.searchsorted(cumulative, torch.rand(chains, dtype=torch.float64))][:, None].float()


WELL = Target(well, {"x²": (lambda x: x[:, 0] ** 2, SECOND), "x": (lambda x: x[:, 0], 0.0)}, draws)
FEW = dict(chains=2000, steps=200)


@pytest.mark.parametrize(
    ("sampler", "order", "lr", "holds"),
    [
        (lambda p: SGLD(p, 0.05, 1), "O(h)", None, True),
        (lambda p: SGLD(p, 0.05, 1), "exact", None, False),
        (lambda p: SGHMC(p, 0.2, 20), "O(h)", None, True),
        (lambda p: HMC(p, 0.1, 1, leapfrog_steps=5), "exact", None, True),
        (lambda p: changed(Langevin, noise=0.7)(p, 0.05, 1), "O(h)", None, False),
    ],
)
def test_a_double_well(sampler, order, lr, holds):
    if holds:
        report = Law().holds(sampler, order, target=WELL, tolerance=0.05, **FEW)
        assert [row.name for row in report.rows] == ["x²", "x"]
        assert 0 < report.power < 0.4
    else:
        with pytest.raises(AssertionError, match="does NOT hold"):
            Law().holds(sampler, order, target=WELL, tolerance=0.02, **FEW)


def test_the_bias_is_that_of_the_closed_form():
    """SGLD on a Gaussian of precision k at h: 1/(1 − hk/2) − 1."""
    report = Law().holds(lambda p: SGLD(p, 0.1, 1), target=gaussian((1.0, 4.0, 10.0)), **FEW)
    for row, k in zip(report.rows, (1.0, 4.0, 10.0), strict=True):
        assert row.bias == pytest.approx(1 / (1 - 0.1 * k / 2) - 1, abs=5 * row.standard_error)
        assert row.refined_bias == pytest.approx(1 / (1 - 0.1 * k / 8) - 1, abs=10 * row.standard_error)
    assert report.rows[2].slope == pytest.approx(1.5, abs=0.2)


def autoregressive(heat=1.0, still=False):
    """Exact moves of any size on a standard normal law, written with no optimizer."""

    def begin(energy, start, lr, seed):
        x = start.clone()

        def step():
            nonlocal x
            if not still:
                x = math.exp(-lr) * x + math.sqrt(heat * (1 - math.exp(-2 * lr))) * torch.randn_like(x)
            return x.numpy()

        return step

    return Kernel("autoregressive", begin)


NORMAL = gaussian((1.0, 1.0))


def test_a_kernel_of_ones_own():
    report = Law().holds(autoregressive(), "exact", target=NORMAL, lr=0.3, **FEW)
    assert report.verdict == "no bias seen"
    assert report.sampler == "autoregressive"
    with pytest.raises(AssertionError, match="biased"):
        Law().holds(autoregressive(heat=1.1), "exact", target=NORMAL, lr=0.3, **FEW)
    with pytest.raises(AssertionError, match="has not forgotten where it began"):
        Law().holds(autoregressive(still=True), "exact", target=NORMAL, lr=0.3, **FEW)


def test_starts_that_are_no_draws():
    far = Target(NORMAL.energy, NORMAL.moments, lambda chains: torch.full((chains, 2), 5.0))
    assert Law().holds(autoregressive(), "exact", target=far, lr=0.5, **FEW)
    with pytest.raises(AssertionError, match="two halves of a run differ"):
        Law().holds(autoregressive(), "exact", target=far, lr=0.05, chains=2000, steps=60)


def test_errors_cover_the_truth():
    """The mean is off by more than two standard errors in a few of 40 runs."""
    off = []
    for seed in range(40):
        averages = run(autoregressive(), NORMAL, 0.2, 60, 400, seed)
        off += [(averages.means[name] - 1) / averages.errors[name] for name in NORMAL.moments]
    assert sum(abs(x) > 2 for x in off) <= 10
    assert max(map(abs, off)) < 4.5


def test_the_number_of_steps_follows_from_the_time():
    report = Law().holds(autoregressive(), "exact", target=NORMAL, lr=0.5, seconds=0.3, tolerance=0.1, chains=100)
    assert report.seconds < 30
