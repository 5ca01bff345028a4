"""Whatever is raised within a step, the chain is where it was: parameters, state, noise, counts; every sampler."""

from __future__ import annotations

import pytest
import torch

from learned_samplers import HMC
from learned_samplers.base import gradients
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
    monkeypatch.setattr(gradients, "_beyond", lambda *_: True)
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
