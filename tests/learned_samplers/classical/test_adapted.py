"""ScaleAdaptedSGHMC: its law at a frozen mass on badly scaled Gaussians, its burn-in, and what it takes from Adam."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.linalg import solve_discrete_lyapunov

from learned_samplers import SGHMC, PosteriorSamples, ScaleAdaptedSGHMC
from learned_samplers.classical.adapted import diagonal_mass_rule, scale_adapted_rule
from tests.harness import closure_for, flat, sghmc_variance, small_network

N = 100
#: Condition number 1e4.
CURVATURES = torch.logspace(0, 4, 5, dtype=torch.float64)
INTEGRATORS = pytest.mark.parametrize("integrator", ["baoa", "semi_implicit"])


# ---------------------------------------------------------------- the law of the frozen rule, exactly


def stationary(rule, curvature, **settings):
    """Covariances of (θ, r) for each curvature, from the rule's own A and B: Σ = AΣAᵀ + BBᵀ."""

    def step(theta, r, xi):
        ones = torch.ones_like(curvature)
        return torch.stack(rule(theta * ones, curvature * theta / N, xi * ones, r * ones, num_data=N, **settings))

    a = torch.stack([step(1.0, 0.0, 0.0), step(0.0, 1.0, 0.0)], dim=1)
    b = step(0.0, 0.0, 1.0)
    return np.stack([solve_discrete_lyapunov(a[:, :, i].numpy(), np.outer(b[:, i], b[:, i])) for i in range(len(b[0]))])


@INTEGRATORS
@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_any_frozen_mass_and_friction_leaves_the_law(integrator, temperature):
    """Masses that are off by up to a factor of ten, and a friction for each coordinate; to 1e-9 (Lyapunov)."""
    generator = torch.Generator().manual_seed(0)
    off = 10 ** (2 * torch.rand(5, generator=generator, dtype=torch.float64) - 1)
    root = (off / CURVATURES).sqrt()
    friction = 0.02 + 0.9 * torch.rand(5, generator=generator, dtype=torch.float64)
    lr = 0.2 * N
    covariance = stationary(
        lambda *args, **kw: diagonal_mass_rule(*args, root, integrator=integrator, **kw),
        CURVATURES,
        lr=lr,
        temperature=temperature,
        momentum_decay=friction,
    )
    step_squared = lr / N * root.square()
    for k, h, a, sigma in zip(CURVATURES, step_squared, friction, covariance, strict=True):
        closed = temperature / k if integrator == "baoa" else sghmc_variance(k, h, a, temperature)
        assert sigma[0, 0] == pytest.approx(float(closed), rel=1e-9)
    if integrator == "semi_implicit":  # and the bias vanishes with lr
        fine = stationary(
            lambda *args, **kw: diagonal_mass_rule(*args, root, integrator=integrator, **kw),
            CURVATURES,
            lr=lr / 1000,
            temperature=temperature,
            momentum_decay=friction,
        )
        assert np.allclose(fine[:, 0, 0] * CURVATURES.numpy(), temperature, rtol=2e-3)


@INTEGRATORS
def test_adaptation_and_sampling_are_one_rule(integrator):
    """At adaptation rate 0 the adapting rule is the frozen one bit for bit, and the mass stands still."""
    torch.manual_seed(0)
    x, g, noise, r = torch.randn(4, 7)
    v = torch.rand(7)
    settings = dict(lr=0.1, num_data=N, temperature=1.0, momentum_decay=0.2, integrator=integrator)
    *state, after = scale_adapted_rule(x, g, noise, r, v, prior_precision=0.0, eps=0.1, **settings)
    frozen = diagonal_mass_rule(x, g, noise, r, (0.2 / (v.sqrt() + 0.1)) ** 0.5, **settings)
    assert all(torch.equal(a, b) for a, b in zip(state, frozen, strict=True))
    assert torch.equal(after, v)


def _noise_without_the_mass(x, g, noise, r, root, **settings):
    """The noise is scaled as if it acted on θ."""
    return diagonal_mass_rule(x, g, noise * root, r, root, **settings)


def _force_without_the_mass(x, g, noise, r, root, **settings):
    return diagonal_mass_rule(x, g / root, noise, r, root, **settings)


@pytest.mark.parametrize("fault", [_noise_without_the_mass, _force_without_the_mass])
def test_planted_faults_are_found(fault):
    root = 1 / CURVATURES.sqrt()
    covariance = stationary(
        lambda *args, **kw: fault(*args, root, integrator="baoa", **kw),
        CURVATURES,
        lr=0.02,
        temperature=1.0,
        momentum_decay=0.1,
    )
    assert np.abs(covariance[:, 0, 0] * CURVATURES.numpy() - 1).max() > 0.1


# ---------------------------------------------------------------- the running optimizer


def gaussians(make, *, steps, skip, coordinates=4000, seed=0):
    """Variances over the curvatures' target, one tensor a curvature, from exact draws on; the sampler, too."""
    torch.manual_seed(seed)
    params = [(torch.randn(coordinates) / k.sqrt().float()).requires_grad_() for k in CURVATURES]
    sampler = make(params)
    total = torch.zeros(len(params))
    for step in range(steps):
        for p, k in zip(params, CURVATURES, strict=True):
            p.grad = k.float() * p.detach() / N
        sampler.step()
        if step >= skip:
            total += torch.stack([p.detach().square().mean() for p in params]) * CURVATURES.float()
    return total / (steps - skip), sampler


@INTEGRATORS
def test_after_adaptation_every_scale_has_its_law(integrator):
    """Condition number 1e4, one lr; 4,000 coordinates, 600 steps after the freeze; 3 % beyond the bias."""
    ratio, sampler = gaussians(
        lambda p: ScaleAdaptedSGHMC(
            p, 0.2, N, adaptation_steps=200, momentum_init="normal", integrator=integrator, decay=0.99
        ),
        steps=1200,
        skip=600,
    )
    assert sampler.is_sampling
    for p, k, r in zip(sampler.param_groups[0]["params"], CURVATURES, ratio, strict=True):
        mass = 0.1 / (sampler.state[p]["second_moment"].sqrt() + 1e-5)
        stiffness = 0.2 / N * mass * float(k)
        assert stiffness.max() < 1.9 * 2
        expected = 1.0 if integrator == "baoa" else (2 * 1.9 / (4 - 0.2 - stiffness)).mean().item()
        assert r.item() == pytest.approx(expected, rel=0.03)


def test_a_mass_that_never_stands_still_is_biased():
    """The planted fault behind the freeze: a mass that follows the present gradient has no law without a correction."""
    moving, sampler = gaussians(
        lambda p: ScaleAdaptedSGHMC(p, 0.05, N, adaptation_steps=10**6, decay=0.0, momentum_init="normal"),
        steps=1200,
        skip=600,
    )
    assert not sampler.is_sampling
    assert (moving - 1).abs().max() > 0.1, moving


def test_the_mass_follows_adams_second_moment_and_then_stops():
    p = torch.ones(3, requires_grad=True)
    twin = torch.ones(3, requires_grad=True)
    sampler = ScaleAdaptedSGHMC([p], 1e-12, N, adaptation_steps=5, decay=0.9)
    adam = torch.optim.Adam([twin], 1e-12, betas=(0.9, 0.9))
    generator = torch.Generator().manual_seed(0)
    for step in range(8):
        p.grad = torch.randn(3, generator=generator)
        twin.grad = p.grad.clone()
        sampler.step()
        if step < 5:
            adam.step()
        assert sampler.is_sampling == (step >= 5)
    expected = adam.state[twin]["exp_avg_sq"] / (1 - 0.9**5)
    assert torch.allclose(sampler.state[p]["second_moment"], expected)


def test_cold_it_is_adam_with_that_mass():
    """Semi-implicit, temperature 0: θ ← θ − lr·m/(√v̂ + eps), m Adam's first moment without bias correction."""
    torch.manual_seed(0)
    p = torch.randn(5, dtype=torch.float64).requires_grad_()
    adam = torch.optim.Adam([p], 0.01, betas=(0.8, 0.99))
    p.grad = torch.randn(5, dtype=torch.float64)
    adam.step()
    v = adam.state[p]["exp_avg_sq"] / (1 - 0.99)
    sampler = ScaleAdaptedSGHMC.from_optimizer(adam, N, temperature=0.0, integrator="semi_implicit", eps=1e-3)
    theta, m = p.detach().clone(), torch.zeros(5, dtype=torch.float64)
    for _ in range(10):
        p.grad = torch.randn(5, dtype=torch.float64)
        m = 0.8 * m + 0.2 * p.grad
        theta = theta - 0.01 * m / (v.sqrt() + 1e-3)
        sampler.step()
        assert torch.allclose(p.detach(), theta, rtol=1e-12, atol=1e-12)


def test_cold_adaptation_draws_nothing_and_then_it_is_warm():
    model = small_network()
    sampler = ScaleAdaptedSGHMC(model.parameters(), 0.01, N, adaptation_steps=4, adaptation_temperature=0.0)
    before = torch.get_rng_state()
    for _ in range(4):
        sampler.step(closure_for(model, sampler))
    assert torch.equal(before, torch.get_rng_state())
    sampler.step(closure_for(model, sampler))
    assert not torch.equal(before, torch.get_rng_state())


def test_nothing_is_collected_before_the_freeze():
    model = small_network()
    sampler = ScaleAdaptedSGHMC(model.parameters(), 0.01, N, adaptation_steps=6)
    posterior = PosteriorSamples(model, sampler, burn_in=0, thinning=1)
    for _ in range(10):
        sampler.step(closure_for(model, sampler))
    assert posterior.steps == [7, 8, 9, 10]


def test_a_parameter_that_joins_after_the_freeze_is_refused():
    model = small_network()
    sampler = ScaleAdaptedSGHMC(model[0].named_parameters(), 0.01, N, adaptation_steps=2)
    for _ in range(3):
        sampler.step(closure_for(model, sampler))
    sampler.add_param_group({"params": model[2].named_parameters()})
    before = flat(model)
    with pytest.raises(ValueError, match=r"parameter 'weight' has no mass: adaptation_steps is 2"):
        sampler.step(closure_for(model, sampler))
    assert torch.equal(flat(model), before)
    with pytest.raises(ValueError, match="has no mass"):
        ScaleAdaptedSGHMC(model.parameters(), 0.01, N, adaptation_steps=0).step(closure_for(model, sampler))


# ---------------------------------------------------------------- the warm start


def trained(cls=torch.optim.Adam, **settings):
    model = small_network()
    first, second = list(model[0].named_parameters()), list(model[2].named_parameters())
    adam = cls([{"params": first, "lr": 0.02, "betas": (0.8, 0.99)}, {"params": second}], 0.01, **settings)
    for _ in range(20):
        closure_for(model, adam)()
        adam.step()
    return model, adam


@pytest.mark.parametrize("amsgrad", [False, True])
def test_a_warm_start_keeps_groups_names_and_the_mass(amsgrad):
    model, adam = trained(weight_decay=0.02, amsgrad=amsgrad)
    saved = flat(model)
    sampler = ScaleAdaptedSGHMC.from_optimizer(adam, N, temperature=0.5)
    assert [g["param_names"] for g in sampler.param_groups] == [["weight", "bias"], ["weight", "bias"]]
    assert [g["lr"] for g in sampler.param_groups] == [0.02, 0.01]
    assert [g["momentum_decay"] for g in sampler.param_groups] == pytest.approx([0.2, 0.1])
    assert [g["prior_precision"] for g in sampler.param_groups] == [2.0, 2.0]
    for group, decay in zip(adam.param_groups, (0.99, 0.999), strict=True):
        for p in group["params"]:
            moment = adam.state[p]["max_exp_avg_sq" if amsgrad else "exp_avg_sq"] / (1 - decay**20)
            assert torch.allclose(sampler.state[p]["second_moment"], moment)
    assert torch.equal(flat(model), saved)
    assert not sampler.is_sampling
    sampler.step(closure_for(model, sampler))
    assert sampler.is_sampling
    twin = ScaleAdaptedSGHMC.from_optimizer(adam, N, temperature=0.5)
    twin.load_state_dict(sampler.state_dict())
    assert twin.step_count == 1


def test_a_warm_start_leaves_the_law():
    """Condition number 1e4 from Adam's state after 500 steps with gradients at the target; 3 %."""

    def make(params):
        adam = torch.optim.Adam(params, 1e-12)
        for _ in range(500):
            for p, k in zip(params, CURVATURES, strict=True):
                p.grad = k.sqrt().float() * torch.randn_like(p) / N
            adam.step()
        return ScaleAdaptedSGHMC.from_optimizer(adam, N, lr=0.2, momentum_init="normal")

    ratio, _ = gaussians(make, steps=600, skip=0)
    assert torch.allclose(ratio, torch.ones(5), atol=0.03), ratio


def test_sghmc_cannot_do_that():
    """At the largest stable lr, the softest of the Gaussians hardly moves in as many steps, started at its mean."""
    torch.manual_seed(0)
    params = [torch.zeros(500).requires_grad_() for _ in CURVATURES]
    sampler = SGHMC(params, 1e-4 * N, N)
    for _ in range(600):
        for p, k in zip(params, CURVATURES, strict=True):
            p.grad = k.float() * p.detach() / N
        sampler.step()
    assert params[0].detach().var().item() < 0.8 / CURVATURES[0]


@pytest.mark.parametrize(
    ("make", "settings", "error", "message"),
    [
        (lambda p: torch.optim.SGD(p, 0.1), {}, TypeError, "Adam or AdamW, got SGD"),
        (lambda p: torch.optim.Adam(p, 0.1), {}, ValueError, r"number 0 of shape \(5, 3\) has no state"),
        (lambda p: torch.optim.Adam(p, 0.1, maximize=True), {}, ValueError, "maximize=True"),
        (lambda p: torch.optim.AdamW(p, 0.1), {}, ValueError, "prior_precision must be given"),
        (lambda p: torch.optim.Adam(p, 0.1), {"adaptation_steps": 3}, ValueError, "adaptation_steps must not be given"),
        (lambda p: torch.optim.Adam(p, 0.1), {"temperature": -1}, ValueError, "temperature"),
    ],
)
def test_bad_warm_starts(make, settings, error, message):
    with pytest.raises(error, match=message):
        ScaleAdaptedSGHMC.from_optimizer(make(small_network().parameters()), N, **settings)


@pytest.mark.parametrize(
    "schedule",
    [
        lambda adam: torch.optim.lr_scheduler.CosineAnnealingLR(adam, 30, eta_min=1e-7),
        lambda adam: torch.optim.lr_scheduler.OneCycleLR(adam, max_lr=0.01, total_steps=31),
    ],
)
def test_a_rate_that_a_schedule_has_brought_down_is_not_taken_over(schedule):
    """A chain at Adam's last rate would stand still, and its samples be copies of each other."""
    model = small_network()
    adam = torch.optim.Adam(model.parameters(), 0.01)
    annealed = schedule(adam)
    for _ in range(30):
        closure_for(model, adam)()
        adam.step()
        annealed.step()
    with pytest.raises(ValueError, match=r"lr must be given: a schedule has brought that of Adam from 0.01 down to"):
        ScaleAdaptedSGHMC.from_optimizer(adam, N)
    assert ScaleAdaptedSGHMC.from_optimizer(adam, N, lr=0.005).param_groups[0]["lr"] == 0.005


def test_adamw_with_a_stated_prior():
    _, adam = trained(torch.optim.AdamW, weight_decay=0.01)
    sampler = ScaleAdaptedSGHMC.from_optimizer(adam, N, prior_precision=3.0, lr=0.5, momentum_decay=0.3)
    assert [g["prior_precision"] for g in sampler.param_groups] == [3.0, 3.0]
    assert [g["lr"] for g in sampler.param_groups] == [0.5, 0.5]
    assert [g["momentum_decay"] for g in sampler.param_groups] == [0.3, 0.3]
    assert math.isclose(sampler.param_groups[0]["eps"], 1e-5)


@pytest.mark.parametrize("joins_at", [1, 150, 198])
def test_a_parameter_that_joins_while_others_adapt_gets_a_mass_of_its_own_gradients(joins_at):
    """Counted with the group's steps a mean of zeros and two squares would be a hundredth of them, and diverge."""
    torch.manual_seed(0)
    a, b = (torch.nn.Parameter(torch.randn(2000) * 0.03) for _ in range(2))
    sampler = ScaleAdaptedSGHMC([a, b], lr=0.3, num_data=1000, adaptation_steps=200)
    b.requires_grad_(False)
    for step in range(320):
        if step == joins_at:
            b.requires_grad_(True)
        for p in (a, b):
            p.grad = p.detach().clone() if p.requires_grad else None
        sampler.step()
    masses = [sampler.state[p]["second_moment"].mean().item() for p in (a, b)]
    assert masses[1] == pytest.approx(masses[0], rel=2.0)
    assert b.std().item() == pytest.approx(1000**-0.5, rel=0.3)


@pytest.mark.parametrize("joins_at", [50, 65])
def test_a_compiled_step_treats_one_that_joins_as_an_ordinary_one_does(joins_at):
    def chain(compiled):
        a, b = (torch.nn.Parameter(torch.ones(8)) for _ in range(2))
        settings = {"lr": 0.01, "num_data": 100, "adaptation_steps": 60, "temperature": 0.0}
        sampler = ScaleAdaptedSGHMC([a, b], **settings, missing_gradient="skip")
        step = torch.compile(sampler.step, backend="eager") if compiled else sampler.step
        for count in range(joins_at + 2):
            a.grad, b.grad = a.detach().clone(), b.detach().clone() if count >= joins_at else None
            step()
        return sampler.state[b]["second_moment"], b.detach()

    torch._dynamo.reset()
    if joins_at > 60:
        for compiled in (False, True):
            with pytest.raises(ValueError, match="has no mass"):
                chain(compiled)
    else:
        for ours, theirs in zip(chain(True), chain(False), strict=True):
            torch.testing.assert_close(ours, theirs)
