"""A generator that is set back in mid-run: noticed, and only then."""

from __future__ import annotations

import warnings

import pytest
import torch

from learned_samplers import HMC, L2E, SGHMC, SGLD, AdaptedSGHMC, CyclicalSGMCMC

MESSAGE = "torch's random generator is in a state that it had at an earlier step"
SAMPLERS = {
    "SGLD": lambda p, **more: SGLD(p, 1e-3, 100, **more),
    "SGHMC": lambda p, **more: SGHMC(p, 1e-3, 100, **more),
    "L2E": lambda p, **more: L2E(p, 1e-3, 100, **more),
    "AdaptedSGHMC": lambda p, **more: AdaptedSGHMC(p, 1e-3, 100, warmup=L2E, warmup_steps=10, **more),
    "CyclicalSGMCMC": lambda p, **more: CyclicalSGMCMC(p, 1e-3, 100, cycle_length=10, **more),
}


def run(sampler, p, steps, before=lambda step: None, after=lambda step: None):
    """The messages of a run with this done before each step."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(steps):
            before(step)
            p.grad = p.detach() / 10
            sampler.step()
            after(step)
    return [str(each.message) for each in caught if MESSAGE in str(each.message)]


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("every", [1, 7])
def test_noise_that_repeats_is_noticed_once(name, every):
    """Reseeding begins after a while, as a validation at the end of the first epoch does."""
    torch.manual_seed(3)
    p = torch.zeros(4, requires_grad=True)
    sampler = SAMPLERS[name]([p])
    found = run(sampler, p, 60, lambda step: step >= 5 and step % every == 0 and torch.manual_seed(0))
    assert len(found) == 1
    assert "generator=torch.Generator().manual_seed(0)" in found[0]


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_generator_of_its_own_or_one_that_nobody_sets_back_is_not(name):
    torch.manual_seed(3)
    p = torch.zeros(4, requires_grad=True)
    assert not run(SAMPLERS[name]([p]), p, 60)
    own = SAMPLERS[name]([p], generator=torch.Generator().manual_seed(1))
    assert not run(own, p, 60, lambda step: torch.manual_seed(0))


def test_the_warning_is_of_what_it_says():
    """Planted: noise that repeats every m steps makes a direction of curvature k 2/(m·lr·k) times too wide."""
    spread = {}
    for reseeded in (False, True):
        torch.manual_seed(5)
        p = torch.zeros(2000, requires_grad=True)
        sampler, squares = SGLD([p], 0.1, 1), []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for step in range(2000):
                if reseeded and step % 20 == 0:
                    torch.manual_seed(0)
                p.grad = 0.05 * p.detach()
                sampler.step()
                squares.append(p.detach().square().mean().item())
        spread[reseeded] = sum(squares[1000:]) / 1000 * 0.05
    assert spread[False] == pytest.approx(1.0, rel=0.1)
    assert spread[True] == pytest.approx(20, rel=0.1)


def test_steps_that_draw_nothing_and_states_that_are_restored_are_no_reseeding():
    p = torch.zeros(4, requires_grad=True)
    assert not run(SGHMC([p], 1e-3, 100, temperature=0.0), p, 20, lambda step: torch.manual_seed(0))
    # Going back to a checkpoint takes the generator with it.
    sampler = SGHMC([p], 1e-3, 100)
    torch.manual_seed(1)
    assert not run(sampler, p, 5)
    saved, state = sampler.state_dict(), torch.get_rng_state()
    first = run(sampler, p, 20)
    sampler.load_state_dict(saved)
    torch.set_rng_state(state)
    assert not first + run(sampler, p, 20)


def test_trajectories_count_as_steps():
    torch.manual_seed(0)
    p = torch.zeros(3, requires_grad=True)
    sampler = HMC([p], 0.1, 10, leapfrog_steps=3)

    def closure():
        sampler.zero_grad()
        loss = p.square().mean()
        loss.backward()
        return loss

    torch.manual_seed(0)
    sampler.step(closure)
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match=MESSAGE):
        sampler.step(closure)
