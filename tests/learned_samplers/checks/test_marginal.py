"""A chain that hardly moves, noise that is not normal, noise kept from before: what the variance alone does not say."""

from __future__ import annotations

import math

import pytest
import torch

from learned_samplers import BAOA, SGHMC, SGLD, SGNHT, check_sampler
from learned_samplers.checks.linear import read_linear_step
from learned_samplers.checks.marginal import Kurtosis, remembered
from learned_samplers.checks.report import CurvatureResult, judge

N = 100


class Own(torch.optim.Optimizer):
    def __init__(self, params, lr=0.1, num_data=N):
        super().__init__(params, {"lr": lr, "num_data": num_data})
        self.kept = {}

    @torch.no_grad()
    def step(self, closure=None):
        closure()
        for group in self.param_groups:
            for p in group["params"]:
                self.move(p, group["lr"], group["num_data"])


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


class Drawn(BAOA):
    """BAOA at a = 1 with any noise of unit variance."""

    def __init__(self, params):
        super().__init__(params, 0.1, N, momentum_decay=1.0)

    def noise_like(self, p):
        return self.made(super().noise_like(p))


def planted(cls, **attributes):
    return type(cls.__name__, (cls,), attributes)


@pytest.mark.parametrize("heat", [1.0, 4.0])
def test_a_chain_that_hardly_moves_is_unresolved_whatever_its_noise(heat):
    settings = dict(num_data=100.0 * N, coordinates=2000, stiffness=(0.05, 0.5), steps=200, refinement=2, tolerance=0.1)
    report = check_sampler(lambda p: planted(Slow, heat=heat)(p, num_data=100 * N), **settings)
    assert not report.linear
    assert (report.verdict, report.passed) == ("unresolved", False), report
    assert "the chain has not forgotten where it began" in report.reason
    assert report.results[0].remembered > 0.9


def test_the_stiffest_curvature_does_not_answer_for_the_softest():
    """SGHMC of high friction, bent: it moves along 2.0 and hardly along .001."""

    class Bent(SGHMC):
        @torch.no_grad()
        def step(self, closure=None):
            super().step(closure)
            for p in self.param_groups[0]["params"]:
                p.sub_(1e-5 * p.abs())

    settings = dict(coordinates=1000, steps=200, tolerance=0.1, refinement=2)
    report = check_sampler(lambda p: Bent(p, 0.1, N, momentum_decay=1.0), stiffness=(0.5, 1e-3), **settings)
    assert report.verdict == "unresolved", report
    assert report.results[0].remembered < 0.01 < 0.4 < report.results[1].remembered
    assert check_sampler(lambda p: Bent(p, 0.1, N, momentum_decay=1.0), stiffness=(0.5, 0.05), **settings).passed


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
    apart, at_once = planted(TwoNoises, at_once=False), TwoNoises
    known = read_linear_step(apart, 1.0)
    assert known is not None
    assert known.noise.shape == (1, 2)
    assert read_linear_step(at_once, 1.0) is None
    settings = dict(coordinates=2000, stiffness=(0.2, 0.5), steps=300)
    report = check_sampler(at_once, **settings)
    assert not report.linear
    assert report.passed, report
    for found, expected in zip(report.results, check_sampler(apart, **settings).results, strict=True):
        assert found.measured_variance == pytest.approx(expected.expected_variance, rel=0.02)


def test_a_noise_that_is_kept_outside_of_the_state_is_not_read():
    inside, outside = planted(LeimkuhlerMatthews, elsewhere=False), LeimkuhlerMatthews
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
    """Its sums are normal where steps are small: the law is wrong by O(h), and no variance says so."""
    settings = dict(stiffness=(0.5, 1.0), coordinates=2000, steps=300)
    report = check_sampler(planted(Drawn, made=staticmethod(NOT_NORMAL[name])), **settings)
    assert max(abs(r.bias) for r in report.results) < 0.05
    assert (report.verdict, report.passed) == ("O(h)", True), report
    assert "of a Gaussian 3" in report.reason
    assert all(r.kurtosis > 3.3 if name in ("heavy tails", "a product") else r.kurtosis < 2.9 for r in report.results)


def test_noise_that_is_normal_only_where_the_step_is_read_is_found():
    made = staticmethod(lambda xi: xi.sign() if xi.numel() > 100 else xi)
    report = check_sampler(planted(Drawn, made=made), stiffness=(0.5,), coordinates=4000)
    assert report.linear
    assert (report.verdict, report.passed) == ("biased", False), report
    assert "the law is not Gaussian: kurtosis 2.5" in report.reason


def test_a_kurtosis_that_stays_is_a_bias():
    """Of a law that has the right variance at all lr, and no other moment."""

    def judged(coarse, fine, error=0.01):
        right = (1.0, 1.0, math.nan, 1.0, 1e-3, 0.0, 1.0, 1.0, 0.0, 0.0, 1e-3)
        result = CurvatureResult(*right, coarse, error, fine, error)
        return judge([result], False, False, 0.02, 4.0, True)

    assert judged(3.01, 2.99)[:2] == ("exact", True)
    assert judged(2.0, 2.7)[:2] == ("O(h)", True)
    assert "kurtosis 2.00 at lr, 2.70 at lr/4, of a Gaussian 3" in judged(2.0, 2.7)[2]
    assert judged(2.0, 2.1)[:2] == ("biased", False)
    assert judged(3.0, 2.5)[:2] == ("biased", False)
    assert judged(2.0, 2.1, error=0.5)[:2] == ("exact", True), "within its error"


@pytest.mark.parametrize(("size", "steps", "keep"), [(3, 20, 0.9), (100, 10, 0.99), (1000, 50, 0.9), (2000, 10, 1.0)])
def test_the_kurtosis_of_normal_numbers_is_three_within_its_error(size, steps, keep):
    torch.manual_seed(0)
    for variance in (1.0, 9.0):  # which may change in time
        off = []
        for _ in range(50):
            x, found = torch.randn(size), Kurtosis(torch.zeros(size))
            for t in range(steps):
                x = keep * x + math.sqrt(1 - keep**2) * torch.randn(size)
                found.see(x * variance ** (t % 2) + 5.0)
            value, error = found.result()
            off.append((value - 3) / max(error, 1e-3))
        assert max(map(abs, off)) < 6
        assert abs(sum(off)) / 50 < 1


@pytest.mark.parametrize("make", [SGLD, SGHMC, BAOA, SGNHT])
def test_right_samplers_pass_where_they_are_simulated(make):
    """At the default number of steps, with a step that is bent too little to move the law."""

    class Bent(make):
        @torch.no_grad()
        def step(self, closure=None):
            super().step(closure)
            for p in self.param_groups[0]["params"]:
                p.sub_(1e-5 * p.abs())

    report = check_sampler(lambda p: Bent(p, 0.1, N), coordinates=500, tolerance=0.05, refinement=2)
    assert not report.linear
    assert report.passed, report
    assert all(r.remembered == 0 for r in report.results)
    assert "kurtosis" not in report.reason
