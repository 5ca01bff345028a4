"""The warm-up of AdaptedSGHMC: its phases and cycles, and how it resumes."""

import copy

import pytest
import torch

from learned_samplers import PosteriorSamples
from tests.harness import closure_for, flat, small_network
from tests.learned_samplers.classical.chains_of_adapted import EVERY_WARMUP, LENGTH, adapted, drawn


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
