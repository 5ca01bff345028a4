"""`check_sampler` on samplers of others: good, biased, unstable, whole matrices, and what too little can say."""

import pytest
import torch

from learned_samplers import SGHMC, SGLD, SGNHT, check_sampler
from tests.learned_samplers.checks.own_samplers import Langevin, N, OwnRMSprop, bent, changed


@pytest.mark.parametrize(
    "draw",
    [
        torch.randn_like,
        lambda p: torch.randn(p.shape, dtype=p.dtype),
        lambda p: torch.empty_like(p).normal_(),
        lambda p: torch.empty_like(p).normal_(0.0, std=3.0) / 3,
    ],
)
def test_a_users_own_sampler(draw):
    report = check_sampler(changed(Langevin, draw=lambda self, p: draw(p)))
    assert report.linear
    assert report.verdict == "O(h)", report
    h, k = 1e-3, report.results[0].curvature
    assert report.results[0].expected_variance == pytest.approx(1 / (k * (1 - h * k / 2)))


class Heavy(SGLD):
    """Right when read coordinate by coordinate, wrong in a run."""

    def noise_like(self, p):
        return super().noise_like(p) * (1.2 if p.numel() > 100 else 1.0)


@pytest.mark.parametrize(
    ("make", "settings", "verdict", "reason"),
    [
        (changed(Langevin, noise=1.05), {}, "biased", "does not vanish"),
        (changed(Langevin, pull=0.05), {}, "O(h)", "mean"),
        (lambda p: Heavy(p, 0.1, N), {}, "O(h)", "off the Lyapunov solution"),
        (lambda p: SGLD(p, 0.1, N), dict(stiffness=(0.1, 2.5), steps=50), "unstable", ""),
        (lambda p: SGHMC(p, 0.1, N), dict(stiffness=(50.0,), steps=200), "unstable", ""),
        (lambda p: SGNHT(p, 0.1, N), dict(stiffness=(50.0,), steps=200), "unstable", ""),
        (lambda p: torch.optim.SGD(p, 0.1), dict(num_data=N, steps=50), "biased", ""),
        (
            lambda p: bent(Langevin)(p, 1e-3),
            dict(stiffness=(0.002,), coordinates=20, steps=200),
            "unresolved",
            "give more steps=",
        ),
        (Langevin, dict(coordinates=10, steps=20), "O(h)", "give more coordinates= or steps="),
    ],
)
def test_what_is_wrong_is_found(make, settings, verdict, reason):
    report = check_sampler(make, **settings)
    assert (report.verdict, report.passed, bool(report)) == (verdict, False, False), report
    assert reason in report.reason


def test_the_global_generator_and_the_result_are_reproducible():
    torch.manual_seed(3)
    before = torch.get_rng_state()

    def measured(**settings):
        report = check_sampler(lambda p: SGLD(p, 0.1, N), steps=50, **settings)
        return [r.measured_variance for r in report.results]

    one = measured()
    assert torch.equal(before, torch.get_rng_state())
    assert measured() == one
    assert measured(seed=1) != one


def test_a_simulated_bias_above_a_quarter_of_the_variance_says_nothing_of_how_it_scales():
    """SGLD's is s/(2 − s) at the stiffness s: 3 at 1.5, 0.60 at half of that, 0.23 at a quarter."""
    settings = dict(stiffness=(1.5,), coordinates=4000, steps=300)
    near, far = (check_sampler(bent(Langevin, 1e-3), refinement=r, **settings) for r in (2, 4))
    assert not near.linear
    assert (near.verdict, near.passed) == ("biased", False)
    assert "too large to say whether it vanishes with lr" in near.reason
    assert far.verdict == "O(h)", far
    exact = check_sampler(lambda p: SGLD(p, 0.1, N), stiffness=(1.5,), coordinates=200, refinement=2, tolerance=5.0)
    assert exact.verdict == "O(h)", "linear algebra knows better"


def test_rmsprop_without_its_correction_is_biased_however_large_the_step():
    """Li et al. (2016) leave Γ out: at lr 0.1 discretisation hides that (191 % and 33 %), at 0.01 it does not."""
    settings = dict(coordinates=4000, steps=400)
    for lr in (0.1, 0.01):
        report = check_sampler(lambda p, lr=lr: OwnRMSprop(p, lr), **settings)
        assert report.verdict == "biased", report
    assert "does not vanish" in report.reason


@pytest.mark.parametrize("seed", range(2))
def test_a_chain_that_mixes_slowly_is_not_called_wrong(seed):
    """The measured variance is off by more than the tolerance, and by less than its own standard error allows."""
    settings = dict(coordinates=4000, stiffness=(0.05, 0.2), steps=300, seed=seed)
    report = check_sampler(lambda p: SGHMC(p, 0.1, N, momentum_decay=1e-4), **settings)
    assert report.verdict == "O(h)"
    assert report, report
    for r in report.results:  # 4000 coordinates that hardly move: √(2/4000), or about half where θ and r share it
        assert 0.01 < r.standard_error / r.target_variance < 0.03
    assert "the simulation resolves" in report.reason


def test_a_bias_within_a_wide_tolerance_is_not_called_exact():
    hot = changed(bent(Langevin, 1e-5), noise=1.03)  # 6 % too much variance, and simulated
    report = check_sampler(hot, stiffness=(0.2,), steps=300, coordinates=4000, refinement=2, tolerance=0.2)
    assert not report.linear
    assert report.verdict != "exact"


MATRICES = dict(stiffness=(0.2, 0.5), refinement=4.0, tolerance=0.05, steps=120)


class Orthogonalised(SGHMC):
    """SGHMC whose matrices also move along the orthogonal factor of their gradient: right on vectors alone."""

    @torch.no_grad()
    def step(self, closure=None):
        loss = super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                if p.dim() == 2:
                    u, _, v = torch.linalg.svd(p.grad, full_matrices=False)
                    p.sub_(u @ v, alpha=4 * group["lr"] * p.std().item())
        return loss


def make(cls):
    return lambda params: cls(params, 0.1, N, momentum_decay=0.3)


@pytest.mark.parametrize("shape", [(50, 40), [2000], (4, 5, 10, 10)])
def test_a_sampler_of_single_weights_is_right_in_any_shape(shape):
    report = check_sampler(make(SGHMC), coordinates=shape, **MATRICES)
    assert report, report
    assert report.linear == (len(shape) == 1)


def test_what_is_done_to_whole_matrices_is_seen_on_matrices_alone():
    assert check_sampler(make(Orthogonalised), coordinates=2000, **MATRICES)
    report = check_sampler(make(Orthogonalised), coordinates=(50, 40), **MATRICES)
    assert not report
    assert report.verdict == "biased", report
