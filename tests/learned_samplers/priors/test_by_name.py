"""A precision by layer: dicts by name, and by fan-in."""

import pytest
import torch
from torch import nn

from learned_samplers import L2E, SGHMC, AdaptedSGHMC
from learned_samplers.priors import FanIn
from tests.harness import closure_for, flat, small_network


def precisions(sampler):
    """λ of each parameter by its name."""
    return {name: group["prior_precision"] for group in sampler.param_groups for name in group.get("param_names", ())}


def test_a_dict_is_the_same_as_groups_written_by_hand():
    def end(make):
        model = small_network()
        sampler = make(model)
        torch.manual_seed(0)
        for _ in range(5):
            sampler.step(closure_for(model, sampler))
        return flat(model)

    by_name = {"0.weight": 0.3, "2.weight": 0.03, "*.bias": 1.0}
    ours = end(lambda model: SGHMC(model.named_parameters(), 0.05, 100, temperature=0.0, prior_precision=by_name))
    layers = [("0.weight", 0.3), ("2.weight", 0.03), ("0.bias", 1.0), ("2.bias", 1.0)]

    def by_hand(model):
        parameters = dict(model.named_parameters())
        groups = [{"params": [parameters[name]], "prior_precision": value} for name, value in layers]
        return SGHMC(groups, 0.05, 100, temperature=0.0)

    assert torch.equal(ours, end(by_hand))


def test_the_first_pattern_that_matches_counts_and_a_groups_own_number_stays():
    model = small_network()
    sampler = SGHMC(model.named_parameters(), 0.05, 100, prior_precision={"0.*": 2.0, "*": 5.0})
    assert precisions(sampler) == {"0.weight": 2.0, "0.bias": 2.0, "2.weight": 5.0, "2.bias": 5.0}
    assert len(sampler.param_groups) == 2
    groups = [
        {"params": list(model[0].named_parameters()), "prior_precision": 7.0},
        {"params": list(model[2].named_parameters())},
    ]
    sampler = SGHMC(groups, 0.05, 100, prior_precision={"weight": 2.0, "bias": 3.0})
    assert [group["prior_precision"] for group in sampler.param_groups] == [7.0, 2.0, 3.0]


def test_parameters_that_join_get_their_precision():
    model, late = small_network(), nn.Linear(2, 2)
    sampler = SGHMC(model.named_parameters(), 0.05, 100, prior_precision={"*weight": 2.0, "*": 3.0})
    sampler.add_param_group({"params": list(late.named_parameters())})
    assert precisions(sampler)["weight"] == 2.0
    assert precisions(sampler)["bias"] == 3.0


def test_fan_in_is_that_of_a_unit():
    model = nn.Sequential(nn.Conv2d(3, 4, 5), nn.Flatten(), nn.Linear(16, 2))
    sampler = SGHMC(model.named_parameters(), 0.05, 100, prior_precision=FanIn(gain=2.0, bias=0.5))
    assert precisions(sampler) == {"0.weight": 75 / 4, "2.weight": 16 / 4, "0.bias": 0.5, "2.bias": 0.5}
    joined = nn.Linear(6, 2)
    sampler.add_param_group({"params": list(joined.named_parameters())})
    assert [group["prior_precision"] for group in sampler.param_groups[-2:]] == [6 / 4, 0.5]


@pytest.mark.parametrize("make", [L2E, lambda *a, **k: AdaptedSGHMC(*a, total_steps=40, warmup=L2E, **k)])
def test_samplers_with_groups_take_it(make):
    model = small_network()
    sampler = make(model.parameters(), num_data=16, prior_precision=FanIn())
    torch.manual_seed(0)
    for _ in range(40):
        sampler.step(closure_for(model, sampler))
    assert flat(model).isfinite().all()
    assert len({group["prior_precision"] for group in sampler.param_groups}) == 3
