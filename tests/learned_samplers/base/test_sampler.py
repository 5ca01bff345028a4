"""What every sampler promises as a torch optimizer."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from learned_samplers import HMC, SGHMC, SGLD, SGNHT
from tests.harness import (
    LEARNED,
    NEED_CLOSURE,
    OF_MATRICES,
    SAMPLERS,
    STOCHASTIC,
    closure_for,
    flat,
    run,
    small_network,
)

EVERY = pytest.mark.parametrize("name", SAMPLERS)


@EVERY
def test_foreach_equals_the_loop_bit_for_bit(name):
    settings = dict(prior_precision=2.0, temperature=0.7)
    one = flat(run(name, 12, foreach=True, **settings)[0])
    other = flat(run(name, 12, foreach=False, **settings)[0])
    assert torch.equal(one, other)


@EVERY
def test_blocks_do_not_change_the_chain(name, monkeypatch):
    whole = flat(run(name, 5)[0])
    monkeypatch.setattr("learned_samplers.base.step.BLOCK_ON_CPU", 6)
    assert torch.equal(whole, flat(run(name, 5)[0]))


@EVERY
def test_step_returns_the_loss_and_counts(name):
    _, sampler, losses = run(name, 4)
    assert all(torch.isfinite(loss) for loss in losses)
    assert sampler.step_count == 4
    assert sampler.badge in ("exact", "O(h)", "heuristic")


@EVERY
def test_the_seed_fixes_the_chain_and_another_seed_changes_it(name):
    assert torch.equal(flat(run(name, 6)[0]), flat(run(name, 6)[0]))
    assert not torch.equal(flat(run(name, 6)[0]), flat(run(name, 6, seed=2)[0]))


@EVERY
def test_a_generator_of_its_own_leaves_the_global_one_alone(name):
    model = small_network()
    sampler = SAMPLERS[name](model.parameters(), generator=torch.Generator().manual_seed(3))
    torch.manual_seed(7)
    before = torch.get_rng_state()
    for _ in range(3):
        sampler.step(closure_for(model, sampler))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("name", STOCHASTIC)
def test_gradients_are_read_and_never_written(name):
    model, sampler, _ = run(name, 1, prior_precision=3.0)
    before = [p.grad.clone() for p in model.parameters()]
    sampler.step()
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), before, strict=True))


@EVERY
def test_groups_have_their_own_settings_and_names(name):
    model = small_network()
    first, second = list(model.named_parameters())[:2], list(model.named_parameters())[2:]
    make = SAMPLERS[name]
    sampler = make([{"params": first, "lr": 0.01}, {"params": second}])
    assert sampler.param_groups[0]["lr"] == 0.01
    assert sampler.param_groups[0]["param_names"] == ["0.weight", "0.bias"]
    before = flat(model)
    sampler.step(closure_for(model, sampler))
    assert sampler.step_count == 1
    assert (flat(model) != before).any() or name == "HMC"


@EVERY
def test_a_learning_rate_scheduler_drives_it(name):
    model = small_network()
    sampler = SAMPLERS[name](model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(sampler, T_max=5)
    rates = []
    for _ in range(5):
        sampler.step(closure_for(model, sampler))
        scheduler.step()
        rates.append(scheduler.get_last_lr()[0])
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] == pytest.approx(0, abs=1e-9)
    before = flat(model)
    sampler.step(closure_for(model, sampler))  # at lr 0 nothing moves, and nothing breaks
    assert torch.allclose(flat(model), before, atol=1e-5)


@EVERY
def test_frozen_parameters_stay(name):
    model = small_network()
    model[0].weight.requires_grad_(False)
    before = model[0].weight.clone()
    sampler = SAMPLERS[name](model.parameters())
    sampler.step(closure_for(model, sampler))
    assert torch.equal(model[0].weight, before)


@pytest.mark.parametrize("name", [n for n in STOCHASTIC if n not in ("SGNHT", "SGLRW")])
def test_nothing_is_drawn_at_temperature_zero(name):
    model = small_network()
    sampler = SAMPLERS[name](model.parameters(), temperature=0.0)
    state = torch.get_rng_state()
    for _ in range(6):
        sampler.step(closure_for(model, sampler))
    assert torch.equal(state, torch.get_rng_state())


# ---------------------------------------------------------------- shapes, dtypes, groups


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(sorted(STOCHASTIC)),
    shapes=st.lists(st.lists(st.integers(1, 4), max_size=3), min_size=1, max_size=4),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    foreach=st.booleans(),
)
def test_any_shapes_and_dtypes(name, shapes, dtype, foreach):
    params = [torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes]
    sampler = STOCHASTIC[name](params, foreach=foreach)
    for _ in range(3):
        for p in params:
            p.grad = torch.randn_like(p)
        sampler.step()
    for p, shape in zip(params, shapes, strict=True):
        assert p.shape == tuple(shape)
        assert p.dtype == dtype
        assert p.isfinite().all()
        # Half precision is updated in single precision.
        expected = torch.float32 if dtype == torch.bfloat16 else dtype
        assert all(s.dtype == expected for s in sampler.state[p].values())


@settings(max_examples=15, deadline=None)
@given(
    name=st.sampled_from(sorted(set(STOCHASTIC) - LEARNED - OF_MATRICES)),
    members=st.integers(1, 3),
    width=st.integers(1, 5),
)
def test_the_rule_works_with_leading_batch_axes(name, members, width):
    """The pure function on a stack of members is the pure function on each member."""
    sampler = STOCHASTIC[name]([torch.zeros(width, requires_grad=True)])
    hyper = sampler.hyper(sampler.param_groups[0])
    x, g = torch.randn(2, members, width)
    noise = sampler.noise_like(x)
    shapes = {"thermostat": (members, 1)}
    state = [torch.rand(shapes.get(n, (members, width))) for n in sampler.state_names]
    stacked = sampler.rule(x, g, noise, *state, **hyper)
    for i in range(members):
        alone = sampler.rule(x[i], g[i], noise[i], *(s[i] for s in state), **hyper)
        for a, b in zip(stacked, alone, strict=True):
            assert torch.allclose(a[i], b, atol=1e-6)


def test_a_momentum_drawn_at_the_start_has_the_temperature():
    p = torch.zeros(20_000, requires_grad=True)
    sampler = SGHMC([p], 1e-9, 100, momentum_init="normal", temperature=0.25, momentum_decay=1e-9)
    p.grad = torch.zeros_like(p)
    sampler.step()
    assert sampler.temperatures()[0]["kinetic"] == pytest.approx(0.25, rel=0.05)


def test_temperatures_of_exact_draws():
    k, n = 40.0, 100
    p = (torch.randn(50_000) / k**0.5).requires_grad_()
    q = (torch.randn(50_000) / k**0.5).requires_grad_()
    sampler = SGNHT([{"params": [p]}, {"params": [q]}], 0.01, n, momentum_init="normal")
    for _ in range(3):
        for x in (p, q):
            x.grad = k * x.detach() / n
        reports = sampler.temperatures()
        sampler.step()
    assert len(reports) == 2
    for report in reports:
        assert report["kinetic"] == pytest.approx(1, rel=0.05)
        assert report["configurational"] == pytest.approx(1, rel=0.05)


def test_hooks_and_named_parameters():
    model = small_network()
    sampler = SGHMC(model.named_parameters(), 0.1, 100)
    seen = []
    handle = sampler.register_step_post_hook(lambda opt, args, kwargs: seen.append(opt.step_count))
    for _ in range(3):
        sampler.step(closure_for(model, sampler))
    handle.remove()
    sampler.step(closure_for(model, sampler))
    assert seen == [1, 2, 3]


def test_a_group_added_later_joins_the_count():
    model = small_network()
    sampler = SGLD(model[0].parameters(), 0.1, 100)
    model[2].requires_grad_(False)
    sampler.step(closure_for(model, sampler))
    model[2].requires_grad_(True)
    sampler.add_param_group({"params": model[2].parameters(), "lr": 0.01})
    sampler.step(closure_for(model, sampler))
    assert [g["step"] for g in sampler.param_groups] == [2, 2]


def test_a_gradient_scaler_drives_it():
    model = small_network()
    sampler = SGHMC(model.parameters(), 0.1, 100)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    loss = nn.functional.cross_entropy(model(torch.randn(4, 3)), torch.tensor([0, 1, 0, 1]))
    scaler.scale(loss).backward()
    scaler.step(sampler)
    scaler.update()
    assert sampler.step_count == 1


def test_only_those_that_evaluate_the_loss_again_need_a_closure():
    asking = {n for n, make in SAMPLERS.items() if make([torch.zeros(1, requires_grad=True)]).needs_closure}
    assert asking == NEED_CLOSURE
    with pytest.raises(ValueError, match=r"HMC\.step needs a closure"):
        HMC([torch.zeros(1, requires_grad=True)], 0.1, 10).step()


def test_the_kinetic_temperature_is_of_those_that_have_a_momentum():
    """A parameter that has just joined has none, and would cool the group."""
    p, q = (torch.zeros(4000, requires_grad=True) for _ in range(2))
    sampler = SGHMC([p], 1e-9, 100, momentum_init="normal", momentum_decay=1e-9)
    p.grad = torch.zeros_like(p)
    sampler.step()
    sampler.param_groups[0]["params"].append(q)
    q.grad = torch.zeros_like(q)
    assert sampler.temperatures()[0]["kinetic"] == pytest.approx(1.0, rel=0.1)
