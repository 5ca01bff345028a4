"""Torch's habits: its names for hyperparameters, its schedulers, missing gradients, shared and lazy parameters."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import learned_samplers
from learned_samplers import PSGLD, SGHMC, SGLD
from tests.harness import NEED_DRAWS, SAMPLERS, STOCHASTIC, closure_for, flat, small_network

EVERY = pytest.mark.parametrize("name", SAMPLERS)


def parameter(*shape):
    return torch.zeros(shape or (3,), requires_grad=True)


WITH_MOMENTUM = {name for name, make in SAMPLERS.items() if "momentum_decay" in make([parameter()]).defaults}


@EVERY
@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("weight_decay", "prior_precision = num_data"),
        ("momentum", "momentum_decay = 1 - momentum"),
        ("betas", "momentum_decay"),
        ("nesterov", "nor any counterpart"),
        ("colour", "known are .*num_data|known are momentum_decay"),
    ],
)
def test_torchs_arguments_are_refused_with_ours(name, argument, message):
    if (argument == "betas" and name in NEED_DRAWS) or (argument == "momentum" and name in WITH_MOMENTUM):
        pytest.skip("this sampler has it")
    with pytest.raises(TypeError, match=message):
        SAMPLERS[name]([parameter()], **{argument: 0.9})


@EVERY
def test_torchs_keys_in_a_group_are_refused_with_ours(name):
    with pytest.raises(ValueError, match=r"prior_precision = num_data \* weight_decay = 100 \* 0.0005 = 0.05"):
        SAMPLERS[name]([{"params": [parameter()], "weight_decay": 5e-4}])
    if name not in WITH_MOMENTUM:
        with pytest.raises(ValueError, match="momentum_decay = 1 - momentum"):
            SAMPLERS[name]([{"params": [parameter()], "momentum": 0.9}])
    sampler = SAMPLERS[name]([parameter()])
    with pytest.raises(ValueError, match="no key 'lrr'"):
        sampler.add_param_group({"params": [parameter()], "lrr": 0.1})
    assert len(sampler.param_groups) == 1


@pytest.mark.parametrize("name", STOCHASTIC)
@pytest.mark.parametrize(("key", "message"), [("weight_decay", "prior_precision = num_data"), ("momentum", "momentum")])
def test_torchs_keys_that_are_written_into_a_group_later_are_refused(name, key, message):
    """Schedules of the weight decay write it into every group at every step; nothing would read it."""
    model = small_network()
    sampler = SAMPLERS[name](model.parameters())
    sampler.step(closure_for(model, sampler))
    before = flat(model)
    sampler.param_groups[0]["lr_mult"] = 2.0  # a key of somebody's own says nothing about the law
    sampler.param_groups[0][key] = 0.04
    with pytest.raises(ValueError, match=f"has been given '{key}', which it does not read: .*{message}"):
        sampler.step(closure_for(model, sampler))
    assert torch.equal(flat(model), before)
    del sampler.param_groups[0][key]
    sampler.step(closure_for(model, sampler))
    assert not torch.equal(flat(model), before)


def test_labels_and_schedulers_keys_are_no_hyperparameters():
    group = {"params": [parameter()], "name": "trunk", "initial_lr": 0.1, "lr_scale": 0.5}
    assert SGLD([group], 0.1, 100).param_groups[0]["name"] == "trunk"
    with pytest.raises(TypeError, match="alpha is called decay"):
        PSGLD([parameter()], 0.1, 100, alpha=0.99)
    with pytest.raises(TypeError, match="SGLD has no momentum"):
        SGLD([parameter()], 0.1, 100, momentum=0.9)


@pytest.mark.parametrize("name", sorted(WITH_MOMENTUM))
def test_momentum_is_one_minus_its_decay_as_keyword_and_in_a_group(name):
    for momentum in (0.0, 0.75):
        by_keyword = SAMPLERS[name]([{"params": [parameter()]}, {"params": [parameter()]}], momentum=momentum)
        assert [group["momentum_decay"] for group in by_keyword.param_groups] == [1 - momentum] * 2
        given = {"params": [parameter()], "momentum": momentum}
        in_group = SAMPLERS[name]([given]).param_groups[0]
        assert in_group["momentum_decay"] == 1 - momentum
        assert "momentum" not in in_group
        assert given["momentum"] == momentum, "the user's own dict stays"
    for make in (
        lambda: SAMPLERS[name]([parameter()], momentum=0.9, momentum_decay=0.1),
        lambda: SAMPLERS[name]([{"params": [parameter()], "momentum": 0.9, "momentum_decay": 0.1}]),
    ):
        with pytest.raises(ValueError, match=r"momentum=0.9 and momentum_decay=0.1"):
            make()
    for wrong, error in ((1.0, ValueError), (-0.1, ValueError), ("fast", TypeError)):
        with pytest.raises(error, match="momentum must"):
            SAMPLERS[name]([parameter()], momentum=wrong)


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


@EVERY
def test_the_choices_for_a_missing_gradient(name):
    with pytest.raises(ValueError, match="missing_gradient must be one of 'error', 'skip', got 'ignore'"):
        SAMPLERS[name]([parameter()], missing_gradient="ignore")


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


# ---------------------------------------------------------------- parameters


@EVERY
def test_one_parameter_twice_is_refused(name):
    p = parameter()
    with pytest.raises(ValueError, match="twice"):
        SAMPLERS[name]([p, p])
    with pytest.raises(ValueError, match="twice"):
        SAMPLERS[name]([{"params": [p]}, {"params": [p]}])


@EVERY
def test_parameters_that_share_memory_are_refused(name):
    base = torch.zeros(6)
    with pytest.raises(ValueError, match="overlap in memory"):
        SAMPLERS[name]([nn.Parameter(base), nn.Parameter(base[2:4])])
    with pytest.raises(ValueError, match="overlaps itself"):
        SAMPLERS[name]([nn.Parameter(torch.zeros(1).expand(4))])


def test_neighbours_in_one_memory_are_no_overlap():
    base = torch.zeros(8)
    SGLD([nn.Parameter(base[:4]), nn.Parameter(base[4:])], 0.1, 10)
    SGLD([nn.Parameter(base[::2]), nn.Parameter(base[1::2])], 0.1, 10)
    SGLD(nn.LSTM(3, 4).parameters(), 0.1, 10)


@EVERY
def test_a_lazy_network_is_refused_by_name(name):
    model = nn.Sequential(nn.LazyLinear(4))
    with pytest.raises(ValueError, match=r"'0\.weight' is not initialised .*one batch"):
        SAMPLERS[name](model.named_parameters())
    model(torch.zeros(2, 3))
    SAMPLERS[name](model.named_parameters())


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
