"""The optimizer that explores for AdaptedSGHMC: it moves as on its own, and is saved, copied and refused with it."""

import copy
import functools
import math

import pytest
import torch

from learned_samplers import L2E, SGLD, AdaptedSGHMC, WhitenedSGHMC
from tests.harness import closure_for, same, small_network
from tests.learned_samplers.classical.chains_of_adapted import DTYPES, PHASES, WARMUPS, N, adapted, drawn


@pytest.mark.parametrize("warmup", [name for name in WARMUPS if name != "none"])
@DTYPES
def test_while_it_explores_it_is_that_optimizer(warmup, dtype):
    """Bit for bit, at its own rate; torch's optimizers at half precision as on float32 weights."""
    half = dtype == torch.bfloat16
    ours, theirs = small_network().to(dtype), small_network().to(dtype)
    theirs = theirs.float() if warmup in ("adam", "sgd") else theirs
    generators = [torch.Generator().manual_seed(3) for _ in range(2)]
    common = dict(temperature=0.4, prior_precision=2.0, missing_gradient="skip")

    def groups(model, **first):
        return [{"params": model[0].named_parameters(), **first}, {"params": model[2].named_parameters()}]

    settings = dict(warmup=WARMUPS[warmup], warmup_steps=8, settling_share=0.25, mass="diagonal", **common)
    settings["generator"] = generators[0]
    sampler = AdaptedSGHMC(groups(ours, lr=0.03), 0.02, N, **settings)
    if warmup in ("adam", "sgd"):
        plain = WARMUPS[warmup](groups(theirs))
    else:
        plain = WARMUPS[warmup](groups(theirs), num_data=N, generator=generators[1], **common)
    for step in range(6):
        for i, (p, q) in enumerate(zip(ours.parameters(), theirs.parameters(), strict=True)):
            p.grad = None if (step, i) == (2, 3) else drawn(p.shape, 10 * step + i, dtype)
            q.grad = None if p.grad is None else p.grad.to(q.dtype)
        gradients = [p.grad for p in ours.parameters()]
        sampler.step()
        plain.step()
        assert all(p.grad is g for p, g in zip(ours.parameters(), gradients, strict=True))
    assert sampler.explorer is not None
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(p, q.to(dtype))
        p.grad = torch.zeros_like(p)
    sampler.step()
    assert sampler.explorer is None
    kept = {"momentum", "mass"} | ({"master"} if half else set())
    assert all(set(sampler.state[p]) == kept for p in ours.parameters())


@pytest.mark.parametrize(
    "warmup", [functools.partial(WhitenedSGHMC, temperature=0.0), functools.partial(L2E, temperature=0.0)]
)
def test_a_cold_warm_up_draws_nothing_and_then_it_is_warm(warmup):
    model = small_network()
    sampler = AdaptedSGHMC(model.parameters(), 0.02, N, warmup=warmup, **PHASES, eps=0.01, mass="diagonal")
    before = torch.get_rng_state()
    for _ in range(4):
        sampler.step(closure_for(model, sampler))
    assert torch.equal(before, torch.get_rng_state())
    sampler.step(closure_for(model, sampler))
    assert not torch.equal(before, torch.get_rng_state())


def test_what_explores_follows_the_target_and_has_its_own_rate():
    model = small_network()
    explorer = functools.partial(SGLD, lr=0.5, prior_precision=2.0)
    sampler = AdaptedSGHMC(model.parameters(), num_data=N, warmup=explorer, warmup_steps=9)
    schedule = torch.optim.lr_scheduler.ExponentialLR(sampler, 0.5)
    sampler.param_groups[0].update(temperature=0.25, prior_precision=3.0)
    sampler.step(closure_for(model, sampler))
    schedule.step()
    sampler.step(closure_for(model, sampler))
    theirs = sampler.explorer.optimizer.param_groups[0]
    assert (theirs["lr"], theirs["temperature"], theirs["prior_precision"]) == (0.5, 0.25, 2.0)
    assert sampler.param_groups[0]["lr"] == 0.0015


def test_a_frozen_parameter_with_an_old_gradient_does_not_move():
    model = small_network()
    sampler = adapted(model.parameters(), "adam")
    closure_for(model, sampler)()
    model[0].weight.requires_grad_(False)
    before = model[0].weight.detach().clone()
    sampler.step()
    assert torch.equal(model[0].weight, before)
    assert model[0].weight.grad is not None


@pytest.mark.parametrize("warmup", ["whitened", "adam"])
def test_a_step_that_overflows_leaves_what_explores_as_it_was(warmup):
    chains = []
    for fails in (False, True):
        p = torch.nn.Parameter(torch.ones(3, 4))
        sampler = adapted([p], warmup, temperature=0.0)
        for step in range(8):
            if fails and step in (2, 5):
                p.grad = torch.full((3, 4), 1e30)
                with pytest.raises(FloatingPointError, match="nothing was changed"):
                    sampler.step()
            p.grad = torch.randn(3, 4, generator=torch.Generator().manual_seed(step))
            sampler.step()
        chains.append(p.detach())
    assert torch.equal(*chains)


def test_a_warm_up_that_writes_nan_marks_the_chain():
    p = torch.nn.Parameter(torch.ones(3, 4))
    sampler = AdaptedSGHMC([p], num_data=N, warmup=functools.partial(torch.optim.SGD, lr=1e38), warmup_steps=5)
    p.grad = torch.full((3, 4), 1e4)
    with pytest.raises(FloatingPointError, match="warm-up by SGD"):
        sampler.step()
    assert sampler.broken_off


def chain(warmup):
    model = small_network()
    sampler = adapted(model.parameters(), warmup)
    for _ in range(2):
        sampler.step(closure_for(model, sampler))
    return sampler


def refuses(sampler, saved, said):
    """Loading raises, and nothing changes."""
    before, noise = copy.deepcopy(sampler.state_dict()), torch.get_rng_state()
    with pytest.raises(ValueError, match=said):
        sampler.load_state_dict(saved)
    assert torch.equal(torch.get_rng_state(), noise)
    assert same(sampler.state_dict(), before)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda saved: saved.pop("state_dict"), "holds no state of Adam"),
        (lambda saved: saved["state_dict"]["state"].pop(0), "lacks exp_avg, exp_avg_sq, step of parameter number 0"),
        (lambda saved: saved["state_dict"]["state"][1].pop("exp_avg"), "lacks exp_avg of parameter number 1"),
        (lambda saved: saved["state_dict"]["state"][1].update(exp_avg=torch.zeros(7)), r"exp_avg .*\(7,\)"),
        (lambda saved: saved["state_dict"]["state"][1].update(exp_avg_sq="x"), "exp_avg_sq .*must be a tensor"),
        (lambda saved: saved["state_dict"]["state"][1]["exp_avg"].fill_(math.inf), "exp_avg .*not finite"),
        (lambda saved: saved["state_dict"]["param_groups"][0].update(lr=math.nan), "lr=nan of Adam"),
    ],
)
def test_a_broken_state_of_what_explores_is_refused_and_nothing_changes(spoil, said):
    sampler = chain("adam")
    saved = copy.deepcopy(sampler.state_dict())
    spoil(saved["sampler"]["warmup"])
    refuses(sampler, saved, said)


@pytest.mark.parametrize(
    ("mine", "theirs", "said"),
    [
        ("none", "adam", "this sampler has none"),
        ("adam", "none", "mass"),
        ("adam", "sghmc", "explores by SGHMC, the warmup of this sampler by Adam"),
        ("sghmc", "adam", "explores by Adam, the warmup of this sampler by SGHMC"),
    ],
)
def test_a_state_of_another_warm_up_is_refused_and_nothing_changes(mine, theirs, said):
    refuses(chain(mine), chain(theirs).state_dict(), said)
