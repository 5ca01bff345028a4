"""SGNHT absorbs the heat of noisy gradients, up to a friction of 1."""

import pytest
import torch

from learned_samplers import SGNHT

N = 1000


def run(heat, steps, lr=0.02, temperature=0.5, seed=0):
    """Var θ·k/T, friction and Var r/T on a quadratic, k = N, where the gradient's noise heats a step by 2T·``heat``."""
    torch.manual_seed(seed)
    p = torch.zeros(4000, requires_grad=True)
    sampler = SGNHT([p], lr, N, temperature=temperature, momentum_decay=0.1)
    noise = (2 * temperature * heat * N / lr) ** 0.5 / N  # of the mean loss's gradient: V = noise²·N², η = lr/N
    total = 0.0
    for step in range(steps):
        p.grad = p.detach() + noise * torch.randn(4000)
        sampler.step()
        total += float(p.detach().square().mean()) * N / temperature if step >= steps // 2 else 0.0
    state = sampler.state[p]
    kinetic = float(state["momentum"].square().mean()) / temperature
    return total / (steps - steps // 2), float(state["thermostat"]), kinetic


@pytest.mark.parametrize("heat", [0.0, 0.8])
def test_the_friction_rises_by_the_heat_and_the_variance_stays_right(heat):
    """ζ = a + ηV/2T. 2,000 steps of 4,000 coordinates: Var θ is right to 4 %; SGHMC's is 1 + ηV/2aT times T/k."""
    ratio, friction, kinetic = run(heat, 4000)
    assert kinetic < 6
    assert friction == pytest.approx(0.1 + heat, rel=0.06)
    assert ratio == pytest.approx(1.0, rel=0.04)


@pytest.mark.parametrize("heat", [1.7, 20.0])
def test_beyond_the_largest_friction_the_chain_is_hot_and_stays_finite(heat):
    """θ is an AR(1) process: Var θ = T(a + ηV/2T)/(k(1 − ηk/2)), ηk = 0.02."""
    ratio, friction, _ = run(heat, 2500)
    assert friction == 1.0
    assert ratio == pytest.approx((0.1 + heat) / (1 - 0.01), rel=0.04)


def test_a_steep_start_does_not_explode():
    """Far from the mode the force alone drives the momentum: ηk = 1.5 on a quadratic, 1,000 standard deviations away.
    (Without a largest friction the thermostat is infinite after three steps.)"""
    torch.manual_seed(0)
    p = torch.full((50,), 1000 * N**-0.5, requires_grad=True)
    sampler = SGNHT([p], 1.5, N)
    variances = []
    for _ in range(3000):
        p.grad = p.detach().clone()
        sampler.step()
        variances.append(float(p.detach().square().mean()) * N)
    assert sum(variances[2000:]) / 1000 == pytest.approx(1.0, rel=0.1)
