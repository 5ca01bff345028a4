"""Whatever is raised within a step, the chain is where it was: parameters, state, noise, counts; every sampler."""

from __future__ import annotations

import pytest
import torch

from learned_samplers import HMC, AdaptedSGHMC, WhitenedSGHMC
from learned_samplers.base import step
from tests.harness import SAMPLERS, closure_for, running

EVERY = pytest.mark.parametrize("name", SAMPLERS)


class Interrupted(BaseException):
    """Not an Exception, as a KeyboardInterrupt is not."""


@EVERY
@pytest.mark.parametrize("evaluation", [1, 2, 3])
def test_an_error_in_any_evaluation(name, evaluation):
    """The closure fails at its first, second or third call within a step (the probe, the trajectory)."""
    model, sampler, unchanged = running(name)
    ordinary, calls = closure_for(model, sampler), []

    def closure():
        calls.append(1)
        if len(calls) == evaluation:
            raise Interrupted
        return ordinary()

    try:
        sampler.step(closure)
    except Interrupted:
        assert unchanged()
    else:
        assert len(calls) < evaluation


@EVERY
def test_an_error_in_the_first_step_leaves_no_state_behind(name):
    p = torch.ones(3, requires_grad=True)
    sampler = SAMPLERS[name]([p])
    calls = []

    def closure():
        calls.append(1)
        if len(calls) == 2:
            raise Interrupted
        p.grad = p.detach().clone()
        return torch.tensor(1.0)

    noise = torch.get_rng_state()
    try:
        sampler.step(closure)
    except Interrupted:
        assert torch.equal(p.detach(), torch.ones(3))
        assert torch.equal(torch.get_rng_state(), noise)
        assert not any(sampler.state.values())
        assert sampler.step_count == 0


@EVERY
def test_a_step_that_may_overflow_is_undone_with_all_that_it_wrote(name, monkeypatch):
    """Weights, states, noise, and what a sampler counts in its groups, although they have moved already."""
    model, sampler, unchanged = running(name)
    monkeypatch.setattr(step, "_beyond", lambda *_: True)
    own = sampler.advance

    def advance(group, inputs):
        own(group, inputs)
        raise Interrupted

    monkeypatch.setattr(sampler, "advance", advance)
    with pytest.raises(Interrupted):
        sampler.step(closure_for(model, sampler))
    assert unchanged()


@pytest.mark.parametrize("where", ["_uniform", "_record", "_hamiltonian"])
def test_hmc_restores_whatever_is_raised_after_the_trajectory(where, monkeypatch):
    _, sampler, unchanged = running("HMC")
    assert isinstance(sampler, HMC)
    own, calls = getattr(sampler, where), []

    def fail(*arguments):
        calls.append(1)
        if len(calls) == (1 if where == "_record" else 2):
            raise Interrupted
        return own(*arguments)

    monkeypatch.setattr(sampler, where, fail)
    closure = _closure_of(sampler)
    with pytest.raises(Interrupted):
        sampler.step(closure)
    assert unchanged()


def _closure_of(sampler):
    params = [p for group in sampler.param_groups for p in group["params"]]

    def closure():
        sampler.zero_grad()
        with torch.enable_grad():
            loss = sum(p.square().sum() for p in params)
            loss.backward()
        return loss

    return closure


@pytest.mark.parametrize("name", [name for name, make in SAMPLERS.items() if make.cls.takes_prior_mean])
def test_an_error_within_the_update_leaves_no_weight_around_its_priors_mean(name, monkeypatch):
    model, sampler, _ = running(name)
    for group in sampler.param_groups:
        group["prior_mean"] = [torch.full_like(p, 3.0) for p in group["params"]]
    before = [p.detach().clone() for p in model.parameters()]

    def fail(*arguments):
        raise Interrupted

    monkeypatch.setattr(sampler, "advance", fail)
    with pytest.raises(Interrupted):
        sampler.step(closure_for(model, sampler))
    for p, was in zip(model.parameters(), before, strict=True):
        torch.testing.assert_close(p.detach(), was)


@pytest.mark.parametrize("name", ["SGHMC", "L2E", "AdaptedSGHMC"])
@pytest.mark.parametrize("size", [2, 40, 2_000_000])
def test_a_parameter_of_another_shape_is_refused_before_anything_moves(name, size):
    p = torch.nn.Parameter(torch.zeros(16))
    sampler = SAMPLERS[name]([p])
    p.grad = torch.ones(16)
    sampler.step()
    momentum = sampler.state[p]["momentum"].clone()
    p.data, p.grad = torch.zeros(size), None
    p.grad = torch.ones(size)
    with pytest.raises(ValueError, match=r"had the shape \(16,\) in its first step"):
        sampler.step()
    assert torch.equal(sampler.state[p]["momentum"], momentum)
    assert not p.any()


@pytest.mark.parametrize("name", ["SGHMC", "L2E", "KineticL2E", "AdaptedSGHMC"])
def test_a_network_that_is_converted_after_the_first_step_is_refused(name):
    p = torch.nn.Parameter(torch.zeros(16))
    sampler = SAMPLERS[name]([p])

    def closure():
        p.grad = None
        loss = p.square().mean()
        loss.backward()
        return loss

    sampler.step(closure)
    p.data = p.data.double()
    with pytest.raises(ValueError, match=r"the dtype torch.float32: the state does not fit \(16,\) and torch.float64"):
        sampler.step(closure)


@pytest.mark.parametrize("name", ["HMC", "KineticL2E"])
def test_a_sampler_that_half_precision_breaks_is_not_given_it_by_a_later_conversion(name):
    p = torch.nn.Parameter(torch.zeros(16))
    sampler = SAMPLERS[name]([p])
    p.data = p.data.bfloat16()

    def closure():
        p.grad = None
        loss = p.float().square().mean()
        loss.backward()
        return loss

    with pytest.raises(ValueError, match=f"{name} cannot sample parameters of torch.bfloat16"):
        sampler.step(closure)
    assert not p.any()


def test_a_cycle_that_fails_to_begin_leaves_the_state_of_parameters_without_gradient():
    a, b = (torch.nn.Parameter(torch.randn(3, 4)) for _ in range(2))
    sampler = AdaptedSGHMC(
        [a, b],
        num_data=10,
        warmup=WhitenedSGHMC,
        warmup_steps=4,
        cycle_length=6,
        missing_gradient="skip",
        temperature=0.0,
    )
    for _ in range(6):
        a.grad, b.grad = torch.randn(3, 4), torch.randn(3, 4)
        sampler.step()
    before = {p: {name: x.clone() for name, x in sampler.state[p].items()} for p in (a, b)}
    a.grad, b.grad = torch.full((3, 4), 3e38), None
    with pytest.raises(FloatingPointError, match="nothing was changed"):
        sampler.step()
    for p, state in before.items():
        assert set(sampler.state[p]) == set(state)
        assert all(torch.equal(x, sampler.state[p][name]) for name, x in state.items())
