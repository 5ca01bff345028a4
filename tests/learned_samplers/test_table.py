"""The one table of samplers: complete, true of each sampler, and open to a user's own."""

import inspect

import pytest
import torch

import learned_samplers
from learned_samplers import SGLD, Sampler, approximations, check_sampler
from learned_samplers.particles.base import ParticleSampler
from learned_samplers.table import SAMPLERS, Entry, register
from tests.harness import closure_for, small_network


def test_every_sampler_that_the_package_exports_has_a_line():
    rooms = [learned_samplers, approximations]
    exported = [getattr(room, name) for room in rooms for name in room.__all__]
    samplers = {x.__name__ for x in exported if inspect.isclass(x) and issubclass(x, Sampler) and x is not Sampler}
    assert samplers - {x.__name__ for x in exported if inspect.isclass(x) and issubclass(x, ParticleSampler)} <= set(
        SAMPLERS
    )


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_line_makes_a_sampler_that_runs_and_says_what_it_can_do(name):
    entry, model = SAMPLERS[name], small_network()
    sampler = entry(model.parameters(), lr=0.01, num_data=16)
    before = [p.clone() for p in model.parameters()]
    torch.manual_seed(0)
    sampler.step(closure_for(model, sampler))
    assert sampler.step_count == 1
    if name != "HMC":  # which may have refused its proposal
        assert any(not torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    assert entry.name == name == type(sampler).__name__
    assert entry.law in ("exact", "O(h)", "heuristic")
    assert entry.summary.endswith(".")
    if entry.needs_closure:
        with pytest.raises(ValueError, match="closure"):
            entry(small_network().parameters()).step()
    assert all(isinstance(answer, bool) for answer in (entry.stacked, entry.sharded, entry.differentiable))


def test_the_settings_of_a_line_give_way_to_those_of_a_call():
    assert SAMPLERS["HMC"](small_network().parameters(), leapfrog_steps=7).param_groups[0]["leapfrog_steps"] == 7


def test_a_users_own_sampler_registers_and_is_checked():
    class Halved(SGLD):
        """SGLD at half the rate."""

        def hyper(self, group, **options):
            hyper = super().hyper(group, **options)
            return {**hyper, "lr": hyper["lr"] / 2}

    try:
        assert register(Halved) is SAMPLERS["Halved"]
        assert SAMPLERS["Halved"].law == "O(h)"
        assert check_sampler(lambda params: SAMPLERS["Halved"](params, lr=0.02))
    finally:
        del SAMPLERS["Halved"]


@pytest.mark.parametrize("wrong", [torch.optim.SGD, SGLD(small_network().parameters(), 0.1, 1), "SGLD", Entry])
def test_what_is_no_sampler_is_refused(wrong):
    with pytest.raises(TypeError, match="sampler must be a subclass of Sampler"):
        register(wrong)
