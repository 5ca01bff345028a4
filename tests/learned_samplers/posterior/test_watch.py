"""Samples that are not worth keeping are told of once, and others never."""

import pytest
import torch
from torch import nn

from learned_samplers import SGHMC, SGLD, CyclicalSchedule, PosteriorSamples
from learned_samplers.approximations import IVON
from learned_samplers.posterior.watch import Watch
from tests.learned_samplers.posterior.common import X, Y, collect, network, sghmc, train


@pytest.mark.parametrize("number", [float, torch.tensor])
def test_a_vanishing_learning_rate_is_warned_of_once(number, recwarn):
    model, sampler, posterior = collect(steps=0, make=sghmc, burn_in=1, thinning=2)

    def run(rates):
        for rate in map(number, rates):
            sampler.param_groups[0]["lr"] = rate
            train(model, sampler, 1)

    with posterior:
        run([100.0, 1e-6, 1e-6, 1e-6, 1e-6])  # the large one was in the burn-in
        run([1e-4, 1e-4, 2e-6, 2e-6])
        assert not recwarn
        with pytest.warns(UserWarning, match=r"step 11 was kept at lr=5e-07, and others at up to 0\.0001"):
            run([5e-7, 5e-7])
        run([0.0, 0.0])
        assert posterior.steps == [3, 5, 7, 9, 11, 13]


def test_a_chain_that_runs_away_is_warned_of_once(recwarn):
    model, sampler, posterior = collect(steps=0, make=sghmc, burn_in=0, thinning=1)
    with posterior:
        train(model, sampler, 2)
        assert not recwarn
        for state in sampler.state.values():
            state["momentum"].fill_(1e3)
        train(model, sampler, 1)  # the third: only the first, second, fourth, ... are looked at
        assert not recwarn
        with pytest.warns(UserWarning, match=r"step 4 was kept at a kinetic temperature of .*temperature=1 was asked"):
            train(model, sampler, 1)
        train(model, sampler, 4)
        assert len(posterior) == 8


@pytest.mark.parametrize("kind", ["schedule", "draws"])
def test_a_rate_that_may_fall(kind, recwarn):
    """A cyclical schedule means to, and draws from a Gaussian do not depend on it."""
    model = network()
    if kind == "schedule":
        sampler = SGLD(model.parameters(), lr=0.01, num_data=20)
        schedule = CyclicalSchedule(sampler, cycle_length=40, exploration_ratio=0.2)
        rates, posterior = [], PosteriorSamples(model, sampler)
        for _ in range(80):
            train(model, sampler, 1)
            rates.append(sampler.param_groups[0]["lr"])
            schedule.step()
        assert min(rates) < 0.002 * max(rates)
        assert len(posterior) == 64
    else:
        sampler = IVON(model.parameters(), lr=0.1, num_data=20, prior_precision=1.0)
        posterior = PosteriorSamples(model, sampler)
        for rate in (0.1, 0.1, 1e-5):
            sampler.param_groups[0]["lr"] = rate
            with sampler.sampled_params():
                sampler.zero_grad()
                nn.functional.cross_entropy(model(X), Y).backward()
            sampler.step()
        assert len(posterior) == 3
    assert not recwarn


@pytest.mark.parametrize(
    ("kinetic", "temperature", "told"),
    [(29, 1.0, False), (31, 1.0, True), (29, 0.01, False), (90, 4.0, False), (121, 4.0, True)],
)
def test_how_hot_a_chain_may_be(kinetic, temperature, told, recwarn):
    model = network()
    sampler = SGHMC(model.parameters(), lr=0.01, num_data=20, temperature=temperature)
    train(model, sampler, 1)
    for state in sampler.state.values():
        state["momentum"].fill_(kinetic**0.5)
    Watch().kept(sampler, 1, 1)
    assert bool(recwarn) is told
