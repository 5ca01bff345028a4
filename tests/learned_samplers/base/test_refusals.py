"""Refusals of every sampler, in tables: the error names the argument, and nothing has changed."""

import copy
import math
from functools import partial

import pytest
import torch
from torch import nn

from learned_samplers import HMC, L2E, PSGLD, SGHMC, SGLD, AdaptedSGHMC, CyclicalSchedule
from tests.harness import NEED_DRAWS, SAMPLERS, STOCHASTIC, closure_for, flat, running, small_network

EVERY = pytest.mark.parametrize("name", SAMPLERS)
NAN = math.nan


def parameter(*shape):
    return torch.zeros(shape or (3,), requires_grad=True)


WITH_MOMENTUM = {name for name, make in SAMPLERS.items() if "momentum_decay" in make([parameter()]).defaults}

# ---------------------------------------------------------------- at construction; bad values: `test_declarations.py`


@EVERY
@pytest.mark.parametrize(
    ("params", "match"),
    [
        (lambda: {parameter()}, "params must be in an order, got a set"),
        (lambda: [{"params": {parameter()}}], "params must be in an order, got a set"),
        (lambda: [{"params": None}], "groups, got NoneType"),
        (lambda: [{"params": 3}], "groups, got int"),
        (lambda: [("a",)], r"params\[0\] must be .* got a tuple of 1"),
        (lambda: [{"params": [parameter(), ("a", parameter(), 3)]}], r"params\[1\] must be .* got a tuple of 3"),
    ],
)
def test_what_holds_no_tensors(name, params, match):
    with pytest.raises(TypeError, match=match):
        SAMPLERS[name](params())


#: What training code of torch's optimizers gives, and our word that the error must contain.
OURS = [("weight_decay", "prior_precision = num_data"), ("momentum", "momentum_decay"), ("betas", "momentum_decay")]


@EVERY
def test_torchs_names_are_refused_with_ours_and_names_that_no_sampler_has(name):
    for argument in ("nesterov", "colour"):
        with pytest.raises(TypeError, match=argument):
            SAMPLERS[name]([parameter()], **{argument: True})
    had = {"momentum"} if name in WITH_MOMENTUM else {"betas"} if name in NEED_DRAWS else set()
    for theirs, ours in OURS:
        if theirs not in had:
            with pytest.raises(TypeError, match=ours):
                SAMPLERS[name]([parameter()], **{theirs: 0.9})
            with pytest.raises(ValueError, match=ours):
                SAMPLERS[name]([{"params": [parameter()], theirs: 0.9}])


_MEMORY = torch.zeros(6)
TENSORS = [
    (lambda: [], ValueError, "empty"),
    (lambda: [{"params": []}], ValueError, "empty"),
    (lambda: [{"params": {parameter()}}], TypeError, "set"),
    (lambda: ["weight"], TypeError, "tensor"),
    (lambda: [("bias", torch.zeros(2, dtype=torch.complex64).requires_grad_())], TypeError, "'bias'.*real floating"),
    (lambda: [torch.zeros(2).to_sparse()], TypeError, "dense"),
    (lambda: nn.Sequential(nn.LazyLinear(4)).named_parameters(), ValueError, r"'0\.weight'"),
    (lambda: [parameter()] * 2, ValueError, "twice"),
    (lambda: [{"params": [p]} for p in [parameter()] * 2], ValueError, "twice"),
    (lambda: [nn.Parameter(torch.zeros(1).expand(4))], ValueError, "overlaps itself"),
    (lambda: [nn.Parameter(_MEMORY), nn.Parameter(_MEMORY[2:4])], ValueError, "overlap in memory"),
    (lambda: [{"params": [parameter()], "step": -5}], ValueError, "step"),
    (lambda: [{"params": [parameter()], "step": "a"}], TypeError, "step"),
    (lambda: [{"params": [parameter()], "lrr": 0.1}], ValueError, "'lrr'"),
]


@EVERY
def test_parameters_and_groups(name):
    for make, error, said in TENSORS:
        with pytest.raises(error, match=said):
            SAMPLERS[name](make())


@EVERY
def test_a_bad_group_is_refused_whole(name):
    sampler = SAMPLERS[name]([parameter()])
    bad = [({"params": [parameter()], "lr": -3}, "lr"), ({"lr": 1.0}, "'params'"), ([parameter()], "param_group")]
    for group, said in bad:
        with pytest.raises((ValueError, TypeError), match=said):
            sampler.add_param_group(group)
    assert len(sampler.param_groups) == 1


def test_what_is_no_mistake():
    base, lstm = torch.zeros(8), nn.LSTM(3, 4).parameters()
    for params in ([base[:4], base[4:]], [base[::2], base[1::2]], lstm):
        SGLD([nn.Parameter(p) if isinstance(params, list) else p for p in params], 0.1, 10)
    group = {"params": [parameter()], "name": "trunk", "initial_lr": 0.1, "lr_scale": 0.5}
    assert SGLD([group], 0.1, 100).param_groups[0]["name"] == "trunk"
    with pytest.raises(TypeError, match="alpha is called decay"):
        PSGLD([parameter()], 0.1, 100, alpha=0.99)


@pytest.mark.parametrize("name", sorted(WITH_MOMENTUM))
def test_momentum_is_one_minus_its_decay_as_keyword_and_in_a_group(name):
    make = SAMPLERS[name]
    for momentum in (0.0, 0.75):
        declared = {"params": [parameter()], "momentum": momentum}
        for sampler in (
            make([{"params": [parameter()]}, {"params": [parameter()]}], momentum=momentum),
            make([declared]),
        ):
            assert {group["momentum_decay"] for group in sampler.param_groups} == {1 - momentum}
            assert "momentum" not in sampler.param_groups[0]
        assert declared["momentum"] == momentum, "the user's own dict stays"
    both = {"momentum": 0.9, "momentum_decay": 0.1}
    for params, keywords in (([parameter()], both), ([{"params": [parameter()], **both}], {})):
        with pytest.raises(ValueError, match=r"momentum=0\.9 and momentum_decay=0\.1"):
            make(params, **keywords)
    for wrong, error in ((1.0, ValueError), (-0.1, ValueError), ("fast", TypeError)):
        with pytest.raises(error, match="momentum must"):
            make([parameter()], momentum=wrong)


def test_momentum_replaces_that_of_a_trained_optimizer_too():
    p = parameter()
    adam = torch.optim.Adam([p], betas=(0.8, 0.99))
    p.grad = torch.ones(3)
    adam.step()
    for keywords, expected in (({}, 0.2), ({"momentum": 0.5}, 0.5), ({"momentum_decay": 0.3}, 0.3)):
        (group,) = AdaptedSGHMC.from_optimizer(adam, 100, **keywords).param_groups
        assert group["momentum_decay"] == pytest.approx(expected)
    with pytest.raises(ValueError, match="momentum_decay"):
        AdaptedSGHMC.from_optimizer(adam, 100, momentum=0.5, momentum_decay=0.5)


# ---------------------------------------------------------------- between steps, by a hand, a scheduler or a state


@EVERY
def test_a_bad_value_in_the_second_group_leaves_the_first_alone(name):
    model = small_network()
    sampler = SAMPLERS[name]([{"params": model[0].parameters()}, {"params": model[2].parameters()}])
    sampler.step(closure_for(model, sampler))
    before, noise, good = flat(model), torch.get_rng_state(), sampler.param_groups[1]["temperature"]
    sampler.param_groups[1]["temperature"] = NAN
    for _ in range(2):  # a second try is refused like the first
        with pytest.raises(ValueError, match="temperature"):
            sampler.step(closure_for(model, sampler))
    assert torch.equal(flat(model), before)
    assert torch.equal(torch.get_rng_state(), noise)
    sampler.param_groups[1]["temperature"] = good
    sampler.step(closure_for(model, sampler))
    assert [group["step"] for group in sampler.param_groups] == [2, 2]


@pytest.mark.parametrize("cyclical", [False, True])
def test_a_schedule_with_a_broken_peak_or_that_writes_nonsense_is_refused(cyclical):
    model, sampler, _ = running("SGHMC")
    if cyclical:
        schedule = CyclicalSchedule(sampler, 5)
        sampler.param_groups[0]["peak_lr"] = NAN
    else:
        schedule = torch.optim.lr_scheduler.LambdaLR(sampler, lambda step: NAN if step else 1.0)
        sampler.step(closure_for(model, sampler))
    schedule.step()
    before = flat(model)
    with pytest.raises(ValueError, match="lr must be finite"):
        sampler.step(closure_for(model, sampler))
    assert torch.equal(flat(model), before)


@pytest.mark.parametrize("name", STOCHASTIC)
@pytest.mark.parametrize("key", ["weight_decay", "momentum"])
def test_torchs_keys_that_are_written_into_a_group_later_are_refused(name, key):
    """Schedules of the weight decay write it into every group at every step; nothing would read it."""
    model, sampler, _ = running(name)
    before = flat(model)
    sampler.param_groups[0]["lr_mult"] = 2.0  # a key of somebody's own says nothing about the law
    sampler.param_groups[0][key] = 0.04
    with pytest.raises(ValueError, match=key):
        sampler.step(closure_for(model, sampler))
    assert torch.equal(flat(model), before)
    del sampler.param_groups[0][key]
    sampler.step(closure_for(model, sampler))
    assert not torch.equal(flat(model), before)


@pytest.mark.parametrize("cls", [SGLD, SGHMC])
def test_groups_that_disagree_about_the_number_of_data_are_refused(cls):
    params = [parameter() for _ in range(3)]
    for p in params:
        p.grad = torch.ones(3)
    sampler = cls([{"params": [p]} for p in params[:2]], lr=0.1, num_data=100)
    sampler.step()
    before = params[0].detach().clone()
    sampler.param_groups[0]["num_data"] = 400
    with pytest.raises(ValueError, match="num_data"):
        sampler.step()
    assert torch.equal(params[0].detach(), before)
    sampler.param_groups[1]["num_data"] = 400
    sampler.step()
    with pytest.raises(ValueError, match="num_data"):
        sampler.add_param_group({"params": [params[2]], "num_data": 100})


def test_a_tensor_that_is_changed_in_place_is_validated_again():
    p = parameter()
    sampler = SGLD([p], torch.tensor(0.1), 100)
    p.grad = torch.zeros(3)
    sampler.step()
    sampler.param_groups[0]["lr"].fill_(0.0)  # where a schedule may end
    sampler.step()
    sampler.param_groups[0]["lr"].fill_(-1.0)
    with pytest.raises(ValueError, match="lr must"):
        sampler.step()


# ---------------------------------------------------------------- saved states


def _replaced(make):
    """Spoils the first state tensor of the first parameter."""

    def spoil(saved):
        entry = saved["state"][0]
        key = next(iter(entry))
        entry[key] = make(entry[key])

    return spoil


def _renamed(saved):
    entry = saved["state"][0]
    entry["velocity"] = entry.pop(next(iter(entry)))


_NO_CPU, _NO_GENERATOR = torch.zeros(3, dtype=torch.uint8), torch.Generator().get_state()
STATES = {
    "another sampler's": (lambda saved: saved["sampler"].update(name="Metropolis"), "Metropolis"),
    "torch's": (lambda saved: saved.pop("sampler"), "another optimizer"),
    "fewer parameters": (lambda saved: saved["param_groups"][0].update(params=[0, 1]), "2 parameters"),
    "another order": (lambda saved: saved["param_groups"][0]["param_names"].reverse(), r"'0\.weight'"),
    "other shapes": (lambda saved: saved["sampler"]["shapes"].__setitem__(1, [7]), r"\(7,\) for parameter '0\.bias'"),
    "no shapes": (lambda saved: saved["sampler"].update(shapes=[[3]]), "shapes"),
    "no lr": (lambda saved: saved["param_groups"][0].pop("lr"), "no lr"),
    "half a step": (lambda saved: saved["param_groups"][0].update(step=1.5), "step"),
    "no noise": (lambda saved: saved["sampler"].update(rng={}), "random number generator"),
    "noise of its own": (lambda saved: saved["sampler"].update(rng={"generator": _NO_GENERATOR}), "generator"),
    "malformed noise": (lambda saved: saved["sampler"].update(rng={"cpu": _NO_CPU}), "the CPU's random number"),
}
_STATELESS = {"a tensor too many": (lambda saved: saved["state"].update({0: {"momentum": _NO_CPU}}), "momentum")}
_OF_TENSORS = {
    "not finite": (_replaced(lambda x: torch.full_like(x, NAN)), "is not finite"),
    "complex": (_replaced(lambda x: x.to(torch.complex64)), "real floating-point"),
    "no tensor": (_replaced(lambda x: 3.0), "real floating-point"),
    "a tensor of another shape": (_replaced(lambda x: torch.zeros(7, 7)), r"'0\.weight' has shape \(7, 7\)"),
    "a tensor of another name": (_renamed, "velocity"),
    "a tensor missing": (lambda saved: saved["state"].pop(0), r"'0\.weight'"),
}


@EVERY
def test_a_broken_saved_state_is_refused_and_changes_nothing(name):
    _, sampler, unchanged = running(name)
    cases = STATES | (_OF_TENSORS if sampler.state_names else _STATELESS)
    for case, (spoil, said) in cases.items():
        saved = copy.deepcopy(sampler.state_dict())
        saved["param_groups"][0]["lr"] = 7.0
        del saved["sampler"]["settings_checksum"]
        spoil(saved)
        with pytest.raises((ValueError, TypeError), match=said):
            sampler.load_state_dict(saved)
        assert unchanged(), case


def test_the_state_of_another_devices_generator_is_refused_before_anything_is_loaded():
    sampler = SGHMC(small_network().parameters(), 0.1, 10, generator=torch.Generator().manual_seed(1))
    before, saved = sampler.generator.get_state(), sampler.state_dict()
    saved["sampler"]["rng"] = {"generator": torch.zeros(16, dtype=torch.uint8)}  # as a GPU's is
    with pytest.raises(ValueError, match="generator on cpu"):
        sampler.load_state_dict(saved)
    assert torch.equal(sampler.generator.get_state(), before)


# ---------------------------------------------------------------- the prior's mean

MEANS = [
    ("start", ValueError),
    (3.0, TypeError),
    ([1.0, 2.0], TypeError),
    ([torch.zeros(3)], ValueError),
    ([torch.zeros(3), torch.zeros(1)], ValueError),
    ([torch.zeros(3), torch.full((4,), NAN)], ValueError),
    ([torch.zeros(3), torch.zeros(4, dtype=torch.complex64)], ValueError),
]


@pytest.mark.parametrize(("mean", "error"), MEANS)
def test_a_bad_mean_of_the_prior(mean, error):
    """At construction, written into a group by hand, and in a saved state."""
    params = [torch.randn(size).requires_grad_() for size in (3, 4)]
    sampler = SGLD(params, 0.1, 100, prior_precision=1.0, prior_mean="initial")
    prior_mean, before = sampler.param_groups[0]["prior_mean"], [p.detach().clone() for p in params]
    with pytest.raises(error, match="prior_mean"):
        SGLD(params, 0.1, 100, prior_mean=mean)
    saved = copy.deepcopy(sampler.state_dict())
    saved["param_groups"][0].update(lr=0.7, prior_mean=mean)
    with pytest.raises((ValueError, TypeError), match="prior_mean of parameter group 0"):
        sampler.load_state_dict(saved)
    assert sampler.param_groups[0]["prior_mean"] is prior_mean
    assert sampler.param_groups[0]["lr"] == 0.1
    sampler.param_groups[0]["prior_mean"] = mean
    for p in params:
        p.grad = torch.ones_like(p)
    with pytest.raises((ValueError, TypeError), match="prior_mean"):
        sampler.step()
    assert all(map(torch.equal, params, before))


@pytest.mark.parametrize("name", [name for name in SAMPLERS if not SAMPLERS[name].cls.takes_prior_mean])
def test_a_mean_is_refused_where_the_energy_has_the_prior_at_zero(name):
    with pytest.raises(ValueError, match="prior_mean"):
        SAMPLERS[name]([{"params": [parameter()], "prior_mean": "initial"}])
    saved = SAMPLERS[name]([parameter()]).state_dict()
    saved["param_groups"][0]["prior_mean"] = [torch.ones(3)]
    with pytest.raises(ValueError, match="prior_mean"):
        SAMPLERS[name]([parameter()]).load_state_dict(saved)


def test_a_further_group_does_not_take_the_first_ones_tensors():
    a, b, mean = parameter(), parameter(), torch.ones(3)
    with pytest.raises(ValueError, match="prior_mean"):
        SGLD([{"params": [a]}, {"params": [b]}], 0.1, 100, prior_mean=[mean])
    sampler = SGLD([a], 0.1, 100, prior_mean=[mean])
    with pytest.raises(ValueError, match="prior_mean"):
        sampler.add_param_group({"params": [b]})
    assert len(sampler.param_groups) == 1
    sampler.add_param_group({"params": [b], "prior_mean": None})


# ---------------------------------------------------------------- closures and precision


@pytest.mark.parametrize("name", ["HMC", "MCLMC"])
def test_a_closure_that_returns_nothing_where_the_loss_is_read(name):
    p = nn.Parameter(torch.zeros(3))
    sampler = SAMPLERS[name]([p])
    with pytest.raises(ValueError, match="must return the mean loss"):
        sampler.step(lambda: p.square().sum().backward())
    with pytest.raises(ValueError, match="needs a closure"):
        sampler.step()


@pytest.mark.parametrize(
    ("cls", "dtype", "given"),
    [(partial(PSGLD, eps=1e-8), torch.float16, False), (L2E, torch.float16, False), (SGLD, torch.float32, True)],
)
def test_master_weights_that_the_dtype_does_not_allow(cls, dtype, given):
    with pytest.raises(ValueError, match="master_weights"):
        cls([parameter().detach().to(dtype).requires_grad_()], 0.1, 100, master_weights=given)
    HMC([parameter().detach().bfloat16().requires_grad_()], 0.1, 100, master_weights=False)  # at one's own risk
