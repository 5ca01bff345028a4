"""Coordinates that share their noise have the right variances and the wrong joint law: `check_sampler` finds it."""

from __future__ import annotations

import math
import re

import pytest
import torch

from learned_samplers import SGLD, SGNHT, check_sampler
from learned_samplers.checks.joint import JointLaw, JointMoment, correlated

N = 100


class Langevin(torch.optim.Optimizer):
    """SGLD with noise of unit variance from `draw`, made of ordinary draws."""

    def __init__(self, params, lr=0.1, num_data=N):
        super().__init__(params, {"lr": lr, "num_data": num_data})

    def draw(self, p, number):
        return torch.randn_like(p)

    @torch.no_grad()
    def step(self, closure=None):
        closure()
        for group in self.param_groups:
            for number, p in enumerate(group["params"]):
                p.sub_(p.grad, alpha=group["lr"])
                p.add_(self.draw(p, number), alpha=math.sqrt(2 * group["lr"] / group["num_data"]))


class OneNumber(Langevin):
    def draw(self, p, number):
        return torch.randn(1, dtype=p.dtype)


class Neighbours(Langevin):
    def draw(self, p, number):
        return torch.randn(len(p) // 2 + 1, dtype=p.dtype).repeat_interleave(2)[: len(p)]


class Opposites(Langevin):
    """The second half has the noise of the first, with the other sign."""

    def draw(self, p, number):
        half = torch.randn((len(p) + 1) // 2, dtype=p.dtype)
        return torch.cat([half, -half])[: len(p)]


class Reseeded(Langevin):
    steps = 0

    def draw(self, p, number):
        self.steps += number == 0
        return torch.randn(p.shape, generator=torch.Generator().manual_seed(self.steps), dtype=p.dtype)


class Weakly(Langevin):
    """A correlation of 1 % between all: no two of them show it, their sum does."""

    def draw(self, p, number):
        return 0.99**0.5 * torch.randn_like(p) + 0.1 * torch.randn(1, dtype=p.dtype)


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (OneNumber, r"sums over 4,000 neighbours have [\d,.]+ ± [\d.]+ times the variance"),
        (Neighbours, r"\+(49|50)\.\d% ± 0.\d% between those 1 apart, at the curvature"),
        (Opposites, r"-(99|100)\.\d% ± 0.\d% between those 2000 apart, at the curvature"),
        (Reseeded, r"\+8\d\.\d% ± 0.\d% between those at the same place of the tensors of curvatures 200 and 500"),
        (Weakly, r"sums over [\d,]+ neighbours have [\d,.]+ ± [\d.]+ times the variance"),
    ],
)
@pytest.mark.parametrize("bend", [0.0, 1e-3])
def test_shared_noise_is_found(cls, message, bend):
    """Also where the step is not linear and has to be simulated."""

    class Bent(cls):
        @torch.no_grad()
        def step(self, closure=None):
            super().step(closure)
            for p in self.param_groups[0]["params"]:
                p.sub_(bend * p.abs())

    report = check_sampler(Bent, coordinates=4000)
    assert report.linear == (not bend)
    assert (report.verdict, report.passed) == ("biased", False), report
    assert report.reason.startswith("coordinates are correlated: ")
    assert torch.tensor([r.bias for r in report.results]).abs().max() < 0.8  # which the variances alone do not say
    assert re.search(message, report.reason), report.reason


@pytest.mark.parametrize("seed", range(5))
def test_independent_coordinates_are_not_called_correlated(seed):
    """A thermostat that all share correlates their squares, not the coordinates."""
    for make in (Langevin, lambda p: SGLD(p, 0.1, N), lambda p: SGNHT(p, 0.1, N)):
        report = check_sampler(make, coordinates=1000, steps=200, refinement=1.5, seed=seed, tolerance=0.05)
        assert report.passed, report


@pytest.mark.parametrize(("size", "decay"), [(2000, (0.95, 0.5)), (301, (0.99, 0.8)), (50, (0.9,)), (2, (0.9,))])
def test_errors_are_those_of_independent_chains(size, decay):
    """Over 30 runs of 60 states the largest of them is within its bound, and where there are many not far below."""
    torch.manual_seed(0)
    largest = {6.0: 0.0, 10.0: 0.0}
    for _ in range(30):
        law = JointLaw(60, decay)
        states = [torch.randn(size) for _ in decay]
        for _ in range(60):
            for x, keep in zip(states, decay, strict=True):
                x.mul_(keep).add_(torch.randn(size), alpha=math.sqrt(1 - keep**2))
            law.see(states)
        for moment in law.moments():
            largest[moment.errors] = max(largest[moment.errors], abs(moment.value) / moment.error)
    assert largest[6.0] < 6
    assert largest[10.0] < 8
    if size > 1000:
        assert largest[6.0] > 4
        assert largest[10.0] > 2


def test_a_correlation_that_vanishes_with_lr_is_not_told():
    coarse = JointMoment("{}", 0.4, 1e-3, 6.0)

    def refined(value):
        return [JointMoment("{}", value, 1e-3, 6.0)]

    assert correlated([coarse], None, 0.02, 4.0) is coarse
    assert correlated([coarse], refined(0.1), 0.02, 4.0) is None
    assert correlated([coarse], refined(0.35), 0.02, 4.0) is coarse
    assert correlated([JointMoment("{}", 0.01, 1e-3, 6.0)], None, 0.02, 4.0) is None, "within the tolerance"
    assert correlated([JointMoment("{}", 0.4, 0.1, 6.0)], None, 0.02, 4.0) is None, "within its errors"


def test_a_chain_that_does_not_move_has_no_correlations():
    law = JointLaw(10, [1.0])
    for _ in range(10):
        law.see([torch.zeros(5)])
    assert law.moments() == []


def test_expected_variances_that_no_simulation_confirms_do_not_pass():
    report = check_sampler(Langevin, coordinates=10, steps=20)
    assert (report.verdict, report.passed) == ("O(h)", False)
    assert "expected variances resolves" in report.reason
    assert "give more coordinates= or steps=" in report.reason
    assert check_sampler(Langevin, coordinates=4000, steps=100)
