"""Priors of parameter groups: each group its own, beside a prior's mean, joined whole or not at all."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from learned_samplers import L2E, SGHMC, SVGD, AdaptedSGHMC, CyclicalSchedule
from learned_samplers.base.sampler import Sampler
from learned_samplers.priors import FanIn, GammaHyperprior
from tests.harness import closure_for, flat, small_network


def groups_of(model, first, second=None):
    groups = [
        {"params": list(layer.named_parameters(prefix=str(k))), "prior_precision": prior}
        for k, (layer, prior) in enumerate([(model[0], first), (model[2], second)])
    ]
    if second is None:
        del groups[1]["prior_precision"]
    return groups


def steps(sampler, model, count):
    for _ in range(count):
        sampler.step(closure_for(model, sampler))


def test_a_groups_prior_is_that_of_its_parameters():
    model = small_network()
    sampler = SGHMC(groups_of(model, FanIn(gain=2.0, bias=0.5)), 0.05, 100, prior_precision=3.0)
    values = {name: g["prior_precision"] for g in sampler.param_groups for name in g["param_names"]}
    inputs = model[0].in_features
    assert values == {"0.weight": inputs / 4, "0.bias": 0.5, "1.weight": 3.0, "1.bias": 3.0}
    by_name = SGHMC(groups_of(model, {"*.weight": 7.0, "*": 1.0}, FanIn()), 0.05, 100)
    assert [g["prior_precision"] for g in by_name.param_groups] == [7.0, 1.0, model[2].in_features, 1.0]


def test_groups_draw_from_priors_of_their_own_and_resume():
    def chain(model):
        first, second = GammaHyperprior(shape=1e6, rate=1e6, every=1), GammaHyperprior(shape=1e6, rate=1e4, every=2)
        return SGHMC(groups_of(model, first, second), 0.05, 100)

    model = small_network()
    sampler = chain(model)
    torch.manual_seed(0)
    steps(sampler, model, 1)
    drawn = [g["prior_precision"] for g in sampler.param_groups]
    assert drawn[:2] == pytest.approx([1.0, 1.0], rel=0.02)
    assert drawn[0] != 1.0
    assert drawn[2:] == [1.0, 1.0], "not before its second step"
    steps(sampler, model, 1)
    assert [g["prior_precision"] for g in sampler.param_groups][2:] == pytest.approx([100.0, 100.0], rel=0.02)
    saved, weights = copy.deepcopy((sampler.state_dict(), model.state_dict()))
    twin = small_network(seed=9)
    resumed = chain(twin)
    twin.load_state_dict(weights)
    resumed.load_state_dict(saved)
    for net, one in ((model, copy.copy(sampler)), (twin, resumed)):
        torch.set_rng_state(saved["sampler"]["rng"]["cpu"])
        steps(one, net, 5)
    assert torch.equal(flat(model), flat(twin))


def test_a_state_of_other_priors_of_groups_says_so():
    sampler = SGHMC(groups_of(small_network(), GammaHyperprior()), 0.05, 100)
    target = SGHMC(groups_of(small_network(), GammaHyperprior(rate=9.0)), 0.05, 100)
    with pytest.warns(UserWarning, match=r"rate=0.1.*rate=9"):
        target.load_state_dict(sampler.state_dict())


@pytest.mark.parametrize("prior", [FanIn(), GammaHyperprior(every=1), {"*": 2.0}])
@pytest.mark.parametrize("grouped", [False, True])
def test_tensors_of_a_prior_mean_go_to_their_parameters(prior, grouped):
    model = small_network()
    means = [torch.full_like(p, float(k)) for k, p in enumerate(model.parameters())]
    params = list(model.named_parameters())
    if grouped:
        sampler = SGHMC([{"params": params, "prior_precision": prior, "prior_mean": means}], 0.05, 100)
    else:
        sampler = SGHMC(params, 0.05, 100, prior_precision=prior, prior_mean=means)
    pairs = {id(p): m for g in sampler.param_groups for p, m in zip(g["params"], g["prior_mean"], strict=True)}
    assert [float(pairs[id(p)].mean()) for p in model.parameters()] == [0.0, 1.0, 2.0, 3.0]
    steps(sampler, model, 3)
    with nullcontext() if grouped else pytest.raises(ValueError, match="prior_mean holds tensors of the first group's"):
        sampler.add_param_group({"params": list(nn.Linear(2, 2).named_parameters())})
    with pytest.raises(ValueError, match="prior_mean must have the shapes"):
        SGHMC(params, 0.05, 100, prior_precision=prior, prior_mean=means[1:])


MAKERS = {
    "SGHMC": lambda model: SGHMC(model.named_parameters(), 0.05, 16, prior_precision={"*weight": 2.0, "*": 1.0}),
    "with a warm-up": lambda model: AdaptedSGHMC(
        model.named_parameters(), num_data=16, total_steps=40, warmup=L2E, prior_precision=GammaHyperprior(every=2)
    ),
}


def kept(sampler):
    inner = [len(optimizer.param_groups) for optimizer in sampler.inner_optimizers()]
    written = sampler.schedule and len(sampler.schedule._written)
    return [id(p) for g in sampler.param_groups for p in g["params"]], len(sampler.group_priors), inner, written


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("scheduled", [False, True])
def test_an_error_in_one_part_of_a_group_takes_away_all(name, scheduled):
    model, late = small_network(), nn.Linear(2, 2)
    sampler = MAKERS[name](model)
    if scheduled:
        CyclicalSchedule(sampler, 20)
    before = kept(sampler)
    late.bias.data = late.bias.data.bfloat16()
    bad = {"params": list(late.named_parameters()), "master_weights": True}
    with pytest.raises(ValueError, match="master_weights"):  # the weight, in float32, has joined by then
        sampler.add_param_group({**bad, "params": bad["params"][::-1]})
    assert kept(sampler) == before
    late.bias.data = late.bias.data.float()
    sampler.add_param_group({"params": list(late.named_parameters())})
    assert len(kept(sampler)[0]) == len(before[0]) + 2
    assert len(sampler.group_priors) == len(sampler.param_groups)
    assert {len(o.param_groups) for o in sampler.inner_optimizers()} <= {len(sampler.param_groups)}


def test_a_planted_half_way_join_is_seen(monkeypatch):
    monkeypatch.setattr(Sampler, "forget_groups", lambda self, count: None)
    with pytest.raises(AssertionError):
        test_an_error_in_one_part_of_a_group_takes_away_all("SGHMC", True)


def test_refused():
    groups = groups_of(small_network(), {"*": 1.0, "7.*": 2.0})
    with pytest.raises(ValueError, match=r"prior_precision\['\*'\]|comes after|matches no parameter"):
        SGHMC(groups, 0.05, 100)
    stacked = [{"params": [torch.zeros(3, 2, requires_grad=True)], "prior_precision": FanIn()}]
    with pytest.raises(ValueError, match="prior_precision of SVGD must be one number"):
        SVGD(stacked, 0.1, 20)
