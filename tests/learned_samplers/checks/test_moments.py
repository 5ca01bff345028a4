"""Faults that variances alone do not show: chains that hardly move, noise that is not normal, kept or shared."""

import math
import re

import pytest
import torch

from learned_samplers import SGHMC, SGLD, SGNHT, check_sampler
from learned_samplers.checks.linear import read_linear_step
from learned_samplers.checks.moments import JointLaw, JointMoment, Kurtosis, correlated, remembered
from tests.harness import UNBIASED
from tests.learned_samplers.checks.own_samplers import Langevin, N, Own, bent, changed


class Slow(Own):
    """SGLD with lr/N where lr is meant, and ``heat`` times the noise; drawn so that its step is not read."""

    heat = 4.0

    def move(self, p, lr, n):
        noise = torch.normal(0.0, math.sqrt(2 * self.heat * lr) / n, p.shape)
        p.sub_(p.grad, alpha=lr / n).add_(noise)


class TwoNoises(Own):
    """SGLD whose noise is the sum of two, which come from one draw or from two."""

    at_once = True

    def move(self, p, lr, n):
        one, two = torch.randn(2, *p.shape, dtype=p.dtype) if self.at_once else (torch.randn_like(p) for _ in range(2))
        p.sub_(p.grad, alpha=lr).add_(one + two, alpha=math.sqrt(lr / n))


class LeimkuhlerMatthews(Own):
    """Exact on Gaussians: each noise is used twice, and in between it is kept in ``state`` or elsewhere."""

    elsewhere = True

    def move(self, p, lr, n):
        kept, key = (self.kept, p) if self.elsewhere else (self.state[p], "before")
        new, old = torch.randn_like(p), kept.get(key, torch.zeros_like(p))
        p.sub_(p.grad, alpha=lr).add_(new + old, alpha=math.sqrt(lr / n / 2))
        kept[key] = new


class Drawn(UNBIASED):
    """The unbiased sampler at a = 1, with any noise of unit variance."""

    def __init__(self, params):
        super().__init__(params, 0.1, N, momentum_decay=1.0)

    def noise_like(self, p):
        return self.made(super().noise_like(p))


@pytest.mark.parametrize("heat", [1.0, 4.0])
def test_a_chain_that_hardly_moves_is_unresolved_whatever_its_noise(heat):
    settings = dict(num_data=100.0 * N, coordinates=2000, stiffness=(0.05, 0.5), steps=200, refinement=2, tolerance=0.1)
    report = check_sampler(lambda p: changed(Slow, heat=heat)(p, num_data=100 * N), **settings)
    assert not report.linear
    assert (report.verdict, report.passed) == ("unresolved", False), report
    assert "the chain has not forgotten where it began" in report.reason
    assert report.results[0].remembered > 0.9


def test_the_stiffest_curvature_does_not_answer_for_the_softest():
    """SGHMC of high friction, bent: it moves along 2.0 and hardly along 0.001."""

    settings = dict(coordinates=1000, steps=200, tolerance=0.1, refinement=2)
    report = check_sampler(lambda p: bent(SGHMC)(p, 0.1, N, momentum_decay=1.0), stiffness=(0.5, 1e-3), **settings)
    assert report.verdict == "unresolved", report
    assert report.results[0].remembered < 0.01 < 0.4 < report.results[1].remembered
    assert check_sampler(lambda p: bent(SGHMC)(p, 0.1, N, momentum_decay=1.0), stiffness=(0.5, 0.05), **settings).passed


def test_what_is_remembered_is_the_share_of_the_first_variance():
    torch.manual_seed(0)
    start = torch.randn(20_000)
    fresh = [torch.randn(20_000) for _ in range(50)]
    assert remembered(start, fresh) == 0
    for c in (0.3, -0.7, 1.0):  # a chain that swings to the other side has forgotten nothing
        states = [c * start + math.sqrt(1 - c**2) * x for x in fresh]
        assert remembered(start, states) == pytest.approx(c**2, abs=5e-3)
    assert remembered(start, [torch.zeros(20_000)]) == 0, "a chain that falls to the mode has forgotten all"
    for _ in range(100):  # chance among few coordinates is no memory
        assert remembered(torch.randn(20), [torch.randn(20) for _ in range(10)]) == 0


def test_two_noises_of_one_draw_are_not_taken_for_one():
    apart, at_once = changed(TwoNoises, at_once=False), TwoNoises
    separate = read_linear_step(apart, 1.0)
    assert separate is not None
    assert separate.noise.shape == (1, 2)
    assert read_linear_step(at_once, 1.0) is None
    settings = dict(coordinates=2000, stiffness=(0.2, 0.5), steps=300)
    report = check_sampler(at_once, **settings)
    assert not report.linear
    assert report.passed, report
    for measured, expected in zip(report.results, check_sampler(apart, **settings).results, strict=True):
        assert measured.measured_variance == pytest.approx(expected.expected_variance, rel=0.02)


def test_a_noise_that_is_kept_outside_of_the_state_is_not_read():
    inside, outside = changed(LeimkuhlerMatthews, elsewhere=False), LeimkuhlerMatthews
    assert read_linear_step(inside, 1.0).names == ("theta", "before")
    assert read_linear_step(outside, 1.0) is None
    settings = dict(coordinates=2000, stiffness=(0.2, 0.5), steps=300)
    report = check_sampler(outside, **settings)
    assert (report.verdict, report.passed) == ("no bias seen", True), report
    assert check_sampler(inside, **settings).verdict == "exact"


NOT_NORMAL = {
    "signs": lambda xi: xi.sign(),
    "uniform": lambda xi: (2 * torch.special.ndtr(xi) - 1) * math.sqrt(3),
    "cut off": lambda xi: xi.clamp(-1, 1) / 0.7184,
    "heavy tails": lambda xi: xi * xi.square() / math.sqrt(15),
    "a product": lambda xi: xi * torch.randn_like(xi),
}


@pytest.mark.parametrize("name", NOT_NORMAL)
def test_noise_that_is_not_normal_is_never_exact(name):
    """Sums of such noise are normal where steps are small: the law is wrong by O(h), and no variance says so."""
    settings = dict(stiffness=(0.5, 1.0), coordinates=4000, steps=120)
    report = check_sampler(changed(Drawn, made=staticmethod(NOT_NORMAL[name])), **settings)
    assert max(abs(r.bias) for r in report.results) < 0.05
    assert (report.verdict, report.passed) == ("O(h)", True), report
    assert "of a Gaussian 3" in report.reason
    assert all(r.kurtosis > 3.3 if name in ("heavy tails", "a product") else r.kurtosis < 2.9 for r in report.results)


def test_noise_that_is_normal_only_where_the_step_is_read_is_found():
    made = staticmethod(lambda xi: xi.sign() if xi.numel() > 100 else xi)
    report = check_sampler(changed(Drawn, made=made), stiffness=(0.5,), coordinates=4000)
    assert report.linear
    assert (report.verdict, report.passed) == ("biased", False), report
    assert "the law is not Gaussian: kurtosis 2.5" in report.reason


@pytest.mark.parametrize(("size", "steps", "keep"), [(3, 20, 0.9), (100, 10, 0.99), (1000, 50, 0.9), (2000, 10, 1.0)])
def test_the_kurtosis_of_normal_numbers_is_three_within_its_error(size, steps, keep):
    torch.manual_seed(0)
    for variance in (1.0, 9.0):  # which may change in time
        off = []
        for _ in range(50):
            x, kurtosis = torch.randn(size), Kurtosis(torch.zeros(size))
            for t in range(steps):
                x = keep * x + math.sqrt(1 - keep**2) * torch.randn(size)
                kurtosis.see(x * variance ** (t % 2) + 5.0)
            value, error = kurtosis.result()
            off.append((value - 3) / max(error, 1e-3))
        assert max(map(abs, off)) < 6
        assert abs(sum(off)) / 50 < 1


@pytest.mark.parametrize("make", [SGLD, SGHMC, SGNHT])
def test_right_samplers_pass_where_they_are_simulated(make):
    """At the default number of steps, with a step that is bent too little to move the law."""
    report = check_sampler(lambda p: bent(make)(p, 0.1, N), coordinates=500, tolerance=0.05, refinement=2)
    assert not report.linear
    assert report.passed, report
    assert all(r.remembered == 0 for r in report.results)
    assert "kurtosis" not in report.reason


class OneNumber(Langevin):
    def draw(self, p):
        return torch.randn(1, dtype=p.dtype)


class Neighbours(Langevin):
    def draw(self, p):
        return torch.randn(len(p) // 2 + 1, dtype=p.dtype).repeat_interleave(2)[: len(p)]


class Opposites(Langevin):
    """The second half has the noise of the first, with the other sign."""

    def draw(self, p):
        half = torch.randn((len(p) + 1) // 2, dtype=p.dtype)
        return torch.cat([half, -half])[: len(p)]


class Reseeded(Langevin):
    def draw(self, p):
        return torch.randn(p.shape, generator=torch.Generator().manual_seed(self.count), dtype=p.dtype)


class Weakly(Langevin):
    """A correlation of 1 % between all: no two of them show it, their sum does."""

    def draw(self, p):
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
    report = check_sampler(changed(cls, bend=bend), coordinates=4000, steps=150)
    assert report.linear == (not bend)
    assert (report.verdict, report.passed) == ("biased", False), report
    assert report.reason.startswith("coordinates are correlated: ")
    assert torch.tensor([r.bias for r in report.results]).abs().max() < 0.8  # which the variances alone do not say
    assert re.search(message, report.reason), report.reason


@pytest.mark.parametrize("seed", range(3))
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


def test_a_correlation_that_vanishes_with_lr_is_not_told_nor_that_of_a_chain_that_does_not_move():
    law = JointLaw(10, [1.0])
    for _ in range(10):
        law.see([torch.zeros(5)])
    assert law.moments() == []
    coarse = JointMoment("{}", 0.4, 1e-3, 6.0)

    def refined(value):
        return [JointMoment("{}", value, 1e-3, 6.0)]

    assert correlated([coarse], None, 0.02, 4.0) is coarse
    assert correlated([coarse], refined(0.1), 0.02, 4.0) is None
    assert correlated([coarse], refined(0.35), 0.02, 4.0) is coarse
    assert correlated([JointMoment("{}", 0.01, 1e-3, 6.0)], None, 0.02, 4.0) is None, "within the tolerance"
    assert correlated([JointMoment("{}", 0.4, 0.1, 6.0)], None, 0.02, 4.0) is None, "within its errors"
