"""BAOA: no bias on Gaussians at any stable step, its closed forms, its limits, and planted faults that are found."""

import math

import pytest
import torch

from learned_samplers import BAOA, check_sampler
from learned_samplers.classical.baoa import baoa_rule
from tests.harness import flat, small_network

N = 100


def baoa(decay, lr=0.1, **settings):
    """Maker of a chain with this momentum decay."""
    return lambda p: BAOA(p, lr, N, momentum_decay=decay, **settings)


DECAYS = pytest.mark.parametrize("decay", [0.01, 0.1, 0.5, 1.0])


@pytest.mark.parametrize(("decay", "temperature"), [(0.01, 1.0), (0.1, 0.1), (0.5, 1.0), (1.0, 0.1)])
def test_there_is_no_bias_on_gaussians_up_to_the_edge_of_stability(decay, temperature):
    # Stiffness lr·k/N; steps for a chain that forgets in 1/a steps. The simulation begins in its law.
    stiffness = (0.1, 1.0, 3.0, 3.9)
    steps = max(100, round(5 / decay))
    settings = dict(stiffness=stiffness, dtype=torch.float64, coordinates=4000, steps=steps, tolerance=0.05)
    report = check_sampler(baoa(decay, temperature=temperature), **settings)
    assert report.linear
    assert report.verdict == "exact", report
    for r in report.results:
        assert r.expected_variance == pytest.approx(temperature / r.curvature, rel=1e-6)
        assert r.kinetic_temperature == pytest.approx(1, rel=0.03)
    assert report.passed, report


@DECAYS
def test_it_is_stable_below_four_and_not_above(decay):
    for stiffness, verdict in ((3.999, "exact"), (4.001, "unstable")):
        settings = dict(stiffness=(stiffness,), dtype=torch.float64, coordinates=100, steps=10)
        assert check_sampler(baoa(decay), **settings).verdict == verdict


@DECAYS
@pytest.mark.parametrize(("lr", "temperature", "noise"), [(0.1, 1.0, 30.0), (1.0, 1.0, 30.0), (0.1, 0.1, 5.0)])
def test_gradient_noise_heats_it_by_the_closed_form(decay, lr, temperature, noise):
    report = check_sampler(baoa(decay, lr, temperature=temperature), gradient_noise=noise, coordinates=100, steps=10)
    for r in report.results:
        eta = lr / N
        heated = 1 + eta * noise * (2 - decay) / (decay * temperature * (4 - eta * r.curvature))
        assert r.expected_variance == pytest.approx(temperature / r.curvature * heated, rel=1e-6)


@pytest.mark.parametrize("prior", [0.0, 3.0])
@DECAYS
def test_at_temperature_zero_it_is_sgd_from_the_first_step_on(decay, prior):
    one, two = small_network().double(), small_network().double()
    sampler = BAOA(one.parameters(), 0.1, N, momentum_decay=decay, temperature=0.0, prior_precision=prior)
    sgd = torch.optim.SGD(two.parameters(), 0.1 * (1 - decay / 2), momentum=1 - decay, weight_decay=prior / N)
    x, y = torch.randn(16, 3, dtype=torch.float64), torch.randint(2, (16,))
    for _ in range(20):
        for model, optimizer in ((one, sampler), (two, sgd)):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        assert torch.allclose(flat(one), flat(two), rtol=0, atol=1e-14)


def test_without_memory_it_is_the_method_of_leimkuhler_and_matthews():
    p = torch.randn(50, dtype=torch.float64).requires_grad_()
    sampler = BAOA([p], 0.3, N, momentum_decay=1.0, temperature=0.7)
    eta, before = 0.3 / N, torch.zeros_like(p)
    for step in range(5):
        p.grad = torch.sin(p.detach()) / N
        torch.manual_seed(step)
        noise = torch.randn_like(p)
        expected = p.detach() - eta / 2 * N * p.grad + math.sqrt(eta * 0.7) * (noise + before) / 2
        torch.manual_seed(step)
        sampler.step()
        assert torch.allclose(p, expected, rtol=0, atol=1e-14)
        before = noise


def _noise_of_sghmc(x, g, noise, r, **h):
    scale = math.sqrt(2 / (2 - h["momentum_decay"]))  # √(2aT) in the place of √(T(1−c²))
    return baoa_rule(x, g, None if noise is None else [n * scale for n in noise], r, **h)


def _noise_in_the_drift(x, g, noise, r, *, ops, **h):
    step = math.sqrt(h["lr"] / h["num_data"])
    after, momentum = baoa_rule(x, g, noise, r, ops=ops, **h)
    return ops.add(after, noise, step / 2), momentum


def _without_the_second_drift(x, g, noise, r, *, ops, **h):
    step = math.sqrt(h["lr"] / h["num_data"])
    after, momentum = baoa_rule(x, g, noise, r, ops=ops, **h)
    return ops.add(after, momentum, -step / 2), momentum


@pytest.mark.parametrize("fault", [_noise_of_sghmc, _noise_in_the_drift, _without_the_second_drift])
def test_planted_faults_are_found(fault):
    class Faulty(BAOA):
        rule = staticmethod(fault)

    report = check_sampler(lambda p: Faulty(p, 0.1, N), stiffness=(0.5, 2.0), dtype=torch.float64, coordinates=2000)
    assert report.verdict != "exact", report
