"""Kinetic-L2E: its forces are the gradients of the energy that it claims, and its law is the posterior."""

import math

import pytest
import torch
from torch import nn

import learned_samplers as samplers
from learned_samplers import check_sampler
from learned_samplers.base.segments import Segments
from learned_samplers.learned.kinetic import (
    KineticSettings,
    kinetic_half_step,
    kinetic_mean,
    l2e_kinetic_rule,
)
from tests.harness import closure_for, flat, running, sghmc_variance, small_network
from tests.learned_samplers.learned import cases
from tests.learned_samplers.learned.cases import chain, phi_of
from tests.learned_samplers.learned.flat_keywords import KineticL2E, keywords

kinetic_half_step = keywords(kinetic_half_step, KineticSettings)
kinetic_mean = keywords(kinetic_mean, KineticSettings)
l2e_kinetic_rule = keywords(l2e_kinetic_rule, KineticSettings)

SEGMENTS = Segments((4, 3))
N, PRIOR = 50.0, 2.0
DOUBLE = torch.float64


def network(seed=0, scale=1.0, dtype=DOUBLE):
    return cases.network(2, seed, 1, scale=scale, dtype=dtype)


MIX = torch.randn(7, 7, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def mean_loss(theta):
    """A loss of seven coupled coordinates that is not quadratic."""
    return (torch.cos(theta @ MIX) + 0.3 * theta**2).sum() / N


def gradient_of(theta):
    return torch.func.grad(mean_loss)(theta)


def hessian_product_at(theta):
    """w ↦ ∂²L/∂θ²·w, by differentiating ∇L·w."""
    return lambda w: torch.func.grad(lambda t: gradient_of(t) @ w)(theta)


def state(seed=3):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(7, generator=generator, dtype=torch.float64) for _ in range(3)]


SETTINGS = dict(segments=SEGMENTS, num_data=N, prior_precision=PRIOR, mean_scale=0.7)


def kinetic_energy(phi, theta, r):
    """½‖r − f(θ)‖², f through the gradient of the loss as well."""
    return 0.5 * (r - kinetic_mean(theta, gradient_of(theta), phi=phi, **SETTINGS)).square().sum()


def force_of(phi, theta, r, hessian_product):
    """Jᵀ(r − f), read off the rule with a tiny step: no friction worth the name, no noise, no gradient of U."""
    parts = kinetic_half_step(
        theta, gradient_of(theta), None, r, phi=phi, lr=1e-40, temperature=0.0, momentum_decay=1e-20, **SETTINGS
    )
    return parts[2] + hessian_product(parts[3])


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_forces_are_minus_the_gradients_of_the_energy(seed):
    phi = phi_of(network(seed))
    theta, r, _ = state(seed)
    exact = hessian_product_at(theta)
    by_theta = torch.func.grad(lambda t: kinetic_energy(phi, t, r))(theta)
    by_momentum = torch.func.grad(lambda x: kinetic_energy(phi, theta, x))(r)
    mean = kinetic_mean(theta, gradient_of(theta), phi=phi, **SETTINGS)
    torch.testing.assert_close(force_of(phi, theta, r, exact), -by_theta, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(r - mean, by_momentum, rtol=1e-12, atol=1e-14)
    # Planted: the Hessian left out, and the gradient as the paper prints it.
    size = by_theta.norm()
    assert (force_of(phi, theta, r, torch.zeros_like) + by_theta).norm() > 0.05 * size
    printed = torch.func.vjp(lambda t: kinetic_mean(t, gradient_of(t), phi=phi, **SETTINGS), theta)[1](mean)[0]
    assert (printed - by_theta).norm() > 0.5 * size


def test_the_rule_is_its_equations():
    phi = phi_of(network())
    theta, r, xi = state()
    g, a, lr, heat = gradient_of(theta), 0.2, 0.4, 0.5
    eps = math.sqrt(lr / N)
    product = hessian_product_at(theta)
    new = l2e_kinetic_rule(
        theta, g, xi, r, hessian_product=product, phi=phi, lr=lr, temperature=heat, momentum_decay=a, **SETTINGS
    )
    f = kinetic_mean(theta, g, phi=phi, **SETTINGS)
    half = (1 - a) * r + a * f - eps * (N * g + PRIOR * theta) + math.sqrt(2 * a * heat) * xi
    force = -torch.func.grad(lambda t: kinetic_energy(phi, t, half))(theta)
    torch.testing.assert_close(new[0], theta + eps * (half - f), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(new[1], half + eps * force, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("groups", [False, True])
def test_the_hessian_product_does_not_hang_on_its_probe_nor_on_groups_and_is_missed(groups, monkeypatch):
    def end(probe_size=1e-6, *, groups=groups):
        settings = dict(network=network(), probe_size=probe_size, prior_precision=1.0)
        return chain(lambda p: KineticL2E(p, 0.2, 100, **settings), 12, DOUBLE, groups=groups)[0]

    near = end()
    torch.testing.assert_close(end(1e-5), near, rtol=0, atol=1e-5)
    torch.testing.assert_close(end(groups=False), near, rtol=0, atol=1e-6)
    # Planted: the Hessian left out.
    zeros = lambda self, closure, directions, *_: {p: torch.zeros_like(w) for p, w in directions.items()}  # noqa: E731
    monkeypatch.setattr(samplers.KineticL2E, "_probe", zeros)
    assert (end() - near).abs().max() > 1e-3


def test_the_chain_of_the_optimizer_is_that_of_the_pure_rule():
    module = network()
    theta = torch.randn(7, dtype=torch.float64, requires_grad=True)
    start = theta.detach().clone()
    sampler = KineticL2E([theta], 0.2, N, network=module, probe_size=1e-6, prior_precision=PRIOR, mean_scale=0.7)

    def closure():
        sampler.zero_grad()
        loss = mean_loss(theta)
        loss.backward()
        return loss

    torch.manual_seed(5)
    for _ in range(6):
        sampler.step(closure)
    settings = dict(lr=0.2, temperature=1.0, momentum_decay=0.1, **{**SETTINGS, "segments": Segments((7,))})
    torch.manual_seed(5)
    x, r, phi = start, torch.zeros_like(start), phi_of(module)
    for _ in range(6):
        x, r = l2e_kinetic_rule(
            x, gradient_of(x), torch.randn_like(x), r, hessian_product=hessian_product_at(x), phi=phi, **settings
        )
    torch.testing.assert_close(theta.detach(), x, rtol=0, atol=1e-5)


def test_the_probe_is_as_far_away_as_its_size_says():
    model, seen = small_network(), []
    sampler = KineticL2E(model.parameters(), 0.1, 100, network=network(dtype=torch.float32))
    usual = closure_for(model, sampler)

    def closure():
        seen.append(flat(model))
        return usual()

    sampler.step(closure)
    assert (seen[1] - seen[0]).square().mean().sqrt().item() == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize("changed", ["the loop clears the gradients", "autocast"])
def test_who_clears_the_gradients_and_autocast_around_the_step_change_nothing(changed, monkeypatch):
    monkeypatch.setenv("LEARNED_SAMPLERS_NATIVE", "0")
    ends = []
    for case in ("", changed):
        p = nn.Parameter(torch.linspace(-0.2, 0.3, 50))
        sampler = KineticL2E([p], num_data=100, generator=torch.Generator().manual_seed(1))

        def closure(p=p, sampler=sampler, case=case):
            if case != "the loop clears the gradients":
                sampler.zero_grad()
            loss = p.square().mean()
            loss.backward()
            return loss

        with torch.autocast("cpu", torch.bfloat16, enabled=case == "autocast"):
            for _ in range(5):
                sampler.zero_grad()
                sampler.step(closure)
        ends.append(p.detach())
    assert torch.equal(*ends)


def test_a_step_without_a_closure_is_refused():
    _, sampler, unchanged = running("KineticL2E")
    with pytest.raises(ValueError, match="closure"):
        sampler.step()
    assert unchanged()


def stationary(lr, hessian, a=0.1, k=100.0, seed=0, noise=0.0, chains=2000, steps=500):
    """k·Var θ and Var(r − f) on a Gaussian, T = 1, by the pure rule, started from exact draws."""
    n = 100.0
    phi = phi_of(network(seed, 0.5).float())
    common = dict(phi=phi, segments=Segments((chains,)), num_data=n, prior_precision=0.0)
    generator = torch.Generator().manual_seed(1)
    theta = torch.randn(chains, generator=generator) / math.sqrt(k)
    r = torch.randn(chains, generator=generator) + kinetic_mean(theta, theta * (k / n), **common)
    product = (lambda w: w * (k / n)) if hessian else torch.zeros_like
    total = torch.zeros(2, dtype=torch.float64)
    for i in range(steps):
        slope = theta * (k / n) + math.sqrt(noise) / n * torch.randn(chains, generator=generator)
        xi = torch.randn(chains, generator=generator)
        theta, r = l2e_kinetic_rule(
            theta, slope, xi, r, hessian_product=product, lr=lr, temperature=1.0, momentum_decay=a, **common
        )
        if i >= steps // 4:
            f = kinetic_mean(theta, theta * (k / n), **common)
            total += torch.stack([k * theta.square().mean(), (r - f).square().mean()]).double()
    return (total / (steps - steps // 4)).tolist()


def test_the_posterior_is_its_law_and_without_the_hessian_it_is_not():
    # Friction C = a/ε is kept as ε shrinks: the limit is the dynamics in continuous time.
    for seed in (0, 1):
        coarse, _ = stationary(0.1, True, 0.1, seed=seed)
        fine, heat = stationary(0.1 / 16, True, 0.1 / 4, seed=seed)
        wrong, _ = stationary(0.1 / 16, False, 0.1 / 4, seed=seed)
        assert abs(fine - 1) < 0.02
        assert abs(fine - 1) < max(0.5 * abs(coarse - 1), 0.01)
        assert heat == pytest.approx(1, abs=0.03)
        assert abs(wrong - 1) > 0.05


def test_a_random_network_keeps_the_posterior_up_to_the_step_size():
    module = network(1, scale=0.3, dtype=torch.float32)
    settings = dict(stiffness=(0.3,), coordinates=1000, steps=250, refinement=4, tolerance=0.03)
    report = check_sampler(lambda p: KineticL2E(p, 0.1, 100, network=module), **settings)
    assert report.passed, report
    assert report.verdict == "O(h)"


def test_gradient_noise_heats_it_as_it_heats_sghmc():
    lr, a, noise = 0.1 / 16, 0.1 / 4, 30.0
    for seed in (0, 1):
        variance, _ = stationary(lr, True, a, seed=seed, noise=noise)
        assert variance == pytest.approx(100.0 * sghmc_variance(100.0, lr / 100, a, gradient_noise=noise), rel=0.03)


def test_its_kinetic_temperature_is_that_of_r_minus_f():
    module = network(scale=2.0)
    theta = torch.zeros(3000, dtype=torch.float64, requires_grad=True)
    sampler = KineticL2E([theta], 0.01, 100, network=module, momentum_init="normal")
    slope = torch.randn(3000, dtype=torch.float64)

    def closure():
        theta.grad = slope.clone()
        return (slope * theta.detach()).sum()

    sampler.step(closure)
    phi = phi_of(module)
    settings = dict(segments=Segments((3000,)), num_data=100, prior_precision=0.0)
    f = kinetic_mean(theta.detach(), theta.grad, phi=phi, **settings)
    expected = (sampler.state[theta]["momentum"] - f).square().mean().item()
    report = sampler.temperatures()[0]
    assert report["kinetic"] == pytest.approx(expected, rel=1e-9)
    assert abs(sampler.state[theta]["momentum"].square().mean().item() - expected) > 0.05


def test_a_gradient_that_is_missing_at_the_probe_is_told():
    first, second = nn.Parameter(torch.randn(5)), nn.Parameter(torch.randn(4))
    sampler, calls = KineticL2E([first, second], num_data=100, missing_gradient="skip"), []

    def closure():
        sampler.zero_grad()
        calls.append(1)
        loss = first.square().mean() + (second.square().mean() if len(calls) % 2 else 0.0)
        loss.backward()
        return loss

    before = first.detach().clone()
    with pytest.raises(ValueError, match=r"\(4,\)"):
        sampler.step(closure)
    assert torch.equal(first, before)
