"""The defaults of a warm-up that a budget and a prior give."""

from __future__ import annotations

import pytest
import torch

from learned_samplers import AdaptedSGHMC, WhitenedSGHMC
from learned_samplers.classical.warmup import rate_of, thinning_of, warmup_of

N = 100


@pytest.mark.parametrize(
    ("run", "num_data", "steps"),
    [(1000, 40_960, 800), (5000, 40_960, 4000), (10_000, 40_960, 5120), (20_000, 40_960, 10_000), (13, 8, 10)],
)
def test_data_that_are_seen_often_leave_half_of_the_run_for_samples(run, num_data, steps):
    assert warmup_of(run, num_data) == warmup_of(run, torch.tensor(float(num_data))) == steps


@pytest.mark.parametrize(
    ("own", "rate"),
    [
        (dict(total_steps=2500), 0.003),
        (dict(total_steps=2501), 0.002),
        (dict(total_steps=5000, cycle_length=2500), 0.003),
        (dict(total_steps=5000, lr=0.01), 0.01),
        (dict(total_steps=5000, temperature=1.0), 0.003),
        (dict(warmup_steps=5000), 0.003),
    ],
)
def test_a_cold_run_that_sees_the_data_more_than_four_times_has_a_smaller_rate(own, rate):
    own = {"temperature": 0.1, **own}
    sampler = AdaptedSGHMC([torch.nn.Parameter(torch.zeros(2, 2))], num_data=40_000, **own)
    assert sampler.param_groups[0]["lr"] == rate
    run = own.get("cycle_length", own.get("total_steps"))
    assert "lr" in own or rate_of(run, torch.tensor(40_000.0), torch.tensor(own["temperature"])) == rate


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (dict(total_steps=100, cycle_length=200), r"total_steps.*warmup_steps=100 of a cycle_length of 200, got 100"),
        (dict(total_steps=100, warmup_steps=100), r"total_steps.*warmup_steps=100, got 100"),
        (dict(total_steps=12), r"total_steps.*13"),
    ],
)
def test_a_budget_without_a_step_to_sample_in_is_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        AdaptedSGHMC([torch.nn.Parameter(torch.zeros(2, 2))], num_data=N, **settings)


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
    ("num_data", "error"), [(-1, ValueError), ([1], TypeError), (float("nan"), ValueError), (None, TypeError)]
)
def test_a_number_of_data_that_is_none_is_refused_by_its_name(num_data, error):
    with pytest.raises(error, match="num_data"):
        AdaptedSGHMC([torch.nn.Parameter(torch.zeros(2, 2))], num_data=num_data, total_steps=100)


@pytest.mark.parametrize(
    ("own", "share"),
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
def test_it_settles_for_as_long_as_weights_take_to_the_priors_width(own, share):
    own = {"lr": 0.003, "warmup": WhitenedSGHMC, "warmup_steps": 800, "prior_precision": 1.0, **own}
    sampler = AdaptedSGHMC([torch.nn.Parameter(torch.zeros(2, 2))], num_data=N, **own)
    assert sampler.param_groups[0]["settling_share"] == pytest.approx(share, rel=1e-3)


@pytest.mark.parametrize(("priors", "share"), [((20.0, 1.0), 2 * 0.1**0.5 / 0.003 / 500), ((20.0, 20.0), 0.1)])
def test_it_settles_for_the_longest_of_its_groups_with_the_share_of_its_own_mass(priors, share):
    groups = [{"params": [torch.nn.Parameter(torch.zeros(2, 2))], "prior_precision": prior} for prior in priors]
    groups[0]["mass"] = "diagonal"
    chain = AdaptedSGHMC(iter(groups), 0.003, N, warmup_steps=500, temperature=0.1, warmup=WhitenedSGHMC)
    assert [group["settling_share"] for group in chain.param_groups] == pytest.approx([share] * 2)
