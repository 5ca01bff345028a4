"""The plan of a run of AdaptedSGHMC: how long a budget and a prior make its phases, and at which rate."""

import copy
import itertools

import pytest
import torch

from learned_samplers import L2E, AdaptedSGHMC, PosteriorSamples, WhitenedSGHMC
from learned_samplers.classical.budget import rate_of, thinning_of, warmup_of
from learned_samplers.posterior import Chains
from tests.harness import closure_for, small_network
from tests.learned_samplers.classical.chains_of_adapted import N


@pytest.mark.parametrize(
    ("run", "num_data", "steps"),
    [(1000, 40_960, 800), (5000, 40_960, 4000), (10_000, 40_960, 5120), (20_000, 40_960, 10_000), (13, 8, 10)],
)
def test_data_that_are_seen_often_leave_half_of_the_run_for_samples(run, num_data, steps):
    assert warmup_of(run, num_data) == warmup_of(run, torch.tensor(float(num_data))) == steps


@pytest.mark.parametrize(
    ("num_data", "settings", "rate"),
    [
        (40_000, dict(total_steps=2500), 0.003),
        (40_000, dict(total_steps=2501), 0.002),
        (40_000, dict(total_steps=5000, cycle_length=2500), 0.003),
        (40_000, dict(total_steps=5000, lr=0.01), 0.01),
        (40_000, dict(total_steps=5000, temperature=1.0), 0.003),
        (40_000, dict(warmup_steps=5000), 0.003),
        (200, dict(total_steps=5000), 0.005),
        (400, dict(total_steps=5000), 0.0025),
        (400, dict(total_steps=5000, temperature=1.0), 0.025),
        (400, dict(warmup_steps=500, warmup=WhitenedSGHMC, temperature=1.0), 0.003),
        (50, dict(total_steps=60, temperature=1.0), 0.02),
        (50, dict(total_steps=5000, temperature=1.0), 0.1),
        (50, dict(total_steps=5000, temperature=0.0), 0.002),
    ],
)
def test_a_long_cold_run_has_a_smaller_rate_and_one_of_few_data_a_larger(num_data, settings, rate):
    settings = {"temperature": 0.1, **settings}
    sampler = AdaptedSGHMC([torch.nn.Parameter(torch.zeros(2, 2))], num_data=num_data, **settings)
    assert sampler.param_groups[0]["lr"] == pytest.approx(rate)
    run, temperature = settings.get("cycle_length", settings.get("total_steps")), torch.tensor(settings["temperature"])
    again = rate_of(run, torch.tensor(float(num_data)), temperature, shallow=True)
    assert "lr" in settings or again == pytest.approx(rate)


def network(*sizes):
    return torch.nn.Sequential(*(torch.nn.Linear(*pair) for pair in itertools.pairwise(sizes)))


@pytest.mark.parametrize(
    ("params", "rate"),
    [
        (lambda: network(3, 5, 2).parameters(), 0.1),
        (lambda: [{"params": layer.parameters()} for layer in network(3, 5, 2)], 0.1),
        (lambda: Chains([network(3, 5, 2) for _ in range(3)], separate=True).parameters(), 0.1),
        (lambda: network(3, 5, 5, 2).named_parameters(), 0.003),
        (lambda: [{"params": layer.parameters()} for layer in network(3, 5, 5, 2)], 0.003),
        (lambda: [p.requires_grad_(i > 1) for i, p in enumerate(network(3, 5, 5, 2).parameters())], 0.1),
        (lambda: [torch.nn.Parameter(torch.zeros(50))], 0.003),  # a network in one vector: nobody knows its depth
        (lambda: [{"params": network(3, 5, 2).parameters(), "temperature": 0.01}], 0.002),
    ],
)
def test_few_data_raise_the_rate_of_networks_of_one_hidden_layer(params, rate):
    sampler = AdaptedSGHMC(params(), num_data=50, total_steps=500)
    assert {group["lr"] for group in sampler.param_groups} == {rate}


def test_without_another_optimizer_the_rate_stays_that_of_a_training():
    settings = dict(num_data=50, warmup_steps=500, warmup=None, temperature=1.0)
    assert AdaptedSGHMC([torch.nn.Parameter(torch.zeros(2))], **settings).param_groups[0]["lr"] == 0.003


@pytest.mark.parametrize(
    ("plan", "phases", "num_samples", "thinning"),
    [
        ((32, 3, 10), [7, 7, 7, 0], 7, 2),
        ((16, 2, 6), [4, 4, 2], 5, 2),
        ((35, 10, None), [25], 5, 5),
        ((10, 2, 5), [3, 3], 6, 1),
    ],
)
def test_phases_give_as_many_samples_as_were_asked_for(plan, phases, num_samples, thinning):
    assert thinning_of(*plan, num_samples) == thinning
    assert sum(steps // thinning for steps in phases) >= num_samples
    assert sum(steps // (thinning + 1) for steps in phases) < num_samples


@pytest.mark.parametrize(
    ("settings", "share"),
    [
        (dict(prior_precision=20.0, temperature=0.1), 0.1),
        (dict(prior_precision=20.0, temperature=0.1, mass="diagonal"), 0.25),
        # 2·√(T/λ)/lr: 211 of 500 steps, 667 of 2000, and at most half.
        (dict(warmup_steps=500, temperature=0.1), 2 * 0.1**0.5 / 0.003 / 500),
        (dict(warmup_steps=2000, lr=torch.tensor(0.003)), 1 / 3),
        (dict(warmup_steps=1000), 0.5),
        (dict(prior_precision=0.0), 0.1),
        (dict(temperature=0.0), 0.1),
        (dict(warmup=None), 0.0),
        (dict(warmup_steps=500, settling_share=0.1), 0.1),
    ],
)
def test_it_settles_for_as_long_as_weights_take_to_the_priors_width(settings, share):
    settings = {"lr": 0.003, "warmup": WhitenedSGHMC, "warmup_steps": 800, "prior_precision": 1.0, **settings}
    sampler = AdaptedSGHMC([torch.nn.Parameter(torch.zeros(2, 2))], num_data=N, **settings)
    assert sampler.param_groups[0]["settling_share"] == pytest.approx(share, rel=1e-3)


@pytest.mark.parametrize(("priors", "share"), [((20.0, 1.0), 2 * 0.1**0.5 / 0.003 / 500), ((20.0, 20.0), 0.1)])
def test_it_settles_for_the_longest_of_its_groups_with_the_share_of_its_own_mass(priors, share):
    groups = [{"params": [torch.nn.Parameter(torch.zeros(2, 2))], "prior_precision": prior} for prior in priors]
    groups[0]["mass"] = "diagonal"
    chain = AdaptedSGHMC(iter(groups), 0.003, N, warmup_steps=500, temperature=0.1, warmup=WhitenedSGHMC)
    assert [group["settling_share"] for group in chain.param_groups] == pytest.approx([share] * 2)


@pytest.mark.parametrize(
    ("settings", "phases", "thinning"),
    [
        # Four fifths of it, not more than N/8 steps, down to half of it and to ten gradients.
        (dict(total_steps=50, num_data=320), (40, None), 2),
        (dict(total_steps=50, num_data=240), (30, None), 4),
        (dict(total_steps=50), (25, None), 5),
        (dict(total_steps=16), (12, None), 1),
        (dict(total_steps=20, num_data=8), (10, None), 2),
        (dict(total_steps=50, warmup_steps=30), (30, None), 4),
        (dict(total_steps=46, cycle_length=16), (12, 16), 2),  # 4 + 4 + 2 of a third one that is not finished
        (dict(total_steps=50, num_data=320, warmup=L2E), (40, None), 2),
    ],
)
def test_a_budget_says_when_it_samples(settings, phases, thinning):
    model = small_network()
    sampler = AdaptedSGHMC(model.parameters(), **{"num_data": N, **settings})
    group = sampler.param_groups[0]
    assert (group["warmup_steps"], group["cycle_length"]) == phases
    assert type(sampler.explorer.optimizer) is settings.get("warmup", WhitenedSGHMC)
    run = settings.get("cycle_length", settings["total_steps"])
    assert (group["mass"], group["lr"]) == ("matrix", rate_of(run, settings.get("num_data", N), 1.0, shallow=True))
    number = min(5, settings["total_steps"] - phases[0])
    samples = PosteriorSamples(model, sampler, thinning=sampler.thinning(number))
    assert copy.deepcopy(sampler).thinning(number) == sampler.thinning(number) == thinning
    for _ in range(settings["total_steps"]):
        sampler.step(closure_for(model, sampler))
    assert len(samples) == number
    with pytest.raises(ValueError, match="num_samples"):
        sampler.thinning(30)
