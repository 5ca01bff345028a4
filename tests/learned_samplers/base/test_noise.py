"""Where noise comes from, and two habits of training loops that spoil a law: each is told once, and only where it is.

Threads share torch's global generator; a generator of one's own is the way out.
"""

import copy
import threading
import warnings

import pytest
import torch

from learned_samplers import HMC, L2E, SGHMC, SGLD, AdaptedSGHMC, CyclicalSGMCMC

RESEEDED = "torch's random generator is in a state that it had at an earlier step"
SAMPLERS = {
    "SGLD": SGLD,
    "SGHMC": SGHMC,
    "L2E": L2E,
    "AdaptedSGHMC": lambda *given, **more: AdaptedSGHMC(*given, warmup=L2E, warmup_steps=10, **more),
    "CyclicalSGMCMC": lambda *given, **more: CyclicalSGMCMC(*given, cycle_length=10, **more),
}


def own(seed):
    return torch.Generator().manual_seed(seed)


# ---------------------------------------------------------------- a generator that is set back


def run(sampler, p, steps, before=lambda step: None):
    """The messages of a run with this done before each step."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(steps):
            before(step)
            p.grad = p.detach() / 10
            sampler.step()
    return [str(warning.message) for warning in caught if RESEEDED in str(warning.message)]


@pytest.mark.parametrize("name", SAMPLERS)
def test_noise_that_repeats_is_noticed_once_and_only_then(name):
    """Reseeding begins after a while, as a validation at the end of the first epoch does."""
    for every in (1, 7):
        torch.manual_seed(3)
        p = torch.zeros(4, requires_grad=True)
        sampler = SAMPLERS[name]([p], 1e-3, 100)
        (message,) = run(sampler, p, 60, lambda step, n=every: step >= 5 and step % n == 0 and torch.manual_seed(0))
        assert "generator=torch.Generator().manual_seed(0)" in message
    torch.manual_seed(3)
    assert not run(SAMPLERS[name]([p], 1e-3, 100), p, 60)
    assert not run(SAMPLERS[name]([p], 1e-3, 100, generator=own(1)), p, 60, lambda step: torch.manual_seed(0))


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
    saved, state = copy.deepcopy(sampler.state_dict()), torch.get_rng_state()
    first = run(sampler, p, 20)
    sampler.load_state_dict(saved)
    torch.set_rng_state(state)
    assert not first + run(sampler, p, 20)


def test_trajectories_count_as_steps():
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
    with pytest.warns(UserWarning, match=RESEEDED):
        sampler.step(closure)


# ---------------------------------------------------------------- clipped gradients


def descend(clip, slope=torch.randn_like):
    torch.manual_seed(0)
    params = [torch.randn(5, 4, requires_grad=True), torch.randn(3, requires_grad=True)]
    sampler = SGHMC(params, 0.01, 100)
    for _ in range(40):
        for p in params:
            p.grad = slope(p)
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(params, clip)
        sampler.step()


@pytest.mark.parametrize("clip", [1.0, 0.01, 4.5])  # the last one clips only some of the steps
def test_clipped_gradients_are_noticed_once(clip):
    with pytest.warns(UserWarning, match="seem to be clipped") as caught:
        descend(clip)
    assert len(caught) == 1


@pytest.mark.filterwarnings("error")
def test_unclipped_and_constant_gradients_are_no_clipping():
    descend(None)
    descend(1e6)
    descend(None, torch.ones_like)


# ---------------------------------------------------------------- threads


def chain(generator=None, steps=200):
    """Where a chain is that only its noise moves."""
    p = torch.zeros(5, requires_grad=True)
    sampler = SGLD([p], 0.1, 10, generator=generator)
    for _ in range(steps):
        p.grad = torch.zeros(5)
        sampler.step()
    return p.detach().clone()


def test_threads_with_generators_of_their_own_draw_what_each_draws_alone():
    alone, together = [chain(own(number)) for number in range(3)], {}
    threads = [threading.Thread(target=lambda i=i: together.update({i: chain(own(i))})) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(together[number], expected) for number, expected in enumerate(alone))
