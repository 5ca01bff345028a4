"""Steps that `check_sampler` reads as linear maps, and steps that it simulates."""

import itertools
import math

import pytest
import torch

from learned_samplers import SGHMC, CyclicalSGMCMC, check_sampler
from learned_samplers.checks.linear import ScriptedNoise, read_linear_step
from tests.learned_samplers.checks.own_samplers import Langevin, N, Own, changed


class HiddenMomentum(Own):
    """A correct SGHMC, whose momentum the optimizer's state does not hold."""

    decay, heat = 0.1, 1.0

    def move(self, p, lr, n):
        eps = math.sqrt(lr / n)
        r = self.kept.setdefault(p, torch.zeros_like(p))
        r.mul_(1 - self.decay).sub_(p.grad, alpha=eps * n)
        r.add_(torch.randn_like(p), alpha=math.sqrt(2 * self.decay * self.heat))
        p.add_(r, alpha=eps)


class EverySecond(Langevin):
    """SGLD whose noise comes at every second step: half of it in all."""

    def draw(self, p):
        return torch.zeros_like(p) if self.count % 2 else torch.randn_like(p)


def test_a_momentum_outside_of_the_state_is_simulated_and_found_right():
    settings = dict(coordinates=10_000, stiffness=(0.1, 0.3), steps=200)
    report = check_sampler(HiddenMomentum, **settings)
    assert not report.linear
    assert (report.verdict, report.passed) == ("O(h)", True), report
    reference = check_sampler(lambda p: SGHMC(p, 0.1, N), **settings)
    assert reference.linear
    for measured, expected in zip(report.results, reference.results, strict=True):
        assert measured.measured_variance == pytest.approx(expected.expected_variance, rel=0.03)
    hot = check_sampler(changed(HiddenMomentum, heat=1.5), **settings)  # the planted fault
    assert (hot.verdict, hot.passed) == ("biased", False), hot


def test_noise_at_every_second_step_is_no_linear_map():
    assert read_linear_step(EverySecond, 1.0) is None
    report = check_sampler(EverySecond, coordinates=2000, stiffness=(0.2,))
    assert (report.verdict, report.passed) == ("biased", False), report
    assert report.results[0].bias == pytest.approx(-0.5, abs=0.15)


def test_a_schedule_of_its_own_is_no_linear_map():
    def make(ratio):
        return lambda p: CyclicalSGMCMC(p, lr=0.1, num_data=N, cycle_length=10, exploration_ratio=ratio)

    waiting = type("Waiting", (SGHMC,), {"is_sampling": False})  # does not sample yet
    for unread in (make(0.8), make(0.0), lambda p: waiting(p, 0.1, N)):
        assert read_linear_step(unread, 1.0) is None
    assert read_linear_step(lambda p: SGHMC(p, 0.1, N), 1.0) is not None
    settings = dict(coordinates=3000, steps=100, stiffness=(0.2,))
    sampling = check_sampler(make(0.0), **settings)
    assert not sampling.linear
    assert sampling.passed, sampling
    # Exploration cools the chain down and two steps do not warm it again: its law is wrong on a single mode, and only
    # what the sampling steps have is said of it.
    exploring = check_sampler(make(0.8), **settings)
    assert (exploring.verdict, exploring.passed) == ("biased", False)
    assert "it samples (is_sampling) in 20% of its steps, and only these count" in exploring.reason
    assert not math.isnan(exploring.results[0].refined_error)


def test_draws_that_are_scripted_move_the_generator_on():
    """Samplers warn of a generator that stands still between steps, which here would be the check's own doing."""
    states = [torch.get_rng_state()]
    with ScriptedNoise({1: 1.0}):
        for draw in (lambda: torch.randn(2), lambda: torch.randn_like(torch.zeros(2)), torch.zeros(2).normal_):
            assert draw().eq(float(len(states) == 2)).all()
            states.append(torch.get_rng_state())
    assert not any(torch.equal(a, b) for a, b in itertools.pairwise(states))
