"""The warm-up of AdaptedSGHMC: how long a budget and a prior make it, its phases and cycles, and how it resumes."""

import copy
import itertools

import pytest
import torch

from learned_samplers import L2E, AdaptedSGHMC, PosteriorSamples, WhitenedSGHMC
from learned_samplers.classical.warmup import rate_of, thinning_of, warmup_of
from learned_samplers.posterior import Chains
from tests.harness import closure_for, flat, small_network
from tests.learned_samplers.classical.chains_of_adapted import EVERY_WARMUP, LENGTH, N, adapted, drawn

# ---------------------------------------------------------------- how long


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


# ---------------------------------------------------------------- phases, cycles, and resuming


@EVERY_WARMUP
@pytest.mark.parametrize("momentum_init", ["zero", "normal"])
def test_a_cycle_is_a_new_sampler_on_the_weights_of_the_last_one(momentum_init, warmup):
    models = [small_network(), small_network()]
    generators = [torch.Generator().manual_seed(5) for _ in models]
    settings = dict(momentum_init=momentum_init, temperature=0.3)
    ours = adapted(models[0].parameters(), warmup, generator=generators[0], cycle_length=LENGTH, **settings)
    for step in range(3 * LENGTH):
        if step % LENGTH == 0:
            theirs = adapted(models[1].parameters(), warmup, generator=generators[1], **settings)
        ours.step(closure_for(models[0], ours))
        theirs.step(closure_for(models[1], theirs))
        assert ours.is_sampling == theirs.is_sampling == (step % LENGTH >= 6)
        assert ours.cycle == step // LENGTH
        assert ours.step_count == step + 1
        for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
            assert torch.equal(a, b)
    model_again = small_network()  # the planted fault: it goes on with its mass
    single = adapted(model_again.parameters(), warmup, generator=torch.Generator().manual_seed(5), **settings)
    for _ in range(3 * LENGTH):
        single.step(closure_for(model_again, single))
    assert any(not torch.equal(a, b) for a, b in zip(models[0].parameters(), model_again.parameters(), strict=True))


@pytest.mark.parametrize(
    ("length", "badge", "steps", "cycles"),
    [
        (None, "O(h)", [*range(7, 28)], [0] * 21),
        (LENGTH, "heuristic", [7, 8, 9, 16, 17, 18, 25, 26, 27], [0, 0, 0, 1, 1, 1, 2, 2, 2]),
    ],
)
def test_samples_are_those_of_a_frozen_mass(length, badge, steps, cycles):
    model = small_network()
    sampler = adapted(model.parameters(), "whitened", cycle_length=length)
    samples = PosteriorSamples(model, sampler, burn_in=0, thinning=1)
    for _ in range(3 * LENGTH):
        sampler.step(closure_for(model, sampler))
    assert (samples.steps, samples.cycles) == (steps, cycles)
    assert sampler.badge == copy.deepcopy(sampler).badge == badge


FULL, HALF = torch.float32, torch.bfloat16


@EVERY_WARMUP
@pytest.mark.parametrize("mass", ["diagonal", "matrix"])
@pytest.mark.parametrize(
    ("done", "own_generator", "dtype"),
    [(2, True, HALF), (4, False, FULL), (5, True, FULL), (8, False, HALF), (11, True, FULL)],
)
def test_a_chain_and_a_copy_of_it_go_on_bit_for_bit_in_each_of_its_phases(done, own_generator, mass, warmup, dtype):
    def begin():
        model = small_network().to(dtype)
        generator = torch.Generator().manual_seed(2) if own_generator else None
        settings = dict(mass=mass, cycle_length=LENGTH, generator=generator)
        return model, adapted(model.named_parameters(), warmup, **settings)

    def run(model, sampler, start):
        for number in range(start, 20):
            for i, p in enumerate(model.parameters()):
                p.grad = p.detach() + drawn(p.shape, 10 * number + i, dtype)
            if number == done and start == 0:
                kept = copy.deepcopy([model.state_dict(), sampler.state_dict(), torch.get_rng_state()])
                kept.append(copy.deepcopy((model, sampler)))
            sampler.step()
        return kept if start == 0 else None

    model, sampler = begin()
    torch.manual_seed(7)
    weights, state, noise, twin = run(model, sampler, 0)
    model_again, resumed = begin()
    torch.manual_seed(8)
    model_again.load_state_dict(weights)
    resumed.load_state_dict(state)
    run(model_again, resumed, done)
    torch.set_rng_state(noise)
    run(*twin, done)
    assert resumed.cycle == 2
    assert torch.equal(flat(model_again), flat(model))
    assert torch.equal(flat(twin[0]), flat(model))


def test_a_parameter_that_no_warm_up_of_the_cycle_saw_has_no_mass():
    def chain(back):
        """Where the second parameter is before each step; from the second cycle to ``back`` it has no gradient."""
        p, still = (torch.nn.Parameter(torch.ones(n)) for n in (7, 3))
        sampler = adapted([p, still], "whitened", cycle_length=LENGTH, missing_gradient="skip", prior_precision=1.0)
        places = []
        for step in range(2 * LENGTH + 6):
            places.append(still.detach().clone())
            p.grad, still.grad = drawn(7, step), None if LENGTH <= step < back else drawn(3, step)
            sampler.load_state_dict(copy.deepcopy(sampler.state_dict()))
            sampler.step()
        return places

    places = chain(2 * LENGTH)
    assert all(torch.equal(places[LENGTH], place) for place in places[LENGTH : 2 * LENGTH + 1])
    assert not torch.equal(places[LENGTH], places[-1])  # with the next warm-up it moves again
    with pytest.raises(ValueError, match="has no mass: warmup_steps is 6 and 7 steps are over"):
        chain(LENGTH + 7)
