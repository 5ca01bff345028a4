"""Samples that a vanishing learning rate makes near copies of each other are warned of."""

import pytest
import torch
from torch import nn

from learned_samplers import SGLD, CyclicalSchedule, PosteriorSamples
from learned_samplers.approximations import IVON


def step(model, sampler):
    sampler.zero_grad()
    model(torch.ones(4, 2)).square().mean().backward()
    sampler.step()


def run(model, sampler, rates):
    for rate in rates:
        sampler.param_groups[0]["lr"] = rate
        step(model, sampler)


@pytest.mark.parametrize("number", [float, torch.tensor])
def test_a_vanishing_learning_rate_is_warned_of_once(number, recwarn):
    model = nn.Linear(2, 1)
    sampler = SGLD(model.parameters(), lr=0.1, num_data=10)
    with PosteriorSamples(model, sampler, burn_in=1, thinning=2) as posterior:
        run(model, sampler, map(number, [100.0, 1e-6, 1e-6, 1e-6, 1e-6]))  # the large one was in the burn-in
        run(model, sampler, map(number, [1e-4, 1e-4, 2e-6, 2e-6]))
        assert not recwarn
        with pytest.warns(UserWarning, match=r"step 11 was kept at lr=5e-07, and others at up to 0\.0001: at so small"):
            run(model, sampler, map(number, [5e-7, 5e-7]))
        run(model, sampler, map(number, [0.0, 0.0]))
        assert posterior.steps == [3, 5, 7, 9, 11, 13]


def test_a_cyclical_schedule_may_fall(recwarn):
    model = nn.Linear(2, 1)
    sampler = SGLD(model.parameters(), lr=0.01, num_data=10)
    schedule = CyclicalSchedule(sampler, cycle_length=40, exploration_ratio=0.2)
    posterior = PosteriorSamples(model, sampler)
    rates = []
    for _ in range(80):
        step(model, sampler)
        rates.append(sampler.param_groups[0]["lr"])
        schedule.step()
    assert min(rates) < 0.002 * max(rates)
    assert len(posterior) == 64
    assert not recwarn


def test_draws_from_a_gaussian_do_not_depend_on_the_rate(recwarn):
    model = nn.Linear(2, 1)
    sampler = IVON(model.parameters(), lr=0.1, num_data=10, prior_precision=1.0)
    posterior = PosteriorSamples(model, sampler)
    for rate in (0.1, 0.1, 1e-5):
        sampler.param_groups[0]["lr"] = rate
        with sampler.sampled_params():
            sampler.zero_grad()
            model(torch.ones(4, 2)).square().mean().backward()
        sampler.step()
    assert len(posterior) == 3
    assert not recwarn
