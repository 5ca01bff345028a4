"""AdaptedSGHMC: the law of a frozen mass, what each warm-up does, phases and cycles, and what it takes from Adam."""

from __future__ import annotations

import copy
import functools
import math

import numpy as np
import pytest
import torch
from scipy.linalg import solve_discrete_lyapunov

from learned_samplers import L2E, SGHMC, SGLD, AdaptedSGHMC, PosteriorSamples, WhitenedSGHMC
from learned_samplers.classical.adapted import adapted_rule
from tests.harness import closure_for, flat, same, small_network

N = 100
#: Condition number 1e4.
CURVATURES = torch.logspace(0, 4, 5, dtype=torch.float64)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
#: Four steps explore, two settle; cycles of nine.
PHASES, LENGTH = dict(warmup_steps=6, settling_share=0.34), 9
WARMUPS = {
    "none": None,
    "sghmc": functools.partial(SGHMC, lr=0.02),
    "whitened": WhitenedSGHMC,
    "l2e": L2E,
    "l2e, its own rate": functools.partial(L2E, network="l2e", lr=0.003),
    "adam": lambda groups: torch.optim.Adam(groups, lr=0.003, weight_decay=0.01),
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.9),
}
OF_TORCH = ("adam", "sgd")
EVERY_WARMUP = pytest.mark.parametrize("warmup", WARMUPS)
THREE_WARMUPS = pytest.mark.parametrize("warmup", ["none", "whitened", "adam"])


def adapted(params, warmup="none", **own):
    return AdaptedSGHMC(params, 0.02, N, warmup=WARMUPS[warmup], **{**PHASES, "eps": 0.01, "mass": "diagonal", **own})


def drawn(shape, seed, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


# ---------------------------------------------------------------- the law of the frozen rule, exactly


def stationary(rule, curvature, **settings):
    """Covariances of (θ, r) for each curvature, from the rule's own A and B: Σ = AΣAᵀ + BBᵀ."""

    def step(theta, r, xi):
        ones = torch.ones_like(curvature)
        return torch.stack(rule(theta * ones, curvature * theta / N, xi * ones, r * ones, **settings))

    a = torch.stack([step(1.0, 0.0, 0.0), step(0.0, 1.0, 0.0)], dim=1)
    b = step(0.0, 0.0, 1.0)
    return np.stack([solve_discrete_lyapunov(a[:, :, i].numpy(), np.outer(b[:, i], b[:, i])) for i in range(len(b[0]))])


def frozen(root, prior=0.0, **settings):
    """The rule of a chain whose mass is frozen at √G = ``root``."""
    rule = functools.partial(adapted_rule, num_data=N, prior_precision=prior, **settings)
    return lambda x, g, xi, r: rule(x, g, xi, r, root)[:2]


@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_any_frozen_mass_and_friction_leaves_the_law(temperature):
    """Masses that are off by up to a factor of ten, and a friction for each coordinate; to 1e-9 (Lyapunov)."""
    generator = torch.Generator().manual_seed(0)
    off = 10 ** (2 * torch.rand(5, generator=generator, dtype=torch.float64) - 1)
    root = (off / CURVATURES).sqrt()
    friction = 0.02 + 0.9 * torch.rand(5, generator=generator, dtype=torch.float64)
    lr, hyper = 0.2 * N, dict(temperature=temperature, momentum_decay=friction)
    covariance = stationary(frozen(root, lr=lr, **hyper), CURVATURES)
    with_prior = stationary(frozen(root, prior=7.0, lr=lr, **hyper), CURVATURES)[:, 0, 0]
    assert np.allclose(with_prior * (CURVATURES + 7.0).numpy(), temperature, rtol=1e-9)
    assert np.allclose(covariance[:, 0, 0] * CURVATURES.numpy(), temperature, rtol=1e-9)


def test_adaptation_and_sampling_are_one_rule():
    """A step with the mass of the moment is one with that mass frozen, bit for bit."""
    torch.manual_seed(0)
    x, g, noise, r = torch.randn(4, 7)
    v = torch.rand(7)
    settings = dict(lr=0.1, num_data=N, temperature=1.0, momentum_decay=0.2, prior_precision=3.0)
    *state, after = adapted_rule(x, g, noise, r, v, weight=0.25, floor=0.1, **settings)
    assert torch.equal(after, v * 0.75 + 0.25 * g * g) or torch.allclose(after, v * 0.75 + 0.25 * g * g)
    root = (0.2 / (after.sqrt() + 0.1)) ** 0.5
    assert all(torch.equal(a, b) for a, b in zip(state, adapted_rule(x, g, noise, r, root, **settings), strict=False))
    assert torch.equal(adapted_rule(x, g, noise, r, v, weight=0.25, floor=0.1, freezes=True, **settings)[2], root)


def _noise_without_the_mass(x, g, noise, r, root, **settings):
    """The noise is scaled as if it acted on θ."""
    return adapted_rule(x, g, noise * root, r, root, **settings)[:2]


def _force_without_the_mass(x, g, noise, r, root, **settings):
    return adapted_rule(x, g / root, noise, r, root, **settings)[:2]


@pytest.mark.parametrize("fault", [_noise_without_the_mass, _force_without_the_mass])
def test_planted_faults_are_found(fault):
    root, hyper = 1 / CURVATURES.sqrt(), dict(lr=0.02, temperature=1.0, momentum_decay=0.1)
    covariance = stationary(
        lambda *tensors: fault(*tensors, root, num_data=N, prior_precision=0.0, **hyper), CURVATURES
    )
    assert np.abs(covariance[:, 0, 0] * CURVATURES.numpy() - 1).max() > 0.1


# ---------------------------------------------------------------- the running optimizer


def gaussians(make, *, steps, skip, coordinates=4000, seed=0):
    """Variances over the curvatures' target, one tensor a curvature, from exact draws on; the sampler, too."""
    torch.manual_seed(seed)
    params = [(torch.randn(coordinates) / k.sqrt().float()).requires_grad_() for k in CURVATURES]
    sampler = make(params)
    total = torch.zeros(len(params))
    for step in range(steps):
        for p, k in zip(params, CURVATURES, strict=True):
            p.grad = k.float() * p.detach() / N
        sampler.step()
        if step >= skip:
            total += torch.stack([p.detach().square().mean() for p in params]) * CURVATURES.float()
    return total / (steps - skip), sampler


def test_after_adaptation_every_scale_has_its_law():
    """Condition number 1e4, one lr; 4,000 coordinates, 600 steps after the freeze; 3 % beyond the bias."""
    ratio, sampler = gaussians(
        lambda p: AdaptedSGHMC(p, 0.2, N, warmup_steps=200, momentum_init="normal", decay=0.99),
        steps=1200,
        skip=600,
    )
    assert sampler.is_sampling
    for p, k, r in zip(sampler.param_groups[0]["params"], CURVATURES, ratio, strict=True):
        stiffness = 0.2 / N * sampler.state[p]["mass"].square() * float(k)
        assert stiffness.max() < 1.9 * 2
        assert r.item() == pytest.approx(1.0, rel=0.03)


@pytest.mark.parametrize("warmup", ["whitened", "l2e", "adam"])
def test_whatever_explores_leaves_the_law_of_the_frozen_mass(warmup):
    """It ends far from the posterior, and settles; 4,000 coordinates, 800 steps after 400 more."""
    make = functools.partial(torch.optim.Adam if warmup == "adam" else WARMUPS[warmup], lr=1e-3)
    ratio, sampler = gaussians(
        lambda p: AdaptedSGHMC(p, 0.05, N, warmup=make, warmup_steps=200, settling_share=0.5, decay=0.99),
        steps=1400,
        skip=600,
    )
    assert sampler.is_sampling
    assert ratio.tolist() == pytest.approx([1.0] * 5, rel=0.04)


def test_a_mass_that_never_stands_still_is_biased():
    """The planted fault behind the freeze: a mass that follows the present gradient has no law without a correction."""
    moving, sampler = gaussians(
        lambda p: AdaptedSGHMC(p, 0.05, N, warmup_steps=10**6, decay=0.0, momentum_init="normal"),
        steps=1200,
        skip=600,
    )
    assert not sampler.is_sampling
    assert (moving - 1).abs().max() > 0.1, moving


@EVERY_WARMUP
def test_the_mass_follows_adams_second_moment_and_then_stops(warmup):
    """And has the prior's gradient as a floor."""
    p, twin = (torch.ones(3, requires_grad=True) for _ in range(2))
    own = dict(warmup_steps=5, decay=0.9, prior_precision=4.0, temperature=0.25, eps=1e-5, mass="diagonal")
    sampler = AdaptedSGHMC([p], 1e-12, N, warmup=WARMUPS[warmup], **own)
    adam = torch.optim.Adam([twin], 1e-12, betas=(0.9, 0.9))
    generator = torch.Generator().manual_seed(0)
    for step in range(8):
        p.grad = torch.randn(3, generator=generator)
        twin.grad = p.grad.clone()
        sampler.step()
        if step < 5:
            adam.step()
        assert sampler.is_sampling == (step >= 5)
    moment = adam.state[twin]["exp_avg_sq"] / (1 - 0.9**5)
    expected = 0.1 / (moment.sqrt() + math.sqrt(4.0 * 0.25) / N + 1e-5)
    torch.testing.assert_close(sampler.state[p]["mass"].square(), expected)


def test_cold_it_moves_as_adam_with_that_mass():
    """θ ← θ − lr·(m + m′)/(2(√v̂ + eps)), m′ = β₁·m with m Adam's first moment over β₁: half a move before it decays."""
    torch.manual_seed(0)
    p = torch.randn(5, dtype=torch.float64).requires_grad_()
    adam = torch.optim.Adam([p], 0.01, betas=(0.8, 0.99))
    p.grad = torch.randn(5, dtype=torch.float64)
    adam.step()
    v = adam.state[p]["exp_avg_sq"] / (1 - 0.99)
    sampler = AdaptedSGHMC.from_optimizer(adam, N, temperature=0.0, eps=1e-3)
    theta, m = p.detach().clone(), torch.zeros(5, dtype=torch.float64)
    for _ in range(10):
        p.grad = torch.randn(5, dtype=torch.float64)
        m = m + 0.2 * p.grad
        theta = theta - 0.01 * (m + 0.8 * m) / 2 / (v.sqrt() + 1e-3)
        m = 0.8 * m
        sampler.step()
        assert torch.allclose(p.detach(), theta, rtol=1e-12, atol=1e-12)


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


# ---------------------------------------------------------------- the optimizer that explores


@pytest.mark.parametrize("warmup", [name for name in WARMUPS if name != "none"])
@DTYPES
def test_while_it_explores_it_is_that_optimizer(warmup, dtype):
    """Bit for bit, at its own rate; torch's optimizers at half precision as on float32 weights."""
    half = dtype == torch.bfloat16
    ours, theirs = small_network().to(dtype), small_network().to(dtype)
    theirs = theirs.float() if warmup in OF_TORCH else theirs
    generators = [torch.Generator().manual_seed(3) for _ in range(2)]
    common = dict(temperature=0.4, prior_precision=2.0, missing_gradient="skip")

    def groups(model, **first):
        return [{"params": model[0].named_parameters(), **first}, {"params": model[2].named_parameters()}]

    given = dict(warmup=WARMUPS[warmup], warmup_steps=8, settling_share=0.25, mass="diagonal", **common)
    given["generator"] = generators[0]
    sampler = AdaptedSGHMC(groups(ours, lr=0.03), 0.02, N, **given)
    if warmup in OF_TORCH:
        plain = WARMUPS[warmup](groups(theirs))
    else:
        plain = WARMUPS[warmup](groups(theirs), num_data=N, generator=generators[1], **common)
    for step in range(6):
        for i, (p, q) in enumerate(zip(ours.parameters(), theirs.parameters(), strict=True)):
            p.grad = None if (step, i) == (2, 3) else drawn(p.shape, 10 * step + i, dtype)
            q.grad = None if p.grad is None else p.grad.to(q.dtype)
        given = [p.grad for p in ours.parameters()]
        sampler.step()
        plain.step()
        assert all(p.grad is g for p, g in zip(ours.parameters(), given, strict=True))
    assert sampler.explorer is not None
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(p, q.to(dtype))
        p.grad = torch.zeros_like(p)
    sampler.step()
    assert sampler.explorer is None
    kept = {"momentum", "mass"} | ({"master"} if half else set())
    assert all(set(sampler.state[p]) == kept for p in ours.parameters())


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


def test_a_compiled_step_explores_with_a_sampler_and_refuses_another_optimizer():
    def chain(warmup, compiled):
        torch._dynamo.reset()
        p = torch.nn.Parameter(torch.linspace(0.0, 1.0, 8).view(2, 4))
        sampler = adapted([p], warmup, temperature=0.0)
        step = torch.compile(sampler.step, backend="eager", fullgraph=True) if compiled else sampler.step
        for number in range(8):
            p.grad = torch.randn(2, 4, generator=torch.Generator().manual_seed(number))
            step()
        return p.detach()

    for warmup in ("none", "sghmc"):
        torch.testing.assert_close(chain(warmup, compiled=True), chain(warmup, compiled=False))
    with pytest.raises(Exception, match="a warm-up by Adam cannot be compiled"):
        chain("adam", compiled=True)


# ---------------------------------------------------------------- parameters that join, and those without gradients


@THREE_WARMUPS
def test_a_parameter_joins_before_the_freeze_and_not_after_it(warmup):
    first, early, late = (torch.nn.Parameter(torch.ones(2, 3)) for _ in range(3))
    sampler = adapted([first], warmup)
    for step in range(7):
        if step == 2:
            sampler.add_param_group({"params": [early]})
        first.grad, early.grad = torch.ones(2, 3), torch.ones(2, 3)
        sampler.step()
    assert not torch.equal(early.detach(), torch.ones(2, 3))
    sampler.add_param_group({"params": [late]})
    late.grad, before = torch.ones(2, 3), first.detach().clone()
    with pytest.raises(ValueError, match=r"number 0 of shape \(2, 3\) has no mass: warmup_steps is 6 and 7"):
        sampler.step()
    assert torch.equal(first.detach(), before)


@pytest.mark.parametrize("warmup", ["none", "whitened", "sgd"])
@DTYPES
@pytest.mark.parametrize("joins_at", [1, 150, 198])
def test_a_parameter_that_joins_while_others_adapt_gets_a_mass_of_its_own_gradients(joins_at, dtype, warmup):
    """Counted with the group's steps a mean of zeros and two squares would be a hundredth of them, and diverge."""
    a, b = (torch.nn.Parameter(torch.zeros(30, 30, dtype=dtype)) for _ in range(2))
    make = {"sgd": lambda groups: torch.optim.SGD(groups, 1e-9), "none": None}.get(warmup, WARMUPS[warmup])
    sampler = AdaptedSGHMC(
        [a, b], lr=1e-9, num_data=1000, warmup=make, warmup_steps=200, settling_share=0.0, mass="diagonal"
    )
    b.requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    for step in range(201):
        if step == joins_at:
            b.requires_grad_(True)
        for p in (a, b):
            p.grad = torch.randn(30, 30, generator=generator).to(dtype) if p.requires_grad else None
        sampler.step()
    masses = [sampler.state[p]["mass"].square().mean().item() for p in (a, b)]
    assert masses[1] == pytest.approx(masses[0], rel=0.05)


@pytest.mark.parametrize("joins_at", [50, 65])
def test_a_compiled_step_treats_one_that_joins_as_an_ordinary_one_does(joins_at):
    def chain(compiled):
        a, b = (torch.nn.Parameter(torch.ones(8)) for _ in range(2))
        settings = {"lr": 0.01, "num_data": 100, "warmup_steps": 60, "temperature": 0.0}
        sampler = AdaptedSGHMC([a, b], **settings, missing_gradient="skip")
        step = torch.compile(sampler.step, backend="eager") if compiled else sampler.step
        for count in range(joins_at + 2):
            a.grad, b.grad = a.detach().clone(), b.detach().clone() if count >= joins_at else None
            step()
        return sampler.state[b]["mass"], b.detach()

    torch._dynamo.reset()
    if joins_at > 60:
        for compiled in (False, True):
            with pytest.raises(ValueError, match="has no mass"):
                chain(compiled)
    else:
        for ours, theirs in zip(chain(True), chain(False), strict=True):
            torch.testing.assert_close(ours, theirs)


@THREE_WARMUPS
@DTYPES
@pytest.mark.parametrize("without", [{3}, {4}, {5}, {3, 4, 5}])
def test_a_parameter_without_a_gradient_when_the_mass_is_frozen_gets_one_all_the_same(without, dtype, warmup):
    """Steps 0 to 3 explore, 4 and 5 settle; a state that is saved then can be loaded."""

    def make():
        torch.manual_seed(1)
        params = [torch.nn.Parameter(torch.randn(7).to(dtype)), torch.nn.Parameter(torch.randn(4, 5).to(dtype))]
        return params, adapted(params, warmup, prior_precision=2.0, missing_gradient="skip")

    (a, b), sampler = make()
    for step in range(8):
        before = b.detach().clone()
        a.grad, b.grad = 0.05 * torch.randn(7).to(dtype), 0.5 * torch.randn(4, 5).to(dtype)
        b.grad = None if step in without else b.grad
        sampler.step()
        assert torch.equal(before, b) == (step in without)
        if step == 5:
            root = sampler.state[b]["mass"].clone()
            assert (root < 0.1**0.5 / 0.01**0.5).all()
            assert (root > 0.1**0.5 / 2).all()
        saved = copy.deepcopy(sampler.state_dict())
        make()[1].load_state_dict(saved)
    assert torch.equal(sampler.state[b]["mass"], root)
    assert all(x.dtype == torch.float32 for x in sampler.state[b].values())


# ---------------------------------------------------------------- phases, cycles, and resuming


@EVERY_WARMUP
@pytest.mark.parametrize("momentum_init", ["zero", "normal"])
def test_a_cycle_is_a_new_sampler_on_the_weights_of_the_last_one(momentum_init, warmup):
    models = [small_network(), small_network()]
    generators = [torch.Generator().manual_seed(5) for _ in models]
    own = dict(momentum_init=momentum_init, temperature=0.3)
    ours = adapted(models[0].parameters(), warmup, generator=generators[0], cycle_length=LENGTH, **own)
    for step in range(3 * LENGTH):
        if step % LENGTH == 0:
            theirs = adapted(models[1].parameters(), warmup, generator=generators[1], **own)
        ours.step(closure_for(models[0], ours))
        theirs.step(closure_for(models[1], theirs))
        assert ours.is_sampling == theirs.is_sampling == (step % LENGTH >= 6)
        assert ours.cycle == step // LENGTH
        assert ours.step_count == step + 1
        for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
            assert torch.equal(a, b)
    other = small_network()  # the planted fault: it goes on with its mass
    single = adapted(other.parameters(), warmup, generator=torch.Generator().manual_seed(5), **own)
    for _ in range(3 * LENGTH):
        single.step(closure_for(other, single))
    assert any(not torch.equal(a, b) for a, b in zip(models[0].parameters(), other.parameters(), strict=True))


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


@EVERY_WARMUP
@DTYPES
@pytest.mark.parametrize("mass", ["diagonal", "matrix"])
@pytest.mark.parametrize("own_generator", [True, False])
@pytest.mark.parametrize("done", [2, 4, 5, 8, 11])
def test_a_chain_and_a_copy_of_it_go_on_bit_for_bit_in_each_of_its_phases(done, own_generator, mass, warmup, dtype):
    def begin():
        model = small_network().to(dtype)
        generator = torch.Generator().manual_seed(2) if own_generator else None
        own = dict(mass=mass, cycle_length=LENGTH, generator=generator)
        return model, adapted(model.named_parameters(), warmup, **own)

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
    other, resumed = begin()
    torch.manual_seed(8)
    other.load_state_dict(weights)
    resumed.load_state_dict(state)
    run(other, resumed, done)
    torch.set_rng_state(noise)
    run(*twin, done)
    assert resumed.cycle == 2
    assert torch.equal(flat(other), flat(model))
    assert torch.equal(flat(twin[0]), flat(model))


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
    def chain(warmup):
        model = small_network()
        sampler = adapted(model.parameters(), warmup)
        for _ in range(2):
            sampler.step(closure_for(model, sampler))
        return sampler

    sampler, saved = chain(mine), chain(theirs).state_dict()
    before, noise = copy.deepcopy(sampler.state_dict()), torch.get_rng_state()
    with pytest.raises(ValueError, match=said):
        sampler.load_state_dict(saved)
    assert torch.equal(torch.get_rng_state(), noise)
    assert same(sampler.state_dict(), before)


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
    assert all(torch.equal(places[LENGTH], each) for each in places[LENGTH : 2 * LENGTH + 1])
    assert not torch.equal(places[LENGTH], places[-1])  # with the next warm-up it moves again
    with pytest.raises(ValueError, match="has no mass: warmup_steps is 6 and 7 steps are over"):
        chain(LENGTH + 7)


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


def test_higher_has_no_twin_of_cycles_and_warm_ups():
    higher = pytest.importorskip("higher")
    import learned_samplers.differentiable  # noqa: F401

    model = small_network()
    for more, said in ((dict(cycle_length=LENGTH), "cycle_length=None"), (dict(warmup="adam"), "another optimizer")):
        sampler = adapted(model.parameters(), **more)
        with pytest.raises(ValueError, match=said), higher.innerloop_ctx(model, sampler):
            pass


# ---------------------------------------------------------------- the warm start


def trained(cls=torch.optim.Adam, **settings):
    model = small_network()
    first, second = list(model[0].named_parameters()), list(model[2].named_parameters())
    adam = cls([{"params": first, "lr": 0.02, "betas": (0.8, 0.99)}, {"params": second}], 0.01, **settings)
    for _ in range(20):
        closure_for(model, adam)()
        adam.step()
    return model, adam


@pytest.mark.parametrize("amsgrad", [False, True])
def test_a_warm_start_keeps_groups_names_and_the_mass(amsgrad):
    model, adam = trained(weight_decay=0.02, amsgrad=amsgrad)
    saved = flat(model)
    sampler = AdaptedSGHMC.from_optimizer(adam, N, temperature=0.5)
    named = ("param_names", "lr", "momentum_decay", "prior_precision")
    (names, lrs, decays, priors) = ([g[name] for g in sampler.param_groups] for name in named)
    assert (names, lrs, priors) == ([["weight", "bias"]] * 2, [0.02, 0.01], [2.0, 2.0])
    assert decays == pytest.approx([0.2, 0.1])
    for group, decay, a in zip(adam.param_groups, (0.99, 0.999), (0.2, 0.1), strict=True):
        for p in group["params"]:
            moment = adam.state[p]["max_exp_avg_sq" if amsgrad else "exp_avg_sq"] / (1 - decay**20)
            expected = a / (moment.sqrt() + math.sqrt(2.0 * 0.5) / N + 1e-5)
            torch.testing.assert_close(sampler.state[p]["mass"].square(), expected)
    assert torch.equal(flat(model), saved)
    assert not sampler.is_sampling
    sampler.step(closure_for(model, sampler))
    assert sampler.is_sampling
    twin = AdaptedSGHMC.from_optimizer(adam, N, temperature=0.5)
    twin.load_state_dict(sampler.state_dict())
    assert twin.step_count == 1
    _, adam = trained(torch.optim.AdamW, weight_decay=0.01)
    given = dict(prior_precision=3.0, lr=0.5, momentum_decay=0.3)
    sampler = AdaptedSGHMC.from_optimizer(adam, N, **given)
    assert all(g[name] == value for g in sampler.param_groups for name, value in given.items())


def test_a_warm_start_leaves_the_law():
    """Condition number 1e4 from Adam's state after 500 steps with gradients at the target; 3 %."""

    def make(params):
        adam = torch.optim.Adam(params, 1e-12)
        for _ in range(500):
            for p, k in zip(params, CURVATURES, strict=True):
                p.grad = k.sqrt().float() * torch.randn_like(p) / N
            adam.step()
        return AdaptedSGHMC.from_optimizer(adam, N, lr=0.2, momentum_init="normal")

    ratio, _ = gaussians(make, steps=600, skip=0)
    assert torch.allclose(ratio, torch.ones(5), atol=0.03), ratio


@pytest.mark.parametrize(
    "schedule",
    [
        lambda adam: torch.optim.lr_scheduler.CosineAnnealingLR(adam, 30, eta_min=1e-7),
        lambda adam: torch.optim.lr_scheduler.OneCycleLR(adam, max_lr=0.01, total_steps=31),
    ],
)
def test_a_rate_that_a_schedule_has_brought_down_is_not_taken_over(schedule):
    """A chain at Adam's last rate would stand still, and its samples be copies of each other."""
    model = small_network()
    adam = torch.optim.Adam(model.parameters(), 0.01)
    annealed = schedule(adam)
    for _ in range(30):
        closure_for(model, adam)()
        adam.step()
        annealed.step()
    with pytest.raises(ValueError, match=r"lr must be given"):
        AdaptedSGHMC.from_optimizer(adam, N)
    assert AdaptedSGHMC.from_optimizer(adam, N, lr=0.005).param_groups[0]["lr"] == 0.005


# ---------------------------------------------------------------- a run that is known by its budget


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
    assert (group["mass"], group["lr"]) == ("matrix", 0.003)
    number = min(5, settings["total_steps"] - phases[0])
    samples = PosteriorSamples(model, sampler, thinning=sampler.thinning(number))
    assert copy.deepcopy(sampler).thinning(number) == sampler.thinning(number) == thinning
    for _ in range(settings["total_steps"]):
        sampler.step(closure_for(model, sampler))
    assert len(samples) == number
    with pytest.raises(ValueError, match="num_samples"):
        sampler.thinning(30)
