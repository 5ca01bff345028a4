"""What `check_sampler` and `suggest_lr` ask of a sampler, and what they say of one that does not do it."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from learned_samplers import MCLMC, SGHMC, CyclicalSGMCMC, check_sampler, suggest_lr
from learned_samplers.approximations import IVON
from learned_samplers.checks.linear import ScriptedNoise, read_linear_step
from tests.harness import small_data, small_network

N = 100


class Own(torch.optim.Optimizer):
    def __init__(self, params, lr=0.1, num_data=N):
        super().__init__(params, {"lr": lr, "num_data": num_data})
        self.count, self.buffers = 0, {}

    def noise(self, p, variance):
        return math.sqrt(variance) * torch.randn_like(p)


class HiddenMomentum(Own):
    """A correct SGHMC, whose momentum the optimizer's state does not hold."""

    decay = 0.1

    @torch.no_grad()
    def step(self, closure=None):
        closure()
        for group in self.param_groups:
            eps = math.sqrt(group["lr"] / group["num_data"])
            for p in group["params"]:
                r = self.buffers.setdefault(p, torch.zeros_like(p))
                r.mul_(1 - self.decay).sub_(p.grad, alpha=eps * group["num_data"]).add_(self.noise(p, 2 * self.decay))
                p.add_(r, alpha=eps)


class EverySecond(Own):
    """SGLD whose noise comes at every second step: half of it in all."""

    @torch.no_grad()
    def step(self, closure=None):
        closure()
        self.count += 1
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad, alpha=group["lr"])
                if self.count % 2 == 0:
                    p.add_(self.noise(p, 2 * group["lr"] / group["num_data"]))


def test_a_momentum_outside_of_the_state_is_simulated_and_found_right():
    settings = dict(coordinates=4000, stiffness=(0.1, 0.3))
    report = check_sampler(HiddenMomentum, **settings)
    assert not report.linear
    assert (report.verdict, report.passed) == ("O(h)", True), report
    known = check_sampler(lambda p: SGHMC(p, 0.1, N), **settings)
    assert known.linear
    for found, expected in zip(report.results, known.results, strict=True):
        assert found.measured_variance == pytest.approx(expected.expected_variance, rel=0.03)


def test_a_planted_fault_beside_a_hidden_momentum_is_found():
    class Fault(HiddenMomentum):
        def noise(self, p, variance):
            return super().noise(p, 1.5 * variance)

    report = check_sampler(Fault, coordinates=4000, stiffness=(0.1, 0.3))
    assert (report.verdict, report.passed) == ("biased", False), report


def test_noise_at_every_second_step_is_no_linear_map():
    assert read_linear_step(EverySecond, 1.0) is None
    report = check_sampler(EverySecond, coordinates=2000, stiffness=(0.2,))
    assert (report.verdict, report.passed) == ("biased", False), report
    assert report.results[0].bias == pytest.approx(-0.5, abs=0.15)


def test_a_schedule_of_its_own_is_no_linear_map():
    def make(ratio):
        return lambda p: CyclicalSGMCMC(p, lr=0.1, num_data=N, cycle_length=10, exploration_ratio=ratio)

    assert read_linear_step(make(0.8), 1.0) is None
    assert read_linear_step(make(0.0), 1.0) is None
    settings = dict(coordinates=1000, steps=300, stiffness=(0.2,))
    sampling = check_sampler(make(0.0), **settings)
    assert not sampling.linear
    assert sampling.passed, sampling
    # Exploration cools the chain down and two steps do not warm it again: its law is wrong on a single mode, and only
    # what the sampling steps have is said of it.
    exploring = check_sampler(make(0.8), **settings)
    assert (exploring.verdict, exploring.passed) == ("biased", False)
    assert "it samples (is_sampling) in 20% of its steps, and only these count" in exploring.reason
    assert not math.isnan(exploring.results[0].refined_error)


def test_a_sampler_that_does_not_sample_yet_is_not_read():
    class Adapts(SGHMC):
        is_sampling = False

    assert read_linear_step(lambda p: SGHMC(p, 0.1, N), 1.0) is not None
    assert read_linear_step(lambda p: Adapts(p, 0.1, N), 1.0) is None


def test_suggest_lr_refuses_a_schedule_by_name():
    with pytest.raises(ValueError, match=r"same linear map at each step, which CyclicalSGMCMC does not; .* explores"):
        suggest_lr(
            small_network(),
            torch.nn.functional.cross_entropy,
            small_data(),
            lambda p: CyclicalSGMCMC(p, lr=0.1, num_data=N, cycle_length=10),
        )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: IVON(p, 0.1, N), r"check IVON: its parameters are the mean of a Gaussian and no chain.*precisions"),
        (lambda p: MCLMC(p, 0.1, N), r"check MCLMC: one direction spans all its weights \(two at least\)"),
    ],
)
def test_what_is_no_set_of_independent_chains_is_refused_by_name(make, message):
    with pytest.raises(ValueError, match="check_sampler cannot " + message):
        check_sampler(make)
    with pytest.raises(ValueError, match="suggest_lr cannot " + message):
        suggest_lr(small_network(), torch.nn.functional.cross_entropy, small_data(), make)


class NoArgument(Own):
    def step(self):
        pass


class CallsBackward(Own):
    def step(self, closure=None):
        self.zero_grad()
        closure().backward()


class Broken(Own):
    def step(self, closure=None):
        closure()
        raise self.error("not of the protocol")


@pytest.mark.parametrize("per_chain", [False, True])
@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (NoArgument, TypeError, r"NoArgument\.step must take a closure, as step\(self, closure=None\)"),
        (CallsBackward, RuntimeError, r"CallsBackward\.step calls backward\(\) on what the closure returns"),
    ],
)
def test_a_step_that_is_none_is_told_what_the_closure_does(make, error, message, per_chain):
    with pytest.raises(error, match=message) as caught:
        check_sampler(make, per_chain=per_chain, coordinates=10, steps=10)
    assert isinstance(caught.value.__cause__, error)


@pytest.mark.parametrize("error", [TypeError, RuntimeError])
def test_errors_of_the_step_itself_stay(error):
    make = type("Broken", (Broken,), {"error": error})
    with pytest.raises(error, match=r"^not of the protocol$"):
        check_sampler(make)


def test_draws_that_are_scripted_move_the_generator_on():
    """Samplers warn of a generator that stands still between steps, which here would be the check's own doing."""
    states = [torch.get_rng_state()]
    with ScriptedNoise({1: 1.0}):
        for draw in (lambda: torch.randn(2), lambda: torch.randn_like(torch.zeros(2)), torch.zeros(2).normal_):
            assert draw().eq(float(len(states) == 2)).all()
            states.append(torch.get_rng_state())
    assert not any(torch.equal(a, b) for a, b in itertools.pairwise(states))
