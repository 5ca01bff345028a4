"""Torch's habits: its names for hyperparameters, its schedulers, missing gradients, shared and lazy parameters."""

from __future__ import annotations

import pytest
import torch

import learned_samplers
from learned_samplers import SGHMC, CyclicalSchedule
from tests.harness import NEED_DRAWS, SAMPLERS, STOCHASTIC, closure_for, flat, small_network

EVERY = pytest.mark.parametrize("name", SAMPLERS)


def test_sghmc_by_momentum_is_sgd_with_it_at_temperature_zero():
    """The limit in torch's own words, in which prior_precision/num_data is its weight decay."""
    one, other = small_network().double(), small_network().double()
    sampler = SGHMC(one.parameters(), 0.05, 100, momentum=0.75, temperature=0.0, prior_precision=3.0)
    sgd = torch.optim.SGD(other.parameters(), 0.05, momentum=0.75, weight_decay=0.03)
    for model, optimizer in ((one, sampler), (other, sgd)):
        for step in range(5):
            for p in model.parameters():
                p.grad = torch.full_like(p, 0.1 * step) + p.detach()
            optimizer.step()
    assert torch.allclose(flat(one), flat(other), atol=1e-12)


# ---------------------------------------------------------------- missing gradients


@pytest.mark.parametrize("name", STOCHASTIC)
def test_a_parameter_without_gradient_is_skipped_on_demand(name):
    model = small_network()
    sampler = SAMPLERS[name](model.parameters(), missing_gradient="skip")
    sampler.step(closure_for(model, sampler))
    model[0].weight.grad = None
    weight, bias = model[0].weight.detach().clone(), model[0].bias.detach().clone()
    sampler.step()
    assert torch.equal(model[0].weight, weight)
    assert not torch.equal(model[0].bias, bias)
    for p in model.parameters():
        p.grad = None
    before = flat(model)
    sampler.step()
    assert torch.equal(flat(model), before)
    assert sampler.step_count == 3


# ---------------------------------------------------------------- schedulers


def _one_cycle(sampler, **settings):
    return torch.optim.lr_scheduler.OneCycleLR(sampler, max_lr=0.1, total_steps=10, **settings)


def _cyclic(sampler, **settings):
    return torch.optim.lr_scheduler.CyclicLR(sampler, base_lr=0.01, max_lr=0.1, step_size_up=3, **settings)


@EVERY
@pytest.mark.parametrize("make", [_one_cycle, _cyclic])
def test_schedulers_that_cycle_the_momentum_work_without_it(name, make):
    model = small_network()
    sampler = SAMPLERS[name](model.parameters())
    if name not in NEED_DRAWS:  # IVON has betas, which torch cycles as it does Adam's
        with pytest.raises(ValueError, match="cycle_momentum"):  # torch's own words, before anything has changed
            make(sampler)
    scheduler = make(sampler, cycle_momentum=False)
    rates = set()
    for _ in range(5):
        sampler.step(closure_for(model, sampler))
        scheduler.step()
        rates.add(sampler.param_groups[0]["lr"])
    assert len(rates) > 3


# ---------------------------------------------------------------- clipped gradients


def _descend(clip, steps=40, **settings):
    torch.manual_seed(0)
    params = [torch.randn(5, 4, requires_grad=True), torch.randn(3, requires_grad=True)]
    sampler = SGHMC(params, 0.01, 100, **settings)
    for _ in range(steps):
        for p in params:
            p.grad = torch.randn_like(p)
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(params, clip)
        sampler.step()


@pytest.mark.parametrize("clip", [1.0, 0.01, 4.5])  # the last one clips only some of the steps
def test_clipped_gradients_are_noticed_once(clip):
    with pytest.warns(UserWarning, match="seem to be clipped") as caught:
        _descend(clip)
    assert len(caught) == 1


@pytest.mark.filterwarnings("error")
def test_unclipped_and_constant_gradients_are_no_clipping():
    _descend(None)
    _descend(1e6)
    params = [torch.zeros(4, requires_grad=True), torch.zeros(3, requires_grad=True)]
    sampler = SGHMC(params, 0.01, 100)
    for p in params:
        p.grad = torch.ones_like(p)
    for _ in range(40):
        sampler.step()


def test_cycled_betas_of_ivon():
    model = small_network()
    sampler = SAMPLERS["IVON"](model.parameters())
    scheduler, seen = _one_cycle(sampler), set()
    for _ in range(5):
        sampler.step(closure_for(model, sampler))
        scheduler.step()
        seen.add(tuple(sampler.param_groups[0]["betas"]))
    assert len(seen) == 5


def test_a_parameter_that_lacked_its_gradient_while_the_mass_was_adapted_has_none():
    model = small_network()
    sampler = SAMPLERS["AdaptedSGHMC"](model.named_parameters(), missing_gradient="skip")
    for _ in range(6):  # two of them with the frozen mass, and still without that parameter
        closure_for(model, sampler)()
        model[0].weight.grad = None
        sampler.step()
    with pytest.raises(ValueError, match=r"'0\.weight' has no mass"):
        sampler.step(closure_for(model, sampler))


@pytest.mark.parametrize("name", ["SGHMC", "L2E", "AdaptedSGHMC-whitened"])
def test_a_step_inside_autocast_is_that_outside(name):
    """Its matrix products must not be rounded; compiled code would read bfloat16 as float32."""
    make = learned_samplers.L2E if name == "L2E" else SAMPLERS[name]  # with the shipped network
    after = []
    for inside in (False, True):
        torch.manual_seed(0)
        layer, x = torch.nn.Linear(20, 30), torch.randn(8, 20)
        sampler = make(layer.parameters(), lr=0.01, num_data=100)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            layer(x).square().mean().backward()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=inside):
            sampler.step()
        after.append([p.detach().clone() for p in layer.parameters()])
    for ours, theirs in zip(*after, strict=True):
        assert torch.equal(ours, theirs)


def test_different_temperatures_are_told_once_and_zero_beside_one_is_fine():
    a, b = (torch.zeros(2, requires_grad=True) for _ in range(2))

    def step(sampler):
        a.grad = b.grad = torch.ones(2)
        sampler.step()

    for schedule in (False, True):
        sampler = SGHMC([{"params": [a]}, {"params": [b], "temperature": 0.01}], 0.1, 10)
        scheduled = CyclicalSchedule(sampler, cycle_length=4, exploration_ratio=0.5) if schedule else None
        with pytest.warns(UserWarning, match=r"heat flows between them.*law of none"):
            step(sampler)
        if scheduled is not None:
            scheduled.step()
        step(sampler)  # warnings are errors here
    step(SGHMC([{"params": [a]}, {"params": [b], "temperature": 0.0}], 0.1, 10))
