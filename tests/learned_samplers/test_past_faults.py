"""Faults that a reviewer once found in samplers, each with the test that catches it."""

from __future__ import annotations

import pytest
import torch

from learned_samplers import HMC, PSGLD, SGLD, CyclicalSGMCMC
from tests.harness import SAMPLERS, closure_for, small_network

EVERY = pytest.mark.parametrize("name", SAMPLERS)
NAN, INF = float("nan"), float("inf")


def parameter():
    return torch.zeros(3, requires_grad=True)


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


def test_a_frozen_parameter_with_an_old_gradient_stays():
    a, b = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    sampler = SGLD([a, b], 0.1, 10)
    a.grad, b.grad = torch.zeros(2), torch.zeros(2)
    b.requires_grad_(False)
    sampler.step()
    assert torch.equal(b, torch.ones(2))
    assert not torch.equal(a, torch.ones(2))


def test_the_base_of_a_cyclical_sampler_is_one_and_is_checked_when_loading():
    with pytest.raises(ValueError, match="base must be the same"):
        CyclicalSGMCMC([{"params": [parameter()], "base": "sgld"}], 0.1, 100, cycle_length=10)
    saved = CyclicalSGMCMC([parameter()], 0.1, 100, cycle_length=10, base="sgld").state_dict()
    with pytest.raises(ValueError, match="base='sgld'"):
        CyclicalSGMCMC([parameter()], 0.1, 100, cycle_length=10).load_state_dict(saved)


def test_a_snapshot_of_hmc_in_memory_stays_as_it_was():
    model = small_network()
    sampler = HMC(model.parameters(), 0.1, 100, adapt_steps=5)
    sampler.step(closure_for(model, sampler))
    snapshot = sampler.state_dict()["param_groups"][0]["tally"]
    before = dict(snapshot)
    sampler.step(closure_for(model, sampler))
    assert snapshot == before


def test_parameters_in_a_set_and_a_group_without_any_are_refused():
    with pytest.raises(TypeError, match="set"):
        SGLD([{"params": {parameter()}}], 0.1, 10)
    with pytest.raises(ValueError, match="'params'"):
        SGLD([parameter()], 0.1, 10).add_param_group({"lr": 1.0})


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_noise_of_a_gpu_that_is_not_there_cannot_be_resumed_silently():
    sampler = SGLD([parameter()], 0.1, 10)
    saved = sampler.state_dict()
    saved["sampler"]["rng"]["cuda:0"] = torch.zeros(16, dtype=torch.uint8)
    with pytest.warns(UserWarning, match="noise of cuda:0"):
        sampler.load_state_dict(saved)
