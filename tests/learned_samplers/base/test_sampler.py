"""Promises of every sampler as a torch optimizer."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import learned_samplers
from learned_samplers import L2E, SGHMC, SGNHT, CyclicalSchedule
from tests.harness import (
    LEARNED,
    NEED_CLOSURE,
    NEED_DRAWS,
    OF_MATRICES,
    SAMPLERS,
    STOCHASTIC,
    closure_for,
    flat,
    run,
    small_data,
    small_network,
)

EVERY = pytest.mark.parametrize("name", SAMPLERS)


@pytest.mark.parametrize(("name", "dtype"), [*((n, torch.float32) for n in SAMPLERS), ("SGHMC", torch.bfloat16)])
def test_loops_lists_and_blocks_have_the_same_arithmetic(name, dtype, monkeypatch):
    settings = dict(prior_precision=2.0, temperature=0.7, dtype=dtype)
    lists = flat(run(name, 12, foreach=True, **settings)[0])
    assert torch.equal(lists, flat(run(name, 12, foreach=False, **settings)[0]))
    monkeypatch.setattr("learned_samplers.base.step.BLOCK_ON_CPU", 6)
    assert torch.equal(lists, flat(run(name, 12, **settings)[0]))


@EVERY
def test_the_seed_fixes_the_chain_and_a_step_returns_the_loss_and_counts(name):
    model, sampler, losses = run(name, 6)
    assert all(torch.isfinite(loss) for loss in losses)
    assert sampler.step_count == 6
    assert sampler.badge in ("exact", "O(h)", "heuristic")
    assert torch.equal(flat(model), flat(run(name, 6)[0]))
    assert not torch.equal(flat(model), flat(run(name, 6, seed=2)[0]))


@EVERY
def test_a_generator_of_its_own_leaves_the_global_one_alone(name):
    model = small_network()
    sampler = SAMPLERS[name](model.parameters(), generator=torch.Generator().manual_seed(3))
    before = torch.get_rng_state()
    for _ in range(3):
        sampler.step(closure_for(model, sampler))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("name", STOCHASTIC)
def test_gradients_are_read_and_never_written_and_one_that_lacks_is_skipped_on_demand(name):
    model, sampler, _ = run(name, 1, prior_precision=3.0, missing_gradient="skip")
    before = [p.grad.clone() for p in model.parameters()]
    sampler.step()
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), before, strict=True))
    model[0].weight.grad = None
    weight, bias = model[0].weight.detach().clone(), model[0].bias.detach().clone()
    sampler.step()
    assert torch.equal(model[0].weight, weight)
    assert not torch.equal(model[0].bias, bias)
    sampler.zero_grad()
    start = flat(model)
    sampler.step()
    assert torch.equal(flat(model), start)
    assert sampler.step_count == 4


@EVERY
def test_groups_have_their_own_settings_and_names_and_frozen_parameters_stay(name):
    model = small_network()
    model[0].weight.requires_grad_(False)
    first, second = list(model.named_parameters())[:2], list(model.named_parameters())[2:]
    sampler = SAMPLERS[name]([{"params": first, "lr": 0.01}, {"params": second}])
    assert sampler.param_groups[0]["lr"] == 0.01
    assert sampler.param_groups[0]["param_names"] == ["0.weight", "0.bias"]
    before, frozen = flat(model), model[0].weight.clone()
    sampler.step(closure_for(model, sampler))
    assert sampler.step_count == 1
    assert (flat(model) != before).any() or name == "HMC"
    assert torch.equal(model[0].weight, frozen)


@EVERY
@pytest.mark.parametrize("joins_at", [0, 2])
def test_a_number_or_an_empty_tensor_may_join_at_any_step(name, joins_at):
    """A learnable temperature moves as a tensor of shape (1,), and an empty one is no matter."""
    chains = []
    for shape in ((), (1,), (0, 3)):
        torch.manual_seed(0)
        a, late = torch.randn(4, 3, requires_grad=True), torch.ones(shape, requires_grad=True)
        sampler = SAMPLERS[name]([a])

        def closure(a=a, late=late, sampler=sampler):
            sampler.zero_grad()
            loss = a.square().mean() + (late.square().sum() if len(sampler.param_groups) > 1 else 0.0)
            loss.backward()
            return loss

        for i in range(6):
            if i == joins_at:
                sampler.add_param_group({"params": [late]})
            sampler.step(closure)
        chains.append((a, late.view(-1)))
        sampler.load_state_dict(copy.deepcopy(sampler.state_dict()))
        assert [group["step"] for group in sampler.param_groups] == [6, 6]
    assert all(map(torch.equal, chains[0], chains[1]))
    assert chains[2][0].isfinite().all()


@EVERY
def test_frozen_parameters_of_any_type_are_ignored(name):
    """4-bit weights under LoRA, a frozen Fourier layer: the chain is that without them, and so is a resumed one."""
    chains = []
    for beside in (False, True):
        model = small_network()
        frozen = [nn.Parameter(torch.arange(4), requires_grad=False)]
        frozen.append(nn.Parameter(torch.ones(3, dtype=torch.complex64), requires_grad=False))
        params = [*(frozen if beside else ()), *model.parameters()]
        sampler = SAMPLERS[name](params, **({"prior_mean": "initial"} if name == "SGHMC" else {}))
        torch.manual_seed(1)
        for _ in range(2):
            sampler.step(closure_for(model, sampler))
        saved = copy.deepcopy(sampler.state_dict())
        sampler.load_state_dict(saved)
        for _ in range(4):
            sampler.step(closure_for(model, sampler))
        assert torch.equal(frozen[0], torch.arange(4))
        chains.append(flat(model))
    assert torch.equal(*chains)
    frozen[1].requires_grad_()
    ordinary = closure_for(model, model)

    def closure():
        frozen[1].grad = torch.ones_like(frozen[1])
        return ordinary()

    with pytest.raises(TypeError, match="complex64"):
        sampler.step(closure)


# ---------------------------------------------------------------- what drives it


def _cosine(sampler, **_):
    return torch.optim.lr_scheduler.CosineAnnealingLR(sampler, T_max=5)


def _one_cycle(sampler, **settings):
    return torch.optim.lr_scheduler.OneCycleLR(sampler, max_lr=0.1, total_steps=10, **settings)


def _cyclic(sampler, **settings):
    return torch.optim.lr_scheduler.CyclicLR(sampler, base_lr=0.01, max_lr=0.1, step_size_up=3, **settings)


@EVERY
@pytest.mark.parametrize("make", [_cosine, _one_cycle, _cyclic])
def test_schedulers_drive_it_and_those_that_cycle_the_momentum_work_without_it(name, make):
    model = small_network()
    sampler = SAMPLERS[name](model.parameters(), lr=0.1)
    if make is not _cosine and name not in NEED_DRAWS:  # IVON has betas, which torch cycles as it does Adam's
        with pytest.raises(ValueError, match="cycle_momentum"):  # torch's own words, before anything has changed
            make(sampler)
    cycled = {"cycle_momentum": name in NEED_DRAWS and make is _one_cycle}
    scheduler, rates, betas = make(sampler, **cycled), [], set()
    for _ in range(5):
        sampler.step(closure_for(model, sampler))
        scheduler.step()
        rates.append(sampler.param_groups[0]["lr"])
        betas.add(tuple(sampler.param_groups[0].get("betas", ())))
    assert len(set(rates)) > 3
    assert len(betas) == (5 if cycled["cycle_momentum"] else 1)
    if make is _cosine:
        assert rates[-1] == pytest.approx(0, abs=1e-9)
        before = flat(model)
        sampler.step(closure_for(model, sampler))  # at lr 0 nothing moves, and nothing breaks
        assert torch.allclose(flat(model), before, atol=1e-5)


@pytest.mark.parametrize("name", sorted(NEED_CLOSURE))
def test_gradients_are_of_one_evaluation_whoever_clears_them(name):
    """Where the loop clears them, a second evaluation in a step would see the sum of both."""
    ends = []
    for clears in ("closure", "loop"):
        model = small_network()
        sampler = SAMPLERS[name](model.parameters())
        x, y = small_data()

        def closure(model=model, sampler=sampler, clears=clears, x=x, y=y):
            if clears == "closure":
                sampler.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            return loss

        torch.manual_seed(1)
        for _ in range(6):
            sampler.zero_grad()
            sampler.step(closure)
        ends.append(flat(model))
    assert torch.equal(*ends)


def test_hooks_and_a_gradient_scaler():
    model = small_network()
    sampler, seen = SGHMC(model.named_parameters(), 0.1, 100), []
    handle = sampler.register_step_post_hook(lambda opt, args, kwargs: seen.append(opt.step_count))
    for _ in range(3):
        sampler.step(closure_for(model, sampler))
    handle.remove()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    loss = nn.functional.cross_entropy(model(torch.randn(4, 3)), torch.tensor([0, 1, 0, 1]))
    scaler.scale(loss).backward()
    scaler.step(sampler)
    scaler.update()
    assert seen == [1, 2, 3]
    assert sampler.step_count == 4


@pytest.mark.parametrize("name", ["SGHMC", "L2E", "AdaptedSGHMC"])
def test_a_step_inside_autocast_is_that_outside(name):
    """Its matrix products must not be rounded; compiled code would read bfloat16 as float32."""
    more, after = {"warmup": L2E, "warmup_steps": 5} if name == "AdaptedSGHMC" else {}, []
    for inside in (False, True):
        torch.manual_seed(0)
        layer, x = nn.Linear(20, 30), torch.randn(8, 20)
        sampler = getattr(learned_samplers, name)(layer.parameters(), lr=0.01, num_data=100, **more)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            layer(x).square().mean().backward()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=inside):
            sampler.step()
        after.append(flat(layer))
    assert torch.equal(*after)


# ---------------------------------------------------------------- temperature


@pytest.mark.parametrize("name", [n for n in STOCHASTIC if n not in ("SGNHT", "SGLRW")])
def test_nothing_is_drawn_at_temperature_zero(name):
    model = small_network()
    sampler = SAMPLERS[name](model.parameters(), temperature=0.0)
    state = torch.get_rng_state()
    for _ in range(6):
        sampler.step(closure_for(model, sampler))
    assert torch.equal(state, torch.get_rng_state())


def test_different_temperatures_are_told_once_and_zero_beside_one_is_fine():
    a, b = (torch.zeros(2, requires_grad=True) for _ in range(2))

    def step(sampler):
        a.grad = b.grad = torch.ones(2)
        sampler.step()

    for schedule in (False, True):
        sampler = SGHMC([{"params": [a]}, {"params": [b], "temperature": 0.01}], 0.1, 10)
        scheduled = CyclicalSchedule(sampler, cycle_length=4, exploration_ratio=0.5) if schedule else None
        with pytest.warns(UserWarning, match=r"heat flows between them.*law of none"):
            step(sampler)
        if scheduled is not None:
            scheduled.step()
        step(sampler)  # warnings are errors here
    step(SGHMC([{"params": [a]}, {"params": [b], "temperature": 0.0}], 0.1, 10))


def test_the_kinetic_temperature_is_that_of_a_drawn_momentum_and_of_those_that_have_one():
    """A parameter that has just joined has none, and would cool the group."""
    p, q = (torch.zeros(20_000, requires_grad=True) for _ in range(2))
    settings = dict(momentum_init="normal", temperature=0.25, momentum_decay=1e-9)
    sampler = SGHMC([p], 1e-9, 100, **settings)
    p.grad = torch.zeros_like(p)
    sampler.step()
    assert sampler.temperatures()[0]["kinetic"] == pytest.approx(0.25, rel=0.05)
    sampler.param_groups[0]["params"].append(q)
    q.grad = torch.zeros_like(q)
    assert sampler.temperatures()[0]["kinetic"] == pytest.approx(0.25, rel=0.05)


def test_temperatures_of_exact_draws():
    k, n = 40.0, 100
    params = [(torch.randn(50_000) / k**0.5).requires_grad_() for _ in range(2)]
    sampler = SGNHT([{"params": [p]} for p in params], 0.01, n, momentum_init="normal")
    for _ in range(3):
        for x in params:
            x.grad = k * x.detach() / n
        reports = sampler.temperatures()
        sampler.step()
    assert len(reports) == 2
    for report in reports:
        assert report == pytest.approx({"kinetic": 1, "configurational": 1}, rel=0.05)


# ---------------------------------------------------------------- shapes, dtypes, leading axes


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
    state = [torch.rand((members, 1) if n == "thermostat" else (members, width)) for n in sampler.state_names]
    stacked = sampler.rule(x, g, noise, *state, **hyper)
    for i in range(members):
        alone = sampler.rule(x[i], g[i], noise[i], *(s[i] for s in state), **hyper)
        for a, b in zip(stacked, alone, strict=True):
            assert torch.allclose(a[i], b, atol=1e-6)
