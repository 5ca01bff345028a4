"""The verdict on a chain: bad ones are told with what to change, good ones are not."""

import copy
import dataclasses
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from learned_samplers import SGHMC, SGLD, Chains, PosteriorSamples, SampleCollection
from learned_samplers.posterior.store import Entry
from learned_samplers.posterior.verdict import LARGEST_RHAT, Origin, Unsettled, judge
from tests.learned_samplers.posterior.common import X, collect, collection, ensemble, network, sghmc

GOOD = Origin("SGHMC", True, 1.0, False)


def entries(count, chains=1, cycles=1):
    return [Entry(step, cycle, 1, chain) for chain in range(chains) for cycle in range(cycles) for step in range(count)]


def autoregressive(count, correlation, coordinates=20, seed=0):
    noise = np.random.default_rng(seed).normal(size=(count, coordinates))
    values = noise.copy()
    for step in range(1, count):
        values[step] = correlation * values[step - 1] + (1 - correlation**2) ** 0.5 * noise[step]
    return values


def moving(start, samples, width=20):
    """A chain that comes from a start far away within some samples, and then is stationary."""
    values = autoregressive(200, 0.3, width)
    return values + start * np.exp(-np.arange(200) / samples)[:, None]


@pytest.mark.parametrize(("count", "correlation"), [(8, 0.0), (30, 0.0), (30, 0.4), (100, 0.7), (500, 0.9)])
def test_chains_that_mix_are_settled_or_too_short_to_tell(count, correlation):
    for seed in range(20):
        verdict = judge(autoregressive(count, correlation, seed=seed), entries(count), GOOD)
        tells = verdict.within <= LARGEST_RHAT
        assert (verdict.settled, verdict.remarks) == (True if tells else None, ()), (seed, verdict.text)
        assert verdict.text.startswith(
            "settled: R-hat" if tells else "too few samples to tell, keep 100 of a chain or more"
        )
        assert tells or count <= 100


def test_of_long_chains_that_mix_nearly_all_can_be_told():
    shares = {
        count: sum(judge(autoregressive(count, 0.4, seed=k), entries(count), GOOD).settled is True for k in range(50))
        for count in (30, 100, 300)
    }
    assert shares[100] >= 48
    assert shares[300] == 50
    assert 10 < shares[30] < shares[100], shares


@pytest.mark.parametrize(("kinetic", "noise", "hot"), [(2.2, 0.1, True), (1.3, 0.1, False), (1.7, 1.5, False)])
@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_a_chain_that_minibatches_heat_has_not_settled(kinetic, noise, hot, temperature):
    """Neither a tenth more nor a few momenta that happen to be fast are told."""
    readings = temperature * (kinetic + noise * np.random.default_rng(0).normal(size=100))
    heated = [
        dataclasses.replace(entry, temperature=temperature, kinetic=reading)
        for entry, reading in zip(entries(100), readings, strict=True)
    ]
    verdict = judge(autoregressive(100, 0.3), heated, GOOD)
    assert verdict.settled is not hot
    assert ("the momenta have 2.2 times the temperature" in verdict.text) is hot


@pytest.mark.parametrize("count", [20, 30, 60])
def test_a_walk_is_never_settled_however_short(count):
    """A forgiving rule, for which an R-hat of 1.5 of few samples is no fault, calls many of these settled."""
    walks = [np.random.default_rng(k).normal(size=(count, 20)).cumsum(0) for k in range(50)]
    assert not any(judge(walk, entries(count), GOOD).settled for walk in walks)
    slow = [autoregressive(count, 0.9, seed=k) for k in range(50)]
    verdicts = [judge(values, entries(count), GOOD) for values in slow]
    assert all(verdict.within <= LARGEST_RHAT for verdict in verdicts if verdict.settled)


@pytest.mark.parametrize("count", [20, 100, 500])
def test_walks_that_go_nowhere_are_not(count):
    for seed in range(20):
        walk = np.random.default_rng(seed).normal(size=(count, 20)).cumsum(0)
        verdict = judge(walk, entries(count), GOOD)
        assert not verdict.settled, seed
        assert "raise lr" in verdict.text


def test_a_start_far_away_is_told_with_what_to_drop():
    values = moving(30.0, samples=20)
    verdict = judge(values, entries(200), GOOD)
    assert not verdict.settled
    assert "raise burn_in, or drop them, as in posterior[50:]" in verdict.text
    assert judge(values[100:], entries(100), GOOD).settled


def test_chains_in_other_modes_are_settled_and_cycles_are_judged_by_themselves():
    values = np.concatenate([autoregressive(50, 0.2, seed=k) + 10 * k for k in range(3)])
    for places in (entries(50, chains=3), entries(50, cycles=3)):
        verdict = judge(values, places, GOOD)
        assert verdict.settled
        assert verdict.across > 3
        assert "across 3 chains" in verdict.text
    assert not judge(values, entries(150), GOOD).settled


def test_what_is_known_without_predictions():
    unknown = judge(None, entries(50), GOOD)
    assert unknown.settled is None
    assert not unknown.remarks
    assert "call verdict(x)" in unknown.text
    assert "7 samples are too few" in judge(autoregressive(7, 0.0), entries(7), GOOD).text
    assert "has diverged" in judge(np.full((9, 2), np.nan), entries(9), GOOD).text
    good = autoregressive(50, 0.0)
    for origin, words, settled in (
        (Origin("SGD", False, 1.0, False), "SGD is no sampler: this is an average over its trajectory", False),
        (Origin("SGLD", True, 0.0, False), "temperature=0: an average over a trajectory", False),
        (Origin("SGLD", True, 1.0, True), "prior_precision=0 is a flat, improper prior", True),
        (None, "settled", True),
    ):
        verdict = judge(good, entries(50), origin)
        assert words in verdict.text
        assert verdict.settled is settled


TARGETS = torch.arange(20) % 3


def chain(make, steps, **options):
    model = network()
    sampler = make(model.parameters())
    posterior = PosteriorSamples(model, sampler, **options)
    for _ in range(steps):
        sampler.zero_grad()
        nn.functional.cross_entropy(model(X), TARGETS).backward()
        sampler.step()
    return posterior


def sampler(params, lr=0.1, prior=1.0, make=SGHMC):
    return make(params, lr=lr, num_data=20, prior_precision=prior, generator=torch.Generator().manual_seed(0))


BAD = {
    "a chain that never moved": (lambda p: sampler(p, 1e-5), 200, "raise lr"),
    "a chain of SGLD that never moved": (lambda p: sampler(p, 1e-5, make=SGLD), 200, "raise lr"),
    "a flat prior": (lambda p: sampler(p, prior=0.0), 20, "prior_precision=0 is a flat"),
    "no sampler": (lambda p: torch.optim.SGD(p, 0.1), 20, "SGD is no sampler"),
}


@pytest.mark.parametrize(("name", "use"), [*zip(BAD, ["predict", "uncertainty"] * 2)])
def test_a_bad_chain_is_told_once(name, use):
    make, steps, words = BAD[name]
    posterior = chain(make, steps)
    with pytest.warns(Unsettled, match=words):
        getattr(posterior, use)(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        posterior.predict(X)
    assert words in posterior.verdict().text, "of the rows of the last prediction"
    assert words in posterior.verdict(X).text


def test_a_good_chain_is_told_nothing():
    posterior = chain(sampler, 2400, burn_in=400, thinning=40)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        posterior.predict(X)
        posterior.uncertainty(X)
    assert posterior.verdict().settled
    assert posterior.verdict(X, num_samples=25).draws == 25


def test_the_origin_goes_with_the_samples(tmp_path):
    _, _, posterior = collect(steps=12)
    posterior.save(tmp_path / "samples.safetensors")
    for samples in (SampleCollection.load(tmp_path / "samples.safetensors", network()), posterior[2:]):
        assert "SGD is no sampler" in samples.verdict(X).text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        collection(ensemble(count=12)).predict(X)  # members of an ensemble: nothing is known of a chain


def cooled(temperatures, **options):
    """A chain whose temperature changes after every ten steps."""
    model = network()
    params = sampler(model.parameters())
    posterior = PosteriorSamples(model, params, **options)
    for temperature in temperatures:
        for group in params.param_groups:
            group["temperature"] = temperature
        for _ in range(10):
            params.zero_grad()
            nn.functional.cross_entropy(model(X), TARGETS).backward()
            params.step()
    return posterior


def test_the_temperature_that_is_judged_is_that_of_the_samples(tmp_path):
    cold = "temperature=0: an average over a trajectory"
    assert cold not in cooled([0.0, 1.0], burn_in=10).verdict(X).text, "made at T = 1, warmed up at 0"
    assert cold in cooled([1.0, 0.0], burn_in=10).verdict(X).text, "made at T = 1, which nothing was kept at"
    mixed = cooled([1.0, 0.1])
    assert "kept at temperatures from 0.1 to 1, each of another" in mixed.verdict(X).text
    assert "kept at temperatures" not in mixed[10:].verdict(X).text
    mixed.save(tmp_path / "samples.safetensors")
    loaded = SampleCollection.load(tmp_path / "samples.safetensors", network())
    on_disk = cooled([1.0, 0.1], path=tmp_path / "folder")
    on_disk.detach()
    for samples in (loaded, SampleCollection.load(tmp_path / "folder", network())):
        assert [entry.temperature for entry in samples._store.entries] == [1.0] * 10 + [0.1] * 10
        assert "kept at temperatures from 0.1 to 1" in samples.verdict(X).text


def test_a_temperature_that_leaves_no_noise_is_named_where_the_chain_drifts():
    said = {
        temperature: judge(
            moving(0.0, 40).cumsum(0), [Entry(i, 0, i + 1, temperature=temperature) for i in range(200)], None
        ).text
        for temperature in (1.0, 1e-6)
    }
    assert "drifts" in said[1.0]
    assert "temperature" not in said[1.0]
    assert "temperature=1e-06 leaves hardly any noise" in said[1e-6]


def test_a_saved_temperature_that_is_none_is_refused_and_an_older_state_has_none():
    _, _, posterior = collect(steps=3)
    state = posterior.state_dict()
    target = collect(steps=0)[2]
    state["entries"][0]["temperature"] = -1.0
    with pytest.raises(ValueError, match="temperature must not be negative"):
        target.load_state_dict(state)
    for entry in state["entries"]:
        del entry["temperature"]
    target.load_state_dict(state)
    assert {entry.temperature for entry in target._store.entries} == {None}


def test_a_prior_of_chains_own_is_no_flat_prior():
    for precision, flat in ((1.0, False), (0.0, True)):
        chains = Chains([network(seed=k) for k in range(2)], prior_precision=precision)
        origin = Origin.of(sghmc(chains), chains)
        assert origin.flat_prior is flat
    assert copy.deepcopy(origin) == origin
