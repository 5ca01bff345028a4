"""`check_sampler` on samplers of others: good, biased, unstable, and none at all."""

from __future__ import annotations

import math

import pytest
import torch

from learned_samplers import SGHMC, SGLD, SGNHT, check_sampler
from learned_samplers.checks import report


class Langevin(torch.optim.Optimizer):
    """A user's own sampler, which knows nothing of this library: θ ← θ − h·∇U + noise·√(2h)·ξ."""

    def __init__(self, params, lr, noise=1.0, pull=0.0, draw="randn_like"):
        super().__init__(params, dict(lr=lr, noise=noise, pull=pull, draw=draw))

    @torch.no_grad()
    def step(self, closure=None):
        if closure is not None:
            closure()
        for group in self.param_groups:
            for p in group["params"]:
                xi = {
                    "randn_like": lambda p=p: torch.randn_like(p),
                    "randn": lambda p=p: torch.randn(p.shape, dtype=p.dtype),
                    "normal_": lambda p=p: torch.empty_like(p).normal_(),
                }[group["draw"]]()
                p.add_(p.grad, alpha=-group["lr"])
                p.add_(xi, alpha=group["noise"] * (2 * group["lr"] / 100) ** 0.5)
                p.add_(group["pull"] * group["lr"])


@pytest.mark.parametrize("draw", ["randn_like", "randn", "normal_"])
def test_a_users_own_sampler(draw):
    report = check_sampler(lambda p: Langevin(p, 0.1, draw=draw), num_data=100)
    assert report.linear
    assert report.verdict == "O(h)", report
    h, k = 1e-3, report.results[0].curvature
    assert report.results[0].expected_variance == pytest.approx(1 / (k * (1 - h * k / 2)))


def test_too_much_noise_is_found():
    report = check_sampler(lambda p: Langevin(p, 0.1, noise=1.05), num_data=100)
    assert report.verdict == "biased"
    assert not report
    assert "does not vanish" in report.reason


def test_a_shifted_mean_is_found():
    report = check_sampler(lambda p: Langevin(p, 0.1, pull=0.05), num_data=100)
    assert not report
    assert "mean" in report.reason


def test_an_unstable_chain_is_found():
    report = check_sampler(lambda p: SGLD(p, 0.1, 100), stiffness=(0.1, 2.5), steps=50)
    assert report.verdict == "unstable"
    assert not report


def test_noise_that_differs_from_the_linear_reading_is_found():
    """Right when read coordinate by coordinate, wrong in a run: one draw shared by pairs of coordinates at random."""

    class Heavy(SGLD):
        def noise_like(self, p):
            return super().noise_like(p) * (1.2 if p.numel() > 100 else 1.0)

    report = check_sampler(lambda p: Heavy(p, 0.1, 100))
    assert not report
    assert "off the Lyapunov solution" in report.reason


def test_the_report_reads_like_a_table():
    report = check_sampler(lambda p: SGHMC(p, 0.1, 100), stiffness=(0.1,), steps=100)
    text = str(report)
    assert text.startswith("SGHMC at lr 0.1, temperature 1 (linear step, Lyapunov equation)")
    assert "verdict: O(h) — passed" in text
    assert len(text.splitlines()) == 5
    assert "100" in text.splitlines()[-1]


def test_the_global_generator_and_the_result_are_reproducible():
    torch.manual_seed(3)
    before = torch.get_rng_state()

    def measured(**settings):
        report = check_sampler(lambda p: SGLD(p, 0.1, 100), steps=50, **settings)
        return [r.measured_variance for r in report.results]

    one = measured()
    assert torch.equal(before, torch.get_rng_state())
    assert measured() == one
    assert measured(seed=1) != one


@pytest.mark.parametrize(
    ("factory", "arguments", "error", "message"),
    [
        (lambda p: Langevin(p, 0.1), {}, ValueError, "num_data must be given"),
        (lambda p: SGLD(p, 0.1, 10), {"coordinates": 1}, ValueError, "coordinates"),
        (lambda p: SGLD(p, 0.1, 10), {"tolerance": 0}, ValueError, "tolerance"),
        (lambda p: SGLD(p, 0.1, 10), {"refinement": 1}, ValueError, "refinement"),
        (lambda p: SGLD(p, 0.1, 10), {"gradient_noise": -1}, ValueError, "gradient_noise"),
        (lambda p: SGLD(p, 0.1, 10), {"curvature": [0.0]}, ValueError, "curvature"),
        (lambda p: SGLD(p, 0.1, 10, temperature=0), {}, ValueError, "temperature"),
    ],
)
def test_bad_input(factory, arguments, error, message):
    with pytest.raises(error, match=message):
        check_sampler(factory, **arguments)


def test_draws_with_a_mean_and_a_standard_deviation_are_read_right():
    class Scaled(Langevin):
        @torch.no_grad()
        def step(self, closure=None):
            closure()
            for group in self.param_groups:
                for p in group["params"]:
                    p.add_(p.grad, alpha=-group["lr"])
                    p.add_(torch.empty_like(p).normal_(0.0, std=(2 * group["lr"] / 100) ** 0.5))

    report = check_sampler(lambda p: Scaled(p, 0.1), num_data=100)
    assert report.linear
    assert report.verdict == "O(h)", report


def test_no_noise_at_all_is_biased():
    report = check_sampler(lambda p: torch.optim.SGD(p, 0.1), num_data=100, steps=50)
    assert report.verdict == "biased"


def test_a_simulated_bias_above_half_of_the_variance_says_nothing_of_how_it_scales():
    """SGLD's is s/(2 − s) at the stiffness s: 19 at 1.9, .90 at half of that, .31 at a quarter."""

    class Bent(Langevin):
        @torch.no_grad()
        def step(self, closure=None):
            super().step(closure)
            for p in self.param_groups[0]["params"]:
                p.sub_(1e-3 * p.abs())  # no longer linear, hardly another law

    settings = dict(num_data=100, stiffness=(1.9,), coordinates=4000, steps=300)
    near, far = (check_sampler(lambda p: Bent(p, 0.1), refinement=r, **settings) for r in (2, 4))
    assert not near.linear
    assert (near.verdict, near.passed) == ("biased", False)
    assert "too large to say whether it vanishes with lr" in near.reason
    assert far.verdict == "O(h)", far
    exact = check_sampler(lambda p: SGLD(p, 0.1, 100), stiffness=(1.9,), coordinates=200, refinement=2, tolerance=5.0)
    assert exact.verdict == "O(h)", "linear algebra knows better"


def test_a_bias_that_is_seen_may_not_vanish_where_nothing_is_resolved():
    """At lr the variance is far too large; at a quarter of it, within what so few draws can say (found on a card)."""

    def judged(error):
        result = report.CurvatureResult(1.0, 1.0, math.nan, 8.7, 1.6, 0.0, 1.0, 1.0, 7.7, 1.1, error)
        return report.judge([result], False, False, 0.05, 4.0, False)

    assert judged(0.5)[:2] == ("unresolved", False)
    assert "the simulation resolves 200% only, and found biases of 770% at lr and 110% at lr/4" in judged(0.5)[2]
    assert judged(0.02)[:2] == ("biased", False)


def test_hmc_is_checked_chain_by_chain_without_being_told():
    from learned_samplers import HMC

    settings = dict(stiffness=(0.5,), coordinates=4000, steps=150, refinement=1.5)
    assert check_sampler(lambda p: HMC(p, 0.1, 100), **settings).verdict == "exact"


@pytest.mark.parametrize("make", [lambda p: SGHMC(p, 0.1, 100), lambda p: SGNHT(p, 0.1, 100)])
def test_a_chain_that_leaves_the_numbers_is_unstable(make):
    assert check_sampler(make, stiffness=(50.0,), steps=200).verdict == "unstable"


@pytest.mark.parametrize(("arguments", "message"), [({"stiffness": ()}, "stiffness"), ({"steps": -1}, "steps")])
def test_bad_numbers(arguments, message):
    with pytest.raises(ValueError, match=message):
        check_sampler(lambda p: SGLD(p, 0.1, 100), **arguments)


def test_a_factory_that_makes_no_optimizer():
    with pytest.raises(TypeError, match="factory must return an optimizer, got list"):
        check_sampler(lambda p: p)


@pytest.mark.parametrize("seed", range(3))
def test_a_chain_that_mixes_slowly_is_not_called_wrong(seed):
    """Its measured variance is off by more than the tolerance, and by less than its own standard error allows."""
    settings = dict(coordinates=4000, stiffness=(0.05, 0.2), steps=300, seed=seed)
    report = check_sampler(lambda p: SGHMC(p, 0.1, 100, momentum_decay=1e-4), **settings)
    assert report, report
    assert report.verdict == "O(h)"
    for r in report.results:  # 4000 coordinates that hardly move: √(2/4000), or about half where θ and r share it
        assert 0.01 < r.standard_error / r.target_variance < 0.03
    assert "the simulation resolves" in report.reason


def test_too_many_steps_are_refused_with_their_number_before_any_is_run():
    with pytest.raises(ValueError, match=r"stiffness 5e-07 asks for 20,000,000 steps .* hours .*; give steps="):
        check_sampler(lambda p: SGHMC(p, 0.1, 100), stiffness=(5e-7, 0.5))
    assert check_sampler(lambda p: SGHMC(p, 0.1, 100), stiffness=(5e-7, 0.5), steps=20, coordinates=8000)


def test_a_bias_within_a_wide_tolerance_is_not_called_exact():
    class Hot(SGLD):
        """6 % too much variance, and a step that is not linear, so that it has to be simulated."""

        def noise_like(self, p):
            return super().noise_like(p) * 1.03 + 0.0 * p.abs()

        def evaluate(self, closure):
            evaluation = super().evaluate(closure)
            for inputs in evaluation.groups:
                inputs.gradients = [g + 1e-12 * g.abs() for g in inputs.gradients]
            return evaluation

    settings = dict(stiffness=(0.2,), steps=300, coordinates=4000, refinement=2, tolerance=0.2)
    report = check_sampler(lambda p: Hot(p, 0.1, 100), **settings)
    assert not report.linear or report.verdict != "exact"
    assert report.verdict != "exact"


class Bent(Langevin):
    """No longer linear, so that it has to be simulated; hardly another law."""

    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        for p in self.param_groups[0]["params"]:
            p.sub_(1e-3 * p.abs())


def test_only_the_steps_count_in_which_a_sampler_samples():
    """One that is somewhere else at every second step, and says so."""

    class Explores(Bent):
        is_sampling = True

        @torch.no_grad()
        def step(self, closure=None):
            for p in self.param_groups[0]["params"]:
                p.mul_(3.0 if self.is_sampling else 1 / 3.0)
            self.is_sampling = not self.is_sampling
            if self.is_sampling:
                super().step(closure)

    settings = dict(num_data=100, stiffness=(0.2,), coordinates=4000, steps=300)
    report = check_sampler(lambda p: Explores(p, 0.1), **settings)
    assert not report.linear
    assert abs(report.results[0].bias) < 0.2


def test_a_sampler_that_hardly_samples_is_told_so():
    class Never(Bent):
        is_sampling = False

    with pytest.raises(ValueError, match=r"Never does not sample \(is_sampling\) in one of 10 of its steps"):
        check_sampler(lambda p: Never(p, 0.1), num_data=100, steps=20, coordinates=50)


def test_what_too_short_a_simulation_does_not_resolve_is_not_passed():
    report = check_sampler(lambda p: Bent(p, 1e-3), num_data=100, stiffness=(0.002,), coordinates=20, steps=200)
    assert (report.verdict, report.passed) == ("unresolved", False), report
    assert "give more steps=" in report.reason
