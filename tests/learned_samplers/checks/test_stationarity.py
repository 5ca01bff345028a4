"""Each sampler leaves the law that its closed form says, and planted faults are found."""

import math
from functools import cache, partial

import pytest
import torch
from scipy import stats

from learned_samplers import HMC, PSGLD, SGHMC, SGLD, SGNHT, check_sampler
from learned_samplers.classical.sgld import sgld_rule
from tests.harness import sghmc_variance, sgld_variance

N = 100
#: Badge → the verdicts that earn it.
EARNS = {"exact": ("exact",), "O(h)": ("exact", "no bias seen", "O(h)")}


def stationary(make, closed, **settings):
    """The report, whose expected variances are those of the closed form, and whose measured ones are near."""
    report = check_sampler(make, steps=100, **settings)
    assert report, report
    assert report.verdict in EARNS[make([torch.zeros(1, requires_grad=True)]).badge]
    for r in report.results:
        if report.linear:
            assert r.expected_variance == pytest.approx(closed(r.curvature), rel=1e-9)
        assert r.measured_variance == pytest.approx(closed(r.curvature), rel=0.02)
        assert abs(r.measured_mean) < 0.02 * math.sqrt(closed(r.curvature))
    return report


@pytest.mark.parametrize("decay", [None, 0.05, 0.5, 1.0])
@pytest.mark.parametrize(("lr", "temperature", "noise"), [(0.01, 0.1, 30.0), (1.0, 1.0, 0.0)])
def test_sgld_and_sghmc_have_their_closed_form_variances(lr, temperature, noise, decay):
    h = lr / N
    if decay is None:
        make, closed = SGLD, lambda k: sgld_variance(k, h, temperature, noise)
    else:
        make, closed = partial(SGHMC, momentum_decay=decay), lambda k: sghmc_variance(k, h, decay, temperature, noise)
    report = stationary(lambda p: make(p, lr, N, temperature=temperature), closed, gradient_noise=noise)
    for r in report.results if decay else ():
        heat = 4 / (4 - 2 * decay - h * r.curvature) * (1 + h * noise / (2 * decay * temperature))
        assert r.kinetic_temperature == pytest.approx(heat, rel=0.02)


def test_prior_precision_adds_to_the_curvature():
    closed = partial(sghmc_variance, h=1e-3, a=0.1)
    report = stationary(lambda p: SGHMC(p, 0.1, N, prior_precision=100.0), lambda k: closed(k + 100.0))
    assert all(r.target_variance == pytest.approx(1 / (r.curvature + 100.0)) for r in report.results)


@pytest.mark.parametrize(("lr", "temperature", "noise"), [(0.01, 1.0, 50.0), (0.3, 0.1, 5.0)])
def test_sgnht_has_the_target_variance_whatever_the_gradient_noise(lr, temperature, noise):
    settings = dict(gradient_noise=noise, stiffness=(0.05, 0.5), refinement=2, coordinates=5000)
    report = check_sampler(lambda p: SGNHT(p, lr, N, temperature=temperature), **settings)
    assert report.verdict == "no bias seen", report
    assert report.verdict in EARNS[SGNHT.badge]
    for r in report.results:
        assert r.measured_variance == pytest.approx(temperature / r.curvature, rel=0.02)
        assert r.configurational_temperature == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize(("lr", "temperature"), [(0.05, 0.1), (0.2, 1.0)])
def test_hmc_has_the_target_variance_at_any_step_size(lr, temperature):
    report = check_sampler(
        lambda p: HMC(p, lr, N, temperature=temperature, leapfrog_steps=5),
        stiffness=(0.3, 1.0),
        coordinates=10_000,
        steps=50,
        refinement=2,
    )
    assert report.verdict == HMC.badge == "exact", report
    for r in report.results:
        assert r.measured_variance == pytest.approx(temperature / r.curvature, rel=0.02)


@pytest.mark.parametrize(("lr", "temperature", "noise"), [(10.0, 0.1, 0.0), (100.0, 1.0, 30.0)])
def test_psgld_with_a_constant_preconditioner_is_sgld(lr, temperature, noise):
    """If eps outweighs the gradients, G = 1/eps and the closed form is SGLD's at lr/eps."""
    eps = 1e3

    settings = dict(gradient_noise=noise, steps=100, refinement=1.5, coordinates=16_000)
    settings["curvature"] = [s * N * eps / lr for s in (0.05, 0.2, 0.5)]
    report = check_sampler(lambda p: PSGLD(p, lr, N, temperature=temperature, eps=eps), **settings)
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
        lambda p: PSGLD(p, lr, N, decay=0.997),
        curvature=[k],
        gradient_noise=noise,
        steps=1500,
        refinement=1.1,
        coordinates=8000,
    )
    assert report.results[0].measured_variance == pytest.approx(variance, rel=0.02), report


# ---------------------------------------------------------------- Γ, at d = 0 where the closed form needs no memory


def test_psgld_leaves_the_target_only_with_its_correction():
    """At a temperature that is not 1, which the term has for a factor."""

    def make(correction):
        return lambda p: PSGLD(p, 0.02, N, decay=0.0, eps=0.5, correction=correction, temperature=0.1)

    settings = dict(curvature=(100.0, 400.0), refinement=4)
    with_gamma = check_sampler(make("probe"), steps=120, coordinates=9000, **settings)
    without = check_sampler(make("none"), steps=60, coordinates=6000, **settings)
    assert with_gamma.verdict == "O(h)", with_gamma
    assert max(abs(r.refined_bias) for r in with_gamma.results) < 0.03, with_gamma
    assert without.verdict == "biased", without
    assert not without


# ---------------------------------------------------------------- planted faults: each must be found


def _scaled(noise, factor):
    return None if noise is None else [factor * x for x in noise]


def variance_for_std(rule, x, g, noise, *state, **h):
    variance = 2 * h["lr"] * h["temperature"] / h["num_data"] if rule is sgld_rule else 2 * 0.1 * h["temperature"]
    return rule(x, g, _scaled(noise, math.sqrt(variance)), *state, **h)


def num_data_on_noise(rule, x, g, noise, *state, **h):
    return rule(x, g, _scaled(noise, h["num_data"]), *state, **h)


def temperature_rooted(rule, x, g, noise, *state, **h):
    return rule(x, g, _scaled(noise, h["temperature"] ** -0.25), *state, **h)


def friction_halved(rule, x, g, noise, *state, **h):
    """The damping uses a/2, the noise still a."""
    return rule(x, g, _scaled(noise, math.sqrt(2)), *state, **{**h, "momentum_decay": h["momentum_decay"] / 2})


def without_half(rule, x, g, noise, r, zeta, **h):
    """Ding's measure of the temperature, without the factor 1 − ζ/2 of the semi-implicit step."""
    x, r, _ = rule(x, g, noise, r, [z.clone() for z in zeta], **h)
    for z, one in zip(zeta, r, strict=True):
        z.add_(h["thermostat_rate"] * (one.square().mean() - h["temperature"]))
    return x, r, zeta


def target_doubled(rule, x, g, noise, *state, **h):
    state = rule(x, g, noise, *state, **h)
    torch._foreach_add_(state[2], -h["thermostat_rate"] * h["temperature"])
    return state


def faulty(cls, fault):
    return type(f"Faulty{cls.__name__}", (cls,), {"rule": staticmethod(partial(fault, cls.rule))})


FEW = (("coordinates", 4000), ("steps", 100))
IN_PSGLD = (("coordinates", 16_000), ("curvature", (100.0,)), ("steps", 120), ("refinement", 4))


@cache
def without_a_fault(cls, arguments, settings):
    """The verdict on a sampler as it is, once for all its faults."""
    return bool(check_sampler(lambda p: cls(p, **dict(arguments)), **dict(settings)))


@pytest.mark.parametrize(
    ("cls", "fault", "arguments", "settings"),
    [
        *((SGLD, fault, {}, FEW) for fault in (variance_for_std, num_data_on_noise, temperature_rooted)),
        *((SGHMC, fault, {}, FEW) for fault in (variance_for_std, num_data_on_noise, temperature_rooted)),
        *((PSGLD, fault, {"lr": 1.0, "eps": 10.0}, IN_PSGLD) for fault in (num_data_on_noise, temperature_rooted)),
        (SGHMC, friction_halved, {}, FEW),
        *(
            (SGNHT, fault, {"momentum_decay": 0.2}, (("refinement", 2), ("coordinates", 4000), ("stiffness", (0.2,))))
            for fault in (without_half, target_doubled)
        ),
    ],
)
def test_planted_faults_are_found(cls, fault, arguments, settings):
    keywords = {"lr": 0.1, "num_data": N, "temperature": 0.1, **arguments}
    assert without_a_fault(cls, tuple(keywords.items()), settings)
    assert not check_sampler(lambda p: faulty(cls, fault)(p, **keywords), **dict(settings))


class _AlwaysAccepts(HMC):
    def _uniform(self, like):
        return torch.zeros_like(like) if like.dim() else super()._uniform(like)


class _ForgetsTheTemperature(HMC):
    def noise_like(self, p):
        return super().noise_like(p) / math.sqrt(0.1)


def test_planted_hmc_faults_are_found():
    settings = dict(stiffness=(1.0, 2.0), coordinates=8000, steps=60, refinement=1.5)
    for cls in (HMC, _AlwaysAccepts, _ForgetsTheTemperature):
        report = check_sampler(partial(cls, lr=0.1, num_data=N, temperature=0.1, leapfrog_steps=3), **settings)
        assert (report.verdict == "exact") is (cls is HMC), report


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
    fault = faulty(SGHMC, friction_halved)
    rejected = sum(_ks_after(lambda p: fault(p, 0.01, N, momentum_init="normal"), seed) < 0.05 for seed in range(10))
    assert rejected >= 9
