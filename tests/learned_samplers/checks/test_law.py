"""`Law`: what holds and what does not, slopes, the power that a report states, and the time that a run may take."""

import math

import pytest
import torch

from learned_samplers import HMC, SGHMC, SGLD, SGNHT
from learned_samplers.checks import law as module
from learned_samplers.checks.law import Law
from tests.harness import UNBIASED
from tests.learned_samplers.checks.own_samplers import Langevin, N, bent, changed

SMALL = dict(coordinates=4000, steps=300)
HOT = changed(Langevin, noise=1.05)


def hmc(p):
    return HMC(p, 0.1, N)


@pytest.mark.parametrize(
    ("sampler", "order", "settings", "holds"),
    [
        (SGLD, "O(h)", {}, True),
        (SGLD, "exact", {}, False),
        (SGLD, "O(h^2)", {}, False),
        (UNBIASED, "exact", {}, True),
        (UNBIASED, "O(h^2)", {}, True),
        (lambda p: SGHMC(p, 0.1, N, momentum_decay=0.5), "O(h)", {}, True),
        (Langevin, "O(h)", {}, True),
        (HOT, "O(h)", {}, False),
        (bent(Langevin), "O(h)", {"refinement": 4.0}, True),
        (SGNHT, "exact", {"tolerance": 0.05}, True),
        (hmc, "exact", {"stiffness": (0.5,), "steps": 150}, True),
        (lambda p: torch.optim.SGD(p, 0.1), "O(h)", {"num_data": N}, False),
    ],
)
def test_a_claim_holds_or_the_test_fails(sampler, order, settings, holds):
    reports = []
    law = Law(record=reports.append)
    if holds:
        report = law.holds(sampler, order, **{**SMALL, **settings})
        assert 0 < report.power < 0.15
    else:
        with pytest.raises(AssertionError, match=r"does NOT hold"):
            law.holds(sampler, order, **{**SMALL, **settings})
        assert math.isnan(reports[0].power)
    assert [r.held for r in reports] == [holds]


def test_slopes_and_temperatures():
    report = Law().holds(SGHMC, "O(h)", **SMALL)
    assert [row.slope for row in report.rows] == pytest.approx([1.0, 1.0, 1.0], abs=0.06)
    assert report.rows[2].kinetic_temperature == pytest.approx(1.21, abs=0.03)
    assert report.rows[2].configurational_temperature == pytest.approx(1.15, abs=0.03)
    text = str(report)
    assert text.startswith("SGHMC: O(h) holds — O(h): bias 15.15% at lr, 0.83% at lr/16")
    assert "planted faults: the claim fails once every variance is off by 0.2" in text
    assert len(text.splitlines()) == 6


@pytest.mark.parametrize("cls", [Langevin, bent(Langevin)])
def test_the_power_is_that_of_real_faults(cls):
    """A variance too large by half of it passes, one too large by twice of it does not, read or simulated."""
    settings = dict(stiffness=(0.1,), refinement=4.0, **SMALL)
    power = Law().holds(cls, **settings).power
    assert Law().holds(changed(cls, noise=math.sqrt(1 + power / 2)), **settings)
    with pytest.raises(AssertionError, match="biased"):
        Law().holds(changed(cls, noise=math.sqrt(1 + 2 * power)), **settings)


def test_a_wide_tolerance_is_told_as_little_power():
    powers = [
        Law().holds(bent(Langevin), tolerance=x, stiffness=(0.2,), refinement=4.0, **SMALL).power for x in (0.03, 0.3)
    ]
    assert powers[0] < 0.1
    assert powers[1] > 0.25


def test_sizes_fit_into_the_time(monkeypatch):
    costs = {}
    monkeypatch.setattr(module, "_seconds_a_step", lambda factory, coordinates: costs[coordinates])
    for cost, cost_of_few, sizes in [(1e-4, 1e-5, (20_000, 500)), (1e-2, 1e-3, (1000, 500)), (1.0, 0.01, (1000, 200))]:
        costs.update({20_000: cost, 1000: cost_of_few})
        assert module._sizes(Langevin, 20.0) == dict(zip(("coordinates", "steps"), sizes, strict=True))
    assert module._sizes(Langevin, 1e-3)["steps"] == 50


def test_a_step_is_timed_with_what_is_measured_of_it():
    assert 1e-5 < module._seconds_a_step(Langevin, 100) < 1
    assert 1e-5 < module._seconds_a_step(hmc, 100) < 1
