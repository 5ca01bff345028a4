"""A step in which one torch operation after the other fails once, as when memory runs out: nothing, or a marked chain.

After each the weights, the state and the generators are as they were, or the chain refuses to go on from half a step.
"""

import copy

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from learned_samplers import SGHMC, PosteriorSamples
from learned_samplers.base.guards import broken_off, precision
from tests.harness import SAMPLERS, closure_for, flat, same, small_network
from tests.learned_samplers.particles.particle_problems import EVERY as PARTICLES
from tests.learned_samplers.particles.particle_problems import energies, parameter


@pytest.fixture
def versions_are_raised(monkeypatch):
    """`FailsAt` raises the versions that torch forgets beneath a mode, so that they may be relied on."""
    monkeypatch.setattr(broken_off, "dispatch_modes", lambda: 0)


class OutOfMemory(BaseException):
    """Not an Exception, as a KeyboardInterrupt is not."""


class FailsAt(TorchDispatchMode):
    """Raises in place of the operation of that number, once."""

    def __init__(self, number):
        super().__init__()
        self.left = number

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "profiler":  # around a step and zero_grad
            return func(*args, **(kwargs or {}))
        self.left -= 1
        if self.left == 0:
            raise OutOfMemory
        result, name = func(*args, **(kwargs or {})), func._schema.name
        if name.startswith("aten::_foreach_") and name.endswith("_"):  # which torch forgets beneath such a mode
            for x in args[0]:
                torch.autograd.graph.increment_version(x)
        return result


def _chain(name, setting):
    dtype = torch.bfloat16 if setting == "bfloat16" else torch.float32
    model = small_network().to(dtype)
    generator = torch.Generator().manual_seed(3) if setting == "generator" else None
    groups = [{"params": [p]} for p in model.parameters()] if setting == "generator" else model.parameters()
    more = {"prior_mean": "initial", "prior_precision": 1.0} if setting == "prior_mean" else {}
    sampler = SAMPLERS[name](groups, generator=generator, **more)
    torch.manual_seed(1)
    return model, sampler, closure_for(model, sampler)


def _whole(sampler):
    """Return whether the sampler is not marked; one that is refuses, and says what to do."""
    if not sampler.broken_off:
        return True
    for use in (sampler.state_dict, sampler.step):
        with pytest.raises(RuntimeError, match="load a saved state"):
            use()
    return False


def _inject(sampler, weights, step, stride, *, first=1):
    """Return how many places were tried, and after how many of them the chain was marked."""
    saved, start = copy.deepcopy(sampler.state_dict()), weights().clone()
    tried = marked = 0
    number = first
    while True:
        noise = torch.get_rng_state()
        mode = FailsAt(number)
        try:
            with mode:
                step()
        except OutOfMemory:
            pass
        else:
            return tried, marked  # it has fewer operations than that
        tried += 1
        if not _whole(sampler):
            marked += 1
        else:
            assert torch.equal(weights(), start), number
            assert same(sampler.state_dict(), saved), number
        assert torch.equal(torch.get_rng_state(), noise), number
        _set(sampler, start)
        sampler.load_state_dict(copy.deepcopy(saved))
        assert not sampler.broken_off
        number += stride


def _set(sampler, values):
    params = [p for group in sampler.param_groups for p in group["params"]]
    with torch.no_grad():
        for p, value in zip(params, values.split([p.numel() for p in params]), strict=True):
            assert p.dtype == value.dtype
            p.copy_(value.view_as(p))


#: A generator of its own, groups of one parameter each, masters, a prior's mean; and the step that is tried.
CASES = [("plain", name, 0) for name in SAMPLERS] + [("generator", name, 5) for name in SAMPLERS]
CASES += [("bfloat16", "SGHMC", 0), ("bfloat16", "L2E", 5), ("prior_mean", "SGHMC", 5)]


@pytest.mark.parametrize(("setting", "name", "steps"), CASES)
@pytest.mark.usefixtures("versions_are_raised")
def test_a_step_in_which_one_operation_fails(setting, name, steps):
    model, sampler, closure = _chain(name, setting)
    for _ in range(steps):
        sampler.step(closure)
    tried, marked = _inject(sampler, lambda: flat(model), lambda: sampler.step(closure), 11, first=1 + steps)
    assert tried > max(3, marked)


@pytest.mark.parametrize("base", [None, torch.optim.Adam])
@pytest.mark.parametrize("name", PARTICLES)
@pytest.mark.usefixtures("versions_are_raised")
def test_a_step_of_particles_in_which_one_operation_fails(name, base):
    x = parameter(4, 2)
    sampler = PARTICLES[name]([x], 0.1, base_optimizer=base)
    tried, marked = _inject(sampler, lambda: x.detach().view(-1), lambda: sampler.step(lambda: energies(name, x)), 5)
    assert tried > max(3, marked)


@pytest.mark.usefixtures("versions_are_raised")
def test_half_a_step_is_not_saved_and_a_copy_of_it_is_marked_too():
    model, sampler, closure = _chain("SGHMC", "plain")
    posterior = PosteriorSamples(model, sampler)
    sampler.step(closure)
    saved, weights = copy.deepcopy(sampler.state_dict()), copy.deepcopy(model.state_dict())
    rule = sampler.rule

    def fail(*arguments, **keywords):
        rule(*arguments, **keywords)
        raise OutOfMemory

    sampler.rule = fail
    with pytest.raises(OutOfMemory):
        sampler.step(closure)
    for use in (posterior.state_dict, copy.deepcopy(sampler).step):
        with pytest.raises(RuntimeError, match="load a saved state"):
            use()
    sampler.rule = rule
    model.load_state_dict(weights)
    sampler.load_state_dict(saved)
    sampler.step(closure)
    assert len(posterior) == 2
    assert posterior.state_dict()["progress"]["last_step"] == 2


def test_a_step_that_fails_inside_of_a_dispatch_mode_is_seen(monkeypatch):
    """`_foreach_` operations raise no version there, so that nothing shows what an update has written."""
    p = torch.ones(3, requires_grad=True)
    sampler = SGHMC([p], 0.1, 10)
    p.grad = torch.ones(3)
    rule = sampler.rule

    def fails(*tensors, **settings):
        rule(*tensors, **settings)
        raise OutOfMemory

    monkeypatch.setattr(SGHMC, "rule", staticmethod(fails))
    with FlopCounterMode(display=False), pytest.raises(OutOfMemory):
        sampler.step()
    assert not torch.equal(p, torch.ones(3))
    assert sampler.broken_off


@pytest.mark.parametrize("interrupted", ["put_in_place", "swap_out"])
def test_parameters_in_half_precision_stay_so_when_their_masters_are_interrupted(interrupted, monkeypatch):
    params = [torch.ones(3, dtype=torch.bfloat16, requires_grad=True) for _ in range(2)]
    sampler = SGHMC(params, 0.1, 10)
    for p in params:
        p.grad = torch.ones_like(p)
    original, calls = getattr(precision, interrupted), []

    def interrupt(*arguments):
        original(*arguments) if interrupted == "put_in_place" else None
        calls.append(0)
        if len(calls) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(precision, interrupted, interrupt)
    with pytest.raises(KeyboardInterrupt):
        sampler.step()
    assert all(p.dtype == torch.bfloat16 for p in params)
    assert sampler.broken_off is (interrupted == "swap_out")
