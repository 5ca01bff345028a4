"""pSGLD's second evaluation of the closure, the probe of its correction."""

from __future__ import annotations

import pytest
import torch

from learned_samplers import PSGLD
from tests.harness import closure_for, flat, small_network

NAN = float("nan")


def test_the_correction_of_a_coordinate_without_gradient_is_zero():
    p = torch.zeros(3, requires_grad=True)
    sampler = PSGLD([p], 0.01, 100, correction="probe")

    def closure():
        p.grad = torch.tensor([1.0, 0.0, 0.0])
        return p.sum().detach()

    for _ in range(3):
        sampler.step(closure)
    assert p.isfinite().all()


def test_a_gradient_that_is_not_finite_at_the_probe_changes_nothing():
    p = torch.ones(3, requires_grad=True)
    sampler = PSGLD([("w", p)], 0.01, 100, correction="probe")
    calls = []

    def closure():
        calls.append(1)
        p.grad = torch.full_like(p, 1.0 if len(calls) % 2 else NAN)
        return torch.tensor(1.0)

    with pytest.raises(FloatingPointError, match="'w' is not finite"):
        sampler.step(closure)
    assert torch.equal(p, torch.ones(3))


def test_the_probe_replays_the_random_numbers_of_the_closure():
    """Under dropout the two evaluations see the same mask, or the slope would be mask noise over the probe's size."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(10, 20), torch.nn.Tanh(), torch.nn.Dropout(0.5), torch.nn.Linear(20, 1))
    sampler = PSGLD(model.parameters(), 1e-3, 100, correction="probe", eps=1e-3)
    x, y = torch.randn(32, 10), torch.randn(32, 1)

    def closure():
        sampler.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    for _ in range(20):
        with torch.no_grad():
            (inputs,) = sampler.evaluate(closure).groups
        assert max(slope.abs().max().item() for slope in inputs.per_parameter["curvature"]) < 20
        sampler.step(closure)


def test_a_probe_that_fails_leaves_the_parameters():
    model = small_network()
    sampler = PSGLD(model.parameters(), 0.01, 100, correction="probe")
    ordinary = closure_for(model, sampler)
    calls = []

    def closure():
        calls.append(1)
        return ordinary() if len(calls) % 2 else ordinary() * NAN

    before = flat(model)
    with pytest.raises(FloatingPointError, match="at the probe"):
        sampler.step(closure)
    assert torch.equal(flat(model), before)
    assert sampler.step_count == 0
