"""AdaptedSGHMC: the law of any frozen mass, exactly and as it runs, and the parameters that join on the way."""

import copy
import functools
import math

import numpy as np
import pytest
import torch
from scipy.linalg import solve_discrete_lyapunov

from learned_samplers import AdaptedSGHMC
from learned_samplers.classical.adapted import adapted_rule
from learned_samplers.classical.mass import MASSES
from tests.harness import small_network
from tests.learned_samplers.classical.chains_of_adapted import (
    CURVATURES,
    DTYPES,
    EVERY_WARMUP,
    LENGTH,
    THREE_WARMUPS,
    WARMUPS,
    N,
    adapted,
    gaussians,
)

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
    assert torch.allclose(after, v * 0.75 + 0.25 * g * g)
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


def test_after_adaptation_every_scale_has_its_law():
    """Condition number 1e4, one lr; 4,000 coordinates, 600 steps after the freeze; 3 % beyond the bias."""
    ratio, sampler = gaussians(
        lambda p: AdaptedSGHMC(p, 0.2, N, warmup_steps=200, momentum_init="normal", decay=0.99), steps=1200, skip=600
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
        lambda p: AdaptedSGHMC(p, 0.05, N, warmup_steps=10**6, decay=0.0, momentum_init="normal"), steps=600, skip=300
    )
    assert not sampler.is_sampling
    assert (moving - 1).abs().max() > 0.1, moving


@EVERY_WARMUP
def test_the_mass_follows_adams_second_moment_and_then_stops(warmup):
    """And has the prior's gradient as a floor."""
    p, twin = (torch.ones(3, requires_grad=True) for _ in range(2))
    settings = dict(warmup_steps=5, decay=0.9, prior_precision=4.0, temperature=0.25, eps=1e-5, mass="diagonal")
    sampler = AdaptedSGHMC([p], 1e-12, N, warmup=WARMUPS[warmup], **settings)
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


def test_a_compiled_step_explores_with_a_sampler_and_refuses_another_optimizer():
    def chain(compiled, warmup, **settings):
        torch._dynamo.reset()
        p = torch.nn.Parameter(torch.linspace(0.0, 1.0, 8).view(2, 4))
        sampler = adapted([p], warmup, temperature=0.0, **settings)
        step = torch.compile(sampler.step, backend="eager", fullgraph=True) if compiled else sampler.step
        for number in range(8):
            p.grad = torch.randn(2, 4, generator=torch.Generator().manual_seed(number))
            step()
        return p.detach()

    for warmup, mass in (("none", "diagonal"), ("sghmc", "matrix")):
        torch.testing.assert_close(chain(True, warmup, mass=mass), chain(False, warmup, mass=mass))
    with pytest.raises(Exception, match="step_that_cannot_be_compiled"):
        chain(True, "adam")


def test_higher_has_no_twin_of_cycles_and_warm_ups():
    higher = pytest.importorskip("higher")
    import learned_samplers.differentiable  # noqa: F401

    model = small_network()
    cases = [
        (dict(cycle_length=LENGTH), "cycle_length=None"),
        (dict(warmup="adam"), "another optimizer"),
        (dict(mass="matrix"), "mass='diagonal'"),
    ]
    for settings, said in cases:
        sampler = adapted(model.parameters(), **settings)
        with pytest.raises(ValueError, match=said), higher.innerloop_ctx(model, sampler):
            pass


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
    groups, before = len(sampler.param_groups), first.detach().clone()
    with pytest.raises(ValueError, match=r"must join before the mass is frozen: warmup_steps is 6 and 7 steps"):
        sampler.add_param_group({"params": [late]})
    assert len(sampler.param_groups) == groups
    sampler.step()
    assert not torch.equal(first.detach(), before)


@pytest.mark.parametrize(
    ("warmup", "dtype", "joins_at"),
    [
        *(("none", torch.float32, joins_at) for joins_at in (1, 150, 198)),
        ("none", torch.bfloat16, 198),
        ("whitened", torch.bfloat16, 150),
        ("sgd", torch.float32, 198),
    ],
)
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
@pytest.mark.parametrize("mass", MASSES)
@pytest.mark.parametrize("without", [{4}, {3, 4, 5}])
def test_a_parameter_without_a_gradient_when_the_mass_is_frozen_gets_one_all_the_same(without, mass, dtype, warmup):
    """Steps 0 to 3 explore, 4 and 5 settle; a state that is saved then can be loaded."""

    def make():
        torch.manual_seed(1)
        params = [torch.nn.Parameter(torch.randn(7).to(dtype)), torch.nn.Parameter(torch.randn(4, 5).to(dtype))]
        return params, adapted(params, warmup, mass=mass, prior_precision=2.0, missing_gradient="skip")

    (a, b), sampler = make()
    for step in range(8):
        before = b.detach().clone()
        a.grad, b.grad = 0.05 * torch.randn(7).to(dtype), 0.5 * torch.randn(4, 5).to(dtype)
        b.grad = None if step in without else b.grad
        sampler.step()
        assert torch.equal(before, b) == (step in without)
        if step == 5:
            root = sampler.state[b]["mass"].clone()
            sizes = root[1, 0].diagonal() if mass == "matrix" else root
            assert (sizes < 0.1**0.5 / 0.01**0.5).all()
            assert (sizes > (0 if mass == "matrix" else 0.1**0.5 / 2)).all()
        saved = copy.deepcopy(sampler.state_dict())
        make()[1].load_state_dict(saved)
    assert torch.equal(sampler.state[b]["mass"], root)
    assert all(x.dtype == torch.float32 for x in sampler.state[b].values())
