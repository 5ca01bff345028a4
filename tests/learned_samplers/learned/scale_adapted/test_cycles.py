"""ScaleAdaptedL2E in cycles: each is a run of its own, from the weights where the last one ended."""

from __future__ import annotations

import copy
import importlib

import pytest
import torch

from learned_samplers import PosteriorSamples, ScaleAdaptedL2E
from tests.harness import closure_for, small_network
from tests.learned_samplers.learned.scale_adapted.cases import N, network

PHASES = dict(adaptation_steps=6, settling_share=0.34)  # four steps of exploration, two of settling
LENGTH = 9


def chain(params, generator, **own):
    return ScaleAdaptedL2E(params, 0.02, N, network=network(0.3), generator=generator, **{**PHASES, **own})


@pytest.mark.parametrize("momentum_init", ["zero", "normal"])
def test_a_cycle_is_a_new_sampler_on_the_weights_of_the_last_one(momentum_init):
    models = [small_network(), small_network()]
    generators = [torch.Generator().manual_seed(5) for _ in models]
    own = dict(momentum_init=momentum_init, temperature=0.3)
    ours = chain(models[0].parameters(), generators[0], cycle_length=LENGTH, **own)
    for step in range(3 * LENGTH):
        if step % LENGTH == 0:
            theirs = chain(models[1].parameters(), generators[1], **own)
        ours.step(closure_for(models[0], ours))
        theirs.step(closure_for(models[1], theirs))
        assert ours.is_sampling == theirs.is_sampling == (step % LENGTH >= 6)
        assert ours.cycle == step // LENGTH
        assert ours.step_count == step + 1
        for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
            assert torch.equal(a, b)
    other, generator = small_network(), torch.Generator().manual_seed(5)  # the planted fault: it goes on with its mass
    single = chain(other.parameters(), generator, **own)
    for _ in range(3 * LENGTH):
        single.step(closure_for(other, single))
    assert any(not torch.equal(a, b) for a, b in zip(models[0].parameters(), other.parameters(), strict=True))


def test_samples_are_those_of_the_frozen_mass_of_each_cycle():
    model = small_network()
    sampler = chain(model.parameters(), None, cycle_length=LENGTH)
    samples = PosteriorSamples(model, sampler, burn_in=LENGTH, thinning=1)
    for _ in range(3 * LENGTH):
        sampler.step(closure_for(model, sampler))
    assert samples.steps == [16, 17, 18, 25, 26, 27]
    assert samples.cycles == [1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("done", [9, 11, 15, 20])
def test_it_resumes_bit_for_bit_in_a_later_cycle(done):
    def begin():
        model = small_network()
        return model, chain(model.parameters(), torch.Generator().manual_seed(2), cycle_length=LENGTH)

    model, sampler = begin()
    for step in range(24):
        if step == done:
            kept = copy.deepcopy([model.state_dict(), sampler.state_dict()])
        sampler.step(closure_for(model, sampler))
    other, resumed = begin()
    other.load_state_dict(kept[0])
    resumed.load_state_dict(kept[1])
    for _ in range(done, 24):
        resumed.step(closure_for(other, resumed))
    assert resumed.cycle == 2
    for ours, theirs in zip(other.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_parameter_that_no_exploration_of_the_cycle_saw_has_no_mass():
    p, still = torch.randn(7).requires_grad_(), torch.randn(3).requires_grad_()
    sampler = chain([p, still], None, cycle_length=LENGTH, missing_gradient="skip", prior_precision=1.0)
    for step in range(2 * LENGTH):
        p.grad, still.grad = 0.1 * torch.randn(7), None if step >= LENGTH else 0.1 * torch.randn(3)
        if step == LENGTH:
            before = still.detach().clone()
        sampler.step()
    assert torch.equal(still, before)
    chain([p, still], None, cycle_length=LENGTH).load_state_dict(sampler.state_dict())
    for _ in range(LENGTH - 2):  # with the next exploration it moves again
        p.grad, still.grad = 0.1 * torch.randn(7), 0.1 * torch.randn(3)
        sampler.step()
    assert not torch.equal(still, before)
    late = chain([p, still], None, cycle_length=LENGTH, missing_gradient="skip")
    for step in range(LENGTH + 7):
        p.grad, still.grad = 0.1 * torch.randn(7), None if step >= LENGTH else 0.1 * torch.randn(3)
        late.step()
    p.grad, still.grad = 0.1 * torch.randn(7), 0.1 * torch.randn(3)
    with pytest.raises(ValueError, match="has no mass: the exploration has 4 steps, 7 are over"):
        late.step()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_weights_go_on_from_where_they_are(dtype):
    p = torch.ones(4, dtype=dtype, requires_grad=True)
    sampler = ScaleAdaptedL2E(
        [p], 1e-6, 10**6, adaptation_steps=2, cycle_length=3, network=None, temperature=0.0, momentum_init="zero"
    )
    for _ in range(7):
        p.grad = torch.zeros_like(p)
        sampler.step()
        assert torch.equal(p, torch.ones(4, dtype=dtype))


def test_higher_has_no_twin_of_cycles():
    higher = pytest.importorskip("higher")
    importlib.import_module("learned_samplers.differentiable")
    model = small_network()
    sampler = chain(model.parameters(), None, cycle_length=LENGTH)
    with pytest.raises(ValueError, match="must have cycle_length=None in higher"):  # noqa: SIM117
        with higher.innerloop_ctx(model, sampler):
            pass


def test_in_cycles_the_badge_is_heuristic():
    p = torch.zeros(3, requires_grad=True)
    shipped = dict(num_data=100, adaptation_steps=6)
    assert ScaleAdaptedL2E([p], **shipped).badge == "O(h)"
    cyclic = ScaleAdaptedL2E([p], **shipped, cycle_length=9)
    assert cyclic.badge == "heuristic"
    assert "not the probability of that mode" in cyclic.badge_reason


@pytest.mark.parametrize(
    ("length", "error", "message"),
    [
        (6, ValueError, "cycle_length 6 leaves no step to sample in after adaptation_steps=6"),
        (0, ValueError, "cycle_length must be at least 1, got 0"),
        (9.0, TypeError, "cycle_length must be"),
    ],
)
def test_bad_lengths(length, error, message):
    p = torch.zeros(3, requires_grad=True)
    with pytest.raises(error, match=message):
        chain([p], None, cycle_length=length)


def test_all_groups_share_the_cycle():
    p, q = (torch.zeros(3, requires_grad=True) for _ in range(2))
    sampler = chain([p], None, cycle_length=LENGTH)
    with pytest.raises(ValueError, match="cycle_length must be the same in every group, got 12 beside 9"):
        sampler.add_param_group({"params": [q], "cycle_length": 12})
    assert len(sampler.param_groups) == 1
