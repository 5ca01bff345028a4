"""The optimizer MetaSGMCMC: its energy, its chains, its badge, its twin, its weights."""

from __future__ import annotations

import copy
import math

import higher
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from learned_samplers import SGHMC, MetaSGMCMC, check_sampler, weights
from learned_samplers.l2e_network import build_network, layers_of
from learned_samplers.meta_sgmcmc_network import META_FEATURES, build_meta_network
from learned_samplers.meta_sgmcmc_rule import meta_sgmcmc_rule
from tests.harness import closure_for, flat, sghmc_variance, small_data, small_network
from tests.learned_samplers.test_weights import make_card

N = 50.0


def network(seed=0, scale=1.0, dtype=torch.float64, hidden=(6,)):
    generator = torch.Generator().manual_seed(seed)
    module = build_meta_network(hidden, zero_last=False, generator=generator)
    with torch.no_grad():
        module[0].bias.normal_(generator=generator)
        module[-1].weight.mul_(scale)
    return module.to(dtype)


def run(make, steps=12, groups=False):
    model = small_network().double()
    params = list(model.parameters())
    sampler = make([{"params": params[:1]}, {"params": params[1:]}] if groups else params)
    torch.manual_seed(1)
    x, y = small_data()

    def closure():
        sampler.zero_grad()
        loss = nn.functional.cross_entropy(model(x.double()), y)
        loss.backward()
        return loss

    for _ in range(steps):
        sampler.step(closure)
    return flat(model)


@pytest.mark.parametrize("correction", ["autograd", "finite_difference"])
@pytest.mark.parametrize("form", ["signed", "absolute"])
@pytest.mark.parametrize("options", [{}, {"temperature": 0.0, "prior_precision": 2.0}, {"momentum_init": "normal"}])
def test_untrained_it_is_sghmc_to_rounding(correction, form, options):
    ours = run(lambda p: MetaSGMCMC(p, 0.2, 100, correction=correction, form=form, **options))
    theirs = run(lambda p: SGHMC(p, 0.2, 100, **options))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)
    learned = run(lambda p: MetaSGMCMC(p, 0.2, 100, correction=correction, form=form, network=network(), **options))
    assert (learned - theirs).abs().max() > 1e-3


def test_the_energy_couples_the_groups():
    """One buffer for all and one a group must give the same chain, with a prior that both feel."""

    def make(p):
        return MetaSGMCMC(p, 0.2, N, network=network(), prior_precision=3.0)

    torch.testing.assert_close(run(make), run(make, groups=True), rtol=1e-9, atol=1e-11)


def test_the_two_corrections_agree_in_a_chain():
    def make(**options):
        return lambda p: MetaSGMCMC(p, 0.2, N, network=network(), prior_precision=1.0, **options)

    exact = run(make(correction="autograd"))
    finite = run(make(correction="finite_difference", probe_size=1e-7))
    torch.testing.assert_close(finite, exact, rtol=0, atol=1e-6)


def test_blocks_do_not_change_the_chain(monkeypatch):
    make = lambda p: MetaSGMCMC(p, 0.2, N, network=network())  # noqa: E731
    whole = run(make)
    monkeypatch.setattr("learned_samplers.meta_sgmcmc._BLOCK_ON_CPU", 7)
    torch.testing.assert_close(run(make), whole, rtol=1e-11, atol=1e-13)


def test_a_loss_a_chain_is_so_many_chains():
    """M chains in the leading axis are the pure rule on (M, d), and each alone; the prior is in each one's energy."""
    module, m = network(), 4
    torch.manual_seed(0)
    a = torch.randn(m, 2, 3, dtype=torch.float64).requires_grad_()
    b = torch.randn(m, dtype=torch.float64).requires_grad_()
    sampler = MetaSGMCMC(
        [{"params": [a], "prior_precision": 2.0}, {"params": [b]}], 0.2, N, network=module, gradient_scale=3.0
    )

    def losses(a, b):
        return torch.cos(a.flatten(1).sum(1) + b) + 0.1 * b**2

    def closure():
        sampler.zero_grad()
        loss = losses(a, b)
        loss.sum().backward()
        return loss

    x = [a.detach().flatten(1).clone(), b.detach()[:, None].clone()]
    r = [torch.zeros_like(part) for part in x]
    phi = [(w.detach(), c.detach()) for w, c in layers_of(module)]
    torch.manual_seed(5)
    for _ in range(6):
        returned = sampler.step(closure)
    assert returned.shape == (m,)
    torch.manual_seed(5)
    for _ in range(6):
        loss = losses(x[0].view(m, 2, 3), x[1][:, 0])
        slopes = torch.func.grad(lambda p, q: losses(p.view(m, 2, 3), q[:, 0]).sum(), argnums=(0, 1))(*x)
        energy = N * loss + x[0].square().sum(1)
        for i, prior in enumerate((2.0, 0.0)):
            noise = torch.randn_like(a if i == 0 else b).reshape(m, -1)
            x[i], r[i] = meta_sgmcmc_rule(
                x[i], slopes[i], noise, r[i], energy=energy, phi=phi, lr=0.2, num_data=N, temperature=1.0,
                prior_precision=prior, momentum_decay=0.1, gradient_scale=3.0,
            )  # fmt: skip
    torch.testing.assert_close(a.detach().flatten(1), x[0], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(b.detach()[:, None], x[1], rtol=1e-10, atol=1e-12)


def test_the_closure_may_give_a_loss_that_is_there_already():
    model, other = small_network(), small_network()
    one, two = (MetaSGMCMC(m.parameters(), 0.1, N, network=network()) for m in (model, other))
    for _ in range(3):
        torch.manual_seed(2)
        one.step(closure_for(model, one))
        loss = closure_for(other, two)()
        torch.manual_seed(2)
        two.step(lambda loss=loss: loss.item())
    assert torch.allclose(flat(model), flat(other), atol=1e-6)


# ------------------------------------------------------------------ refused


@pytest.mark.parametrize(
    ("closure", "error", "message"),
    [
        (None, ValueError, r"MetaSGMCMC\.step needs a closure that returns the mean loss"),
        (lambda: None, ValueError, "must return the mean loss, got None"),
        (lambda: torch.zeros(7), ValueError, r"losses of shape \(7,\); expected \(\) or the leading axis"),
        (lambda: torch.zeros(2, 2), ValueError, r"losses of shape \(2, 2\)"),
        (lambda: 1e38, FloatingPointError, "the energy Ũ .* is not finite, with num_data=100"),
    ],
)
def test_closures_that_do_not_fit_change_nothing(closure, error, message):
    model = small_network()
    sampler = MetaSGMCMC(model.named_parameters(), 0.1, 100, network=network())
    sampler.step(closure_for(model, sampler))
    before, saved = flat(model), copy.deepcopy(sampler.state_dict())
    with pytest.raises(error, match=message):
        sampler.step(closure)
    assert torch.equal(flat(model), before)
    for key, entry in saved["state"].items():
        assert torch.equal(entry["momentum"], sampler.state_dict()["state"][key]["momentum"])
    assert sampler.step_count == 1


def test_the_chain_and_the_parameter_that_broke_the_energy_are_named():
    p = torch.zeros(3, 2, requires_grad=True)
    sampler = MetaSGMCMC([("w", p)], 0.1, 100, network=network(), prior_precision=1.0)
    p.grad = torch.zeros_like(p)
    with pytest.raises(FloatingPointError, match=r"of chains \[1\] is not finite"):
        sampler.step(lambda: torch.tensor([0.0, 1e38, 0.0]))
    with torch.no_grad():
        p[2, 1] = float("nan")
    with pytest.raises(FloatingPointError, match="parameter 'w' is not finite"):
        sampler.step(lambda: torch.zeros(()))
    assert sampler.step_count == 0


@pytest.mark.parametrize(
    ("argument", "value", "error"),
    [
        ("form", "linear", ValueError),
        ("correction", "none", ValueError),
        ("probe_size", 0.0, ValueError),
        ("curl_clip", 0.0, ValueError),
        ("friction_clip", -1.0, ValueError),
        ("curl_offset", float("nan"), ValueError),
        ("curl_scale", -1.0, ValueError),
        ("friction_scale", -1.0, ValueError),
        ("energy_scale", -1.0, ValueError),
        ("gradient_scale", -1.0, ValueError),
        ("constant_friction", 1.5, ValueError),
        ("gradient_variance", -1.0, ValueError),
        ("momentum_decay", 0.0, ValueError),
        ("network", 3, TypeError),
        ("network", build_network(9, (4,)), ValueError),
        ("network", build_network(3, (4,), zero_last=False), ValueError),
    ],
)
def test_own_arguments(argument, value, error):
    with pytest.raises(error, match=argument):
        MetaSGMCMC([torch.zeros(2, requires_grad=True)], 0.1, 100, **{argument: value})


def test_differences_in_half_precision_are_refused():
    p = torch.zeros(2, dtype=torch.bfloat16, requires_grad=True)
    with pytest.raises(
        ValueError, match=r"finite_difference' needs float32 or float64 parameters, got torch\.bfloat16"
    ):
        MetaSGMCMC([("w", p)], 0.1, 100, correction="finite_difference")


@settings(max_examples=20, deadline=None)
@given(
    shapes=st.lists(st.lists(st.integers(1, 4), max_size=3), min_size=1, max_size=4),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    chains=st.integers(0, 3),
    two_groups=st.booleans(),
)
def test_any_shapes_groups_and_dtypes(shapes, dtype, chains, two_groups):
    shapes = [[chains, *shape] if chains else shape for shape in shapes]
    params = [torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes]
    groups = [{"params": params[:1]}, {"params": params[1:]}] if two_groups and len(params) > 1 else params
    sampler = MetaSGMCMC(groups, 0.01, 100, network=network(dtype=dtype), prior_precision=1.0)

    def closure():
        for p in params:
            p.grad = torch.randn_like(p)
        return torch.rand(chains) if chains else torch.rand(())

    for _ in range(3):
        sampler.step(closure)
    for p, shape in zip(params, shapes, strict=True):
        assert p.shape == tuple(shape)
        assert p.dtype == sampler.state[p]["momentum"].dtype == dtype
        assert p.isfinite().all()


# ------------------------------------------------------------------ the law


@pytest.mark.parametrize("correction", ["autograd", "finite_difference"])
def test_the_badge_is_earned(correction):
    module = network(1, scale=0.3, dtype=torch.float32, hidden=(8,))
    options = dict(network=module, energy_scale=100.0, gradient_scale=10.0, correction=correction)
    report = check_sampler(
        lambda p: MetaSGMCMC(p, 0.1, 100, **options), stiffness=(0.3,), per_chain=True, coordinates=2000, steps=250,
        refinement=4, tolerance=0.03,
    )  # fmt: skip
    assert report.passed, report
    assert report.verdict == MetaSGMCMC([torch.zeros(1, requires_grad=True)], 0.1, 100).badge == "O(h)"


@pytest.mark.parametrize("told", [False, True])
def test_gradient_noise_that_is_told_does_not_heat(told):
    """Untrained, in closed form: SGHMC's variance with the noise B, and without it once B is taken off."""
    noise = 100.0
    variance = noise if told else 0.0
    report = check_sampler(
        lambda p: MetaSGMCMC(p, 0.1, 100, gradient_variance=variance), gradient_noise=noise, coordinates=2000, steps=300
    )
    for r in report.results:
        closed = sghmc_variance(r.curvature, 0.001, 0.1, gradient_noise=0.0 if told else noise)
        assert r.expected_variance == pytest.approx(closed, rel=1e-5)


@pytest.mark.parametrize("block_length", [4_000])
def test_a_long_chain_does_not_drift_and_keeps_no_memory(block_length):
    """Four blocks have the same moments, and a step leaves no tensor behind. (25,000 steps a block, 100,000 in all,
    were run by hand: docs/meta_sgmcmc.md.)"""
    import gc

    p = torch.zeros(64, 2, requires_grad=True)
    k = torch.tensor([100.0, 200.0])
    sampler = MetaSGMCMC(
        [p], 0.02, 100, network=network(2, dtype=torch.float32, hidden=(8,)), energy_scale=100.0, gradient_scale=10.0,
        momentum_decay=0.1, curl_scale=0.5, friction_scale=0.5, correction="finite_difference",
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip

    def closure():
        value = p.detach()
        p.grad = value * k / 100
        return 0.5 * (value * p.grad).sum(1)

    def tensors():
        gc.collect()
        return sum(issubclass(type(x), torch.Tensor) for x in gc.get_objects())

    moments = []
    for block in range(4):
        total = torch.zeros(3, dtype=torch.float64)
        for _ in range(block_length):
            sampler.step(closure)
            z = p.detach() * k.sqrt()
            total += torch.stack([z.mean(), z.square().mean(), sampler.state[p]["momentum"].square().mean()]).double()
        moments.append(total / block_length)
        if block == 0:
            count = tensors()
    assert tensors() <= count + 3  # the other blocks' moments
    spread = torch.stack(moments)
    assert sampler.step_count == 4 * block_length
    assert (spread - spread.mean(0)).abs().max() < 0.05
    assert spread[:, 0].abs().max() < 0.03
    assert (spread[:, 1:] - 1).abs().max() < 0.1


# ------------------------------------------------------------------ the twin


def unrolled(module, lr, steps=5, twin_options=None):
    """A later loss as a function of the learning rate and of the network's weights."""
    model = small_network().double()
    x, y = small_data()
    sampler = MetaSGMCMC(model.parameters(), 0.1, N, network=module, prior_precision=1.0, energy_scale=3.0)
    torch.manual_seed(4)
    with higher.innerloop_ctx(model, sampler, override={"lr": [lr]}) as (fast, twin):
        for _ in range(steps):
            twin.step(nn.functional.cross_entropy(fast(x.double()), y), **(twin_options or {}))
        return nn.functional.cross_entropy(fast(x.double().flip(0)), y)


def test_the_twin_is_differentiable_in_the_learning_rate_and_in_the_weights():
    module, h = network(3), 1e-6
    lr = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    parameters = list(module.parameters())
    by_lr, *by_weights = torch.autograd.grad(unrolled(module, lr), [lr, *parameters])
    difference = (unrolled(module, lr.detach() + h) - unrolled(module, lr.detach() - h)) / (2 * h)
    assert by_lr.item() == pytest.approx(difference.item(), rel=1e-4)
    generator = torch.Generator().manual_seed(1)
    direction = [torch.randn(p.shape, generator=generator, dtype=p.dtype) * (p != 0) for p in parameters]
    ahead, behind = copy.deepcopy(module), copy.deepcopy(module)
    with torch.no_grad():
        for p, q, d in zip(ahead.parameters(), behind.parameters(), direction, strict=True):
            p.add_(d, alpha=h)
            q.sub_(d, alpha=h)
    difference = (unrolled(ahead, lr.detach()) - unrolled(behind, lr.detach())) / (2 * h)
    slope = sum((g * d).sum() for g, d in zip(by_weights, direction, strict=True))
    assert slope.item() == pytest.approx(difference.item(), rel=1e-4)
    detached = torch.autograd.grad(unrolled(module, lr, twin_options={"detach_inputs": True}), parameters)
    assert all(g.isfinite().all() for g in detached)
    assert max((a - b).abs().max() for a, b in zip(detached, by_weights, strict=True)) > 1e-6


@pytest.mark.parametrize("correction", ["autograd", "finite_difference"])
def test_the_twin_makes_the_same_chain(correction):
    model = small_network().double()
    x, y = small_data()
    sampler = MetaSGMCMC(
        [{"params": model[0].parameters(), "prior_precision": 2.0}, {"params": model[2].parameters()}], 0.1, N,
        network=network(), correction=correction, energy_scale=3.0,
    )  # fmt: skip

    def closure():
        sampler.zero_grad()
        loss = nn.functional.cross_entropy(model(x.double()), y)
        loss.backward()
        return loss

    sampler.step(closure)  # so that there is state to take over
    torch.manual_seed(8)
    with higher.innerloop_ctx(model, sampler, copy_initial_weights=False) as (fast, twin):
        for _ in range(5):
            twin.step(nn.functional.cross_entropy(fast(x.double()), y))
        unrolled = torch.cat([p.detach().flatten() for p in fast.parameters()])
    torch.manual_seed(8)
    for _ in range(5):
        sampler.step(closure)
    torch.testing.assert_close(unrolled, flat(model), rtol=1e-9, atol=1e-11)


# ------------------------------------------------------------------ weights


def test_weights_and_card_make_the_sampler(tmp_path):
    path = tmp_path / "meta.safetensors"
    card = make_card(
        sampler="MetaSGMCMC", form="absolute", feature_set="energy", features=list(META_FEATURES),
        scales={"curl_offset": 0.5, "friction_scale": 1.9, "gradient_scale": 70.0},
        defaults={"lr": 0.007, "momentum_decay": 0.01},
    )  # fmt: skip
    module = network(dtype=torch.float32)
    weights.save(path, module, card)
    sampler = MetaSGMCMC([torch.zeros(3, requires_grad=True)], num_data=10, network=path, curl_clip=2.0)
    group = sampler.param_groups[0]
    chosen = ("lr", "momentum_decay", "curl_offset", "curl_scale", "friction_scale", "gradient_scale", "curl_clip")
    assert [group[key] for key in chosen] == [0.007, 0.01, 0.5, 1.0, 1.9, 70.0, 2.0]
    assert sampler.form == "absolute"
    x = torch.randn(4, 3)
    assert torch.equal(sampler.network(x), module(x))
    with pytest.raises(ValueError, match="weights for form 'absolute', asked for 'signed'"):
        MetaSGMCMC([torch.zeros(3, requires_grad=True)], num_data=10, network=path, form="signed")
    with pytest.raises(ValueError, match="lr must be given"):
        MetaSGMCMC([torch.zeros(3, requires_grad=True)], num_data=10)


def test_a_chain_is_not_resumed_with_other_weights_or_another_form():
    def make(**options):
        return MetaSGMCMC([torch.zeros(3, requires_grad=True)], 0.1, 10, **options)

    saved = make(network=network(0)).state_dict()
    with pytest.raises(ValueError, match="another network: sha256"):
        make(network=network(1)).load_state_dict(saved)
    with pytest.raises(ValueError, match="another network: form is 'signed' there"):
        make(network=network(0), form="absolute").load_state_dict(saved)


def test_the_settings_of_the_published_code_are_those_of_the_paper():
    """η = √(.007/N), D = (.01/η)·Q² + 50·|f_D|: lr .007, a .01, s_D = 50·η/.01, and its clip of 1,000 is 1,000·η."""
    n, k = 60_000.0, 50.0
    eta = math.sqrt(0.007 / n)
    phi = [(w.detach(), b.detach()) for w, b in layers_of(network())]
    generator = torch.Generator().manual_seed(0)
    r, g = (torch.randn(9, generator=generator, dtype=torch.float64) for _ in range(2))
    new = meta_sgmcmc_rule(
        torch.zeros_like(r), torch.zeros_like(r), torch.zeros_like(r), r, phi=phi,
        energy=torch.tensor(n * 1.3, dtype=r.dtype),
        lr=0.007, num_data=n, temperature=1e-300, prior_precision=0.0, momentum_decay=0.01, curl_offset=0.0,
        friction_scale=k * eta / 0.01, friction_clip=1000 * eta, gradient_scale=70.0, form="absolute",
    )[1]  # fmt: skip
    module = network()
    rows = torch.stack([torch.full_like(r, 1.3), r, torch.zeros_like(g)], -1)
    f_q, f_d = module(rows).detach().unbind(-1)
    friction = (0.01 / eta * f_q.clamp(-5, 5) ** 2 + k * f_d.abs()).clamp(max=1000)
    torch.testing.assert_close(new, r - eta * friction * r, rtol=1e-10, atol=1e-12)
