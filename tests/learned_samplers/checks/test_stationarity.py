"""Each sampler leaves the law that its closed form says, and planted faults are found."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from learned_samplers import HMC, PSGLD, SGHMC, SGLD, SGNHT, check_sampler
from learned_samplers.classical.psgld import psgld_rule
from learned_samplers.classical.sghmc import sghmc_rule
from learned_samplers.classical.sgld import sgld_rule
from learned_samplers.classical.sgnht import sgnht_rule
from tests.harness import sghmc_variance, sgld_variance

N = 100
CASES = [(lr, t, v) for lr in (0.01, 1.0) for t in (1.0, 0.1) for v in (0.0, 30.0)]


@pytest.mark.parametrize(("lr", "temperature", "noise"), CASES)
def test_sgld_has_its_closed_form_variance(lr, temperature, noise):
    report = check_sampler(lambda p: SGLD(p, lr, N, temperature=temperature), gradient_noise=noise)
    assert report, report
    for r in report.results:
        closed = sgld_variance(r.curvature, lr / N, temperature, noise)
        assert r.expected_variance == pytest.approx(closed, rel=1e-9)
        assert r.measured_variance == pytest.approx(closed, rel=0.02)
        assert abs(r.measured_mean) < 0.02 * math.sqrt(closed)


@pytest.mark.parametrize("decay", [0.05, 0.5, 1.0])
@pytest.mark.parametrize(("lr", "temperature", "noise"), CASES)
def test_sghmc_has_its_closed_form_variance(lr, temperature, noise, decay):
    def make(p):
        return SGHMC(p, lr, N, temperature=temperature, momentum_decay=decay)

    report = check_sampler(make, gradient_noise=noise)
    assert report, report
    for r in report.results:
        closed = sghmc_variance(r.curvature, lr / N, decay, temperature, noise)
        assert r.expected_variance == pytest.approx(closed, rel=1e-9)
        assert r.measured_variance == pytest.approx(closed, rel=0.02)
        heat = 4 / (4 - 2 * decay - lr / N * r.curvature) * (1 + lr / N * noise / (2 * decay * temperature))
        assert r.kinetic_temperature == pytest.approx(heat, rel=0.02)


def test_prior_precision_adds_to_the_curvature():
    report = check_sampler(lambda p: SGHMC(p, 0.1, N, prior_precision=100.0))
    for r in report.results:
        assert r.target_variance == pytest.approx(1 / (r.curvature + 100.0))
        assert r.measured_variance == pytest.approx(sghmc_variance(r.curvature + 100.0, 1e-3, 0.1), rel=0.02)


@pytest.mark.parametrize(("temperature", "noise"), [(1.0, 0.0), (0.1, 0.0), (1.0, 50.0), (0.1, 5.0)])
@pytest.mark.parametrize("lr", [0.01, 0.3])
def test_sgnht_has_the_target_variance_whatever_the_gradient_noise(lr, temperature, noise):
    report = check_sampler(lambda p: SGNHT(p, lr, N, temperature=temperature), gradient_noise=noise, refinement=2)
    assert report.verdict == "no bias seen", report
    for r in report.results:
        assert r.measured_variance == pytest.approx(temperature / r.curvature, rel=0.02)
        assert r.configurational_temperature == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize("temperature", [1.0, 0.1])
@pytest.mark.parametrize("lr", [0.05, 0.2])
def test_hmc_has_the_target_variance_at_any_step_size(lr, temperature):
    report = check_sampler(
        lambda p: HMC(p, lr, N, temperature=temperature, leapfrog_steps=5),
        stiffness=(0.3, 1.0),
        per_chain=True,
        steps=100,
        refinement=2,
    )
    assert report.verdict == "exact", report
    for r in report.results:
        assert r.measured_variance == pytest.approx(temperature / r.curvature, rel=0.02)


@pytest.mark.parametrize(("temperature", "noise"), [(1.0, 0.0), (0.1, 0.0), (1.0, 30.0)])
@pytest.mark.parametrize("lr", [10.0, 100.0])
def test_psgld_with_a_constant_preconditioner_is_sgld(lr, temperature, noise):
    """Where eps outweighs the gradients, G = 1/eps and the closed form is SGLD's at lr/eps."""
    eps = 1e3

    def make(p):
        return PSGLD(p, lr, N, temperature=temperature, eps=eps)

    curvature = [s * N * eps / lr for s in (0.05, 0.2, 0.5)]
    report = check_sampler(make, curvature=curvature, gradient_noise=noise, steps=300, refinement=1.5)
    for r in report.results:
        closed = sgld_variance(r.curvature, lr / N / eps, temperature, noise)
        assert r.measured_variance == pytest.approx(closed, rel=0.02)


def test_psgld_with_a_long_memory_is_sgld_at_the_mean_square_gradient():
    """d → 1: V → E[g²] = (k²·Var θ + noise)/N², so that G is a constant that solves a fixed point with Var θ."""
    lr, k, noise, variance = 0.002, 1000.0, 2000.0, 1e-3
    for _ in range(50):
        g = N / math.sqrt(k**2 * variance + noise)
        variance = sgld_variance(k, lr / N * g, 1.0, noise)
    report = check_sampler(
        lambda p: PSGLD(p, lr, N, decay=0.999), curvature=[k], gradient_noise=noise, steps=5000, refinement=1.5
    )
    assert report.results[0].measured_variance == pytest.approx(variance, rel=0.02), report


# ---------------------------------------------------------------- Γ, at d = 0 where the closed form needs no memory


@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_psgld_leaves_the_target_only_with_its_correction(temperature):
    def make(correction):
        return lambda p: PSGLD(p, 0.02, N, decay=0.0, eps=0.5, correction=correction, temperature=temperature)

    settings = dict(curvature=(100.0, 400.0), refinement=4, steps=800)
    with_gamma = check_sampler(make("probe"), **settings)
    without = check_sampler(make("none"), **settings)
    assert with_gamma.verdict == "O(h)", with_gamma
    assert max(abs(r.refined_bias) for r in with_gamma.results) < 0.03, with_gamma
    assert without.verdict == "biased", without
    assert not without


# ---------------------------------------------------------------- planted faults: each must be found


def faulty(cls, rule):
    return type(f"Faulty{cls.__name__}", (cls,), {"rule": staticmethod(rule)})


def _scaled(noise, factor):
    return None if noise is None else [factor * x for x in noise]


def _variance_for_std(x, g, noise, *state, ops, **h):
    std = {sgld_rule: 2 * h["lr"] * h["temperature"] / h["num_data"]}.get(
        _variance_for_std.rule, 2 * h.get("momentum_decay", 1.0) * h["temperature"]
    )
    return _variance_for_std.rule(x, g, _scaled(noise, math.sqrt(std)), *state, ops=ops, **h)


def _num_data_on_noise(x, g, noise, *state, ops, **h):
    return _num_data_on_noise.rule(x, g, _scaled(noise, h["num_data"]), *state, ops=ops, **h)


def _friction_halved(x, g, noise, *state, ops, **h):
    """The damping uses a/2, the noise still a."""
    h["momentum_decay"] /= 2
    return sghmc_rule(x, g, _scaled(noise, math.sqrt(2)), *state, ops=ops, **h)


def _temperature_rooted(x, g, noise, *state, ops, **h):
    return _temperature_rooted.rule(x, g, _scaled(noise, h["temperature"] ** -0.25), *state, ops=ops, **h)


@pytest.mark.parametrize("fault", [_variance_for_std, _num_data_on_noise, _temperature_rooted])
@pytest.mark.parametrize(("cls", "rule"), [(SGLD, sgld_rule), (SGHMC, sghmc_rule)])
def test_planted_noise_faults_are_found(cls, rule, fault):
    fault.rule = rule
    broken = faulty(cls, fault)
    assert check_sampler(lambda p: cls(p, 0.1, N, temperature=0.1))
    assert not check_sampler(lambda p: broken(p, 0.1, N, temperature=0.1))


def test_planted_noise_faults_are_found_in_psgld():
    settings = dict(curvature=(100.0,), steps=500, refinement=4)
    for fault in (_num_data_on_noise, _temperature_rooted):
        fault.rule = psgld_rule
        broken = faulty(PSGLD, fault)
        assert not check_sampler(lambda p, cls=broken: cls(p, 1.0, N, eps=10.0, temperature=0.1), **settings)
    assert check_sampler(lambda p: PSGLD(p, 1.0, N, eps=10.0, temperature=0.1), **settings)


def test_planted_friction_fault_is_found():
    broken = faulty(SGHMC, _friction_halved)
    report = check_sampler(lambda p: broken(p, 0.1, N))
    assert report.verdict == "biased", report


def test_planted_thermostat_faults_are_found():
    def no_half(x, g, noise, r, zeta, *, ops, **h):
        """Ding's measure of the temperature, without the factor 1 − ζ/2 of the semi-implicit step."""
        x, r, _ = sgnht_rule(x, g, noise, r, [z.clone() for z in zeta], ops=ops, **h)
        rate, target = h["thermostat_rate"], h["temperature"]
        for z, one in zip(zeta, r, strict=True):
            z.add_(rate * (one.square().mean() - target))
        return x, r, zeta

    def doubled_target(x, g, noise, *state, ops, **h):
        state = sgnht_rule(x, g, noise, *state, ops=ops, **h)
        torch._foreach_add_(state[2], -h["thermostat_rate"] * h["temperature"])
        return state

    for fault in (no_half, doubled_target):
        broken = faulty(SGNHT, fault)
        assert not check_sampler(lambda p, cls=broken: cls(p, 0.1, N, momentum_decay=0.2), refinement=4), fault


class _AlwaysAccepts(HMC):
    def _uniform(self, like):
        return torch.zeros_like(like) if like.dim() else super()._uniform(like)


class _ForgetsTheTemperature(HMC):
    def noise_like(self, p):
        return super().noise_like(p) / math.sqrt(0.1)


@pytest.mark.parametrize("broken", [_AlwaysAccepts, _ForgetsTheTemperature])
def test_planted_hmc_faults_are_found(broken):
    settings = dict(stiffness=(1.0, 2.0), per_chain=True, coordinates=5000, steps=200, refinement=1.5)
    assert check_sampler(lambda p: HMC(p, 0.1, N, temperature=0.1, leapfrog_steps=3), **settings).verdict == "exact"
    report = check_sampler(lambda p: broken(p, 0.1, N, temperature=0.1, leapfrog_steps=3), **settings)
    assert report.verdict != "exact", report


# ---------------------------------------------------------------- exact draws stay exact draws


def _ks_after(make, seed, *, coordinates=4000, steps=30, k=50.0):
    torch.manual_seed(seed)
    theta = (torch.randn(coordinates) / math.sqrt(k)).requires_grad_()
    sampler = make([theta])
    for _ in range(steps):
        theta.grad = k * theta.detach() / N
        sampler.step()
    return stats.kstest(theta.detach().numpy() * math.sqrt(k), "norm").pvalue


@pytest.mark.parametrize(
    "make",
    [
        lambda p: SGLD(p, 0.005, N),
        lambda p: SGHMC(p, 0.01, N, momentum_init="normal"),
        lambda p: SGNHT(p, 0.01, N, momentum_init="normal"),
    ],
    ids=["SGLD", "SGHMC", "SGNHT"],
)
def test_exact_draws_do_not_move(make):
    """Kolmogorov–Smirnov at level 5 % over 40 seeds: 7 or more rejections have probability 1.4e-3 under the target."""
    rejected = sum(_ks_after(make, seed) < 0.05 for seed in range(40))
    assert rejected <= 6


def test_exact_draws_move_under_a_planted_fault():
    fault = faulty(SGHMC, _friction_halved)
    rejected = sum(_ks_after(lambda p: fault(p, 0.01, N, momentum_init="normal"), seed) < 0.05 for seed in range(10))
    assert rejected >= 9


def test_heat_of_the_gradient_noise_is_what_sghmc_keeps_and_sgnht_removes():
    warm = check_sampler(lambda p: SGHMC(p, 0.1, N), gradient_noise=100.0).results[0]
    cool = check_sampler(lambda p: SGNHT(p, 0.1, N), gradient_noise=100.0, refinement=2).results[0]
    assert warm.configurational_temperature > 1.4
    assert cool.configurational_temperature == pytest.approx(1, abs=0.02)


# ---------------------------------------------------------------- badges


@pytest.mark.parametrize(
    ("make", "per_chain"),
    [
        (lambda p: SGLD(p, 0.1, N), False),
        (lambda p: SGHMC(p, 0.1, N), False),
        (lambda p: SGNHT(p, 0.1, N), False),
        (lambda p: HMC(p, 0.1, N, leapfrog_steps=4), True),
    ],
    ids=["SGLD", "SGHMC", "SGNHT", "HMC"],
)
def test_badges_are_earned(make, per_chain):
    badge = make([torch.zeros(1, requires_grad=True)]).badge
    report = check_sampler(make, per_chain=per_chain, coordinates=5000, steps=300, refinement=4, tolerance=0.03)
    assert report.passed, report
    assert report.verdict in {"exact": ("exact",), "O(h)": ("exact", "no bias seen", "O(h)")}[badge]
