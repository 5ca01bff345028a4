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


def precision_of(layer, gain=1.0):
    (group,) = SGHMC([layer.weight], 0.05, 100, prior_precision=FanIn(gain)).param_groups
    return group["prior_precision"]


@pytest.mark.parametrize(
    ("layer", "inputs"),
    [
        (nn.Linear(6, 5), 6),
        (nn.Embedding(50, 7), 1),
        (nn.EmbeddingBag(50, 7), 1),
        (nn.Conv2d(4, 6, 3, groups=2), 18),
        (nn.ConvTranspose2d(8, 3, 4, stride=2), 8 * 4),
        (nn.ConvTranspose1d(8, 6, 5, groups=2), 4 * 5),
    ],
)
def test_fan_in_is_the_number_of_inputs_that_an_output_adds_up(layer, inputs):
    assert precision_of(layer) == inputs
    assert precision_of(layer, gain=2.0) == inputs / 4


@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (nn.Embedding(50, 300), torch.randint(50, (4000,))),
        (nn.ConvTranspose2d(32, 2, 4, stride=2, bias=False), torch.randn(20, 32, 12, 12)),
        (nn.Conv2d(32, 4, 3, bias=False), torch.randn(20, 32, 12, 12)),
    ],
)
def test_outputs_under_it_have_the_variance_of_inputs(layer, x):
    """Draws from the prior of unit inputs have unit outputs; a fan-in by the axes alone is off by 12 and by 150."""
    torch.manual_seed(0)
    nn.init.normal_(layer.weight, std=precision_of(layer) ** -0.5)
    with torch.no_grad():
        y = layer(x)
    inner = y[..., 4:-4, 4:-4] if y.dim() == 4 else y
    assert float(inner.square().mean()) == pytest.approx(1.0, rel=0.15)


def test_a_tied_weight_has_the_larger_fan_in_and_a_loose_one_that_of_a_linear_layer():
    model = nn.ModuleDict({"embedding": nn.Embedding(50, 7), "head": nn.Linear(7, 50)})
    model["head"].weight = model["embedding"].weight
    assert precision_of(model["head"]) == 7
    (group,) = SGHMC([torch.zeros(5, 3, requires_grad=True)], 0.05, 100, prior_precision=FanIn()).param_groups
    assert group["prior_precision"] == 3
