"""ScaleAdaptedL2E: L2E while it explores, a chain with the right law once its mass is frozen, whatever the network."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from learned_samplers import L2E, PosteriorSamples, ScaleAdaptedL2E
from learned_samplers.base.segments import Segments
from learned_samplers.learned.l2e.rule import l2e_rule
from learned_samplers.learned.native.library import ENVIRONMENT_VARIABLE
from learned_samplers.learned.network import build_network, flatten, layers_of, shapes_of, unflatten
from learned_samplers.learned.scale_adapted.rule import (
    ScaleAdaptedL2ESettings,
    explorer,
    scale_adapted_l2e_rule,
    settled_root,
    unsettled_root,
)
from tests.harness import closure_for, small_network

N = 100
LENGTHS = (40, 3, 25)
SEGMENTS = Segments(LENGTHS)
HYPER = dict(lr=0.02, num_data=300.0, temperature=0.7, prior_precision=4.0, momentum_decay=0.1)


def network(scale=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    module = build_network("lean", (8, 8), 4, zero_last=False, generator=generator)
    with torch.no_grad():
        module[-1].weight.mul_(scale)
    return module


def phi_of(module):
    return [(w.detach().double(), b.detach().double()) for w, b in layers_of(module)]


def chain(steps_done=0, leading=()):
    generator = torch.Generator().manual_seed(1)

    def draw(*rows):
        return torch.randn(*leading, *rows, SEGMENTS.total, generator=generator, dtype=torch.float64)

    averages = 0.01 * draw(4) if steps_done else torch.zeros(*leading, 4, SEGMENTS.total, dtype=torch.float64)
    averages[..., 3, :] = averages[..., 3, :].abs()
    return [0.3 * draw(), 0.01 * draw(), draw(), draw(), averages, torch.zeros_like(draw())]


def test_while_it_explores_it_is_l2e_whose_run_is_as_long_as_the_exploration():
    phi, settings = phi_of(network()), ScaleAdaptedL2ESettings(adaptation_steps=6)
    *state, root = chain()
    exploring = [*state]
    for step in range(4):
        *moved, root = scale_adapted_l2e_rule(
            state[0], *state[1:], root, phi=phi, segments=SEGMENTS, step=step, settings=settings, **HYPER
        )
        expected = l2e_rule(
            *exploring, phi=explorer(phi), segments=SEGMENTS, step=step, settings=settings.exploration, **HYPER
        )
        assert all(torch.equal(a, b) for a, b in zip(moved, expected, strict=True))
        assert not root.any()
        state, exploring = ([x[0], *state[1:3], *x[1:]] for x in (moved, expected))
    assert settings.exploration.total_steps == settings.exploration_steps
    assert settings.exploration.gated


def test_the_network_chooses_once_and_the_mass_settles_until_it_is_frozen():
    phi, settings = phi_of(network()), ScaleAdaptedL2ESettings(adaptation_steps=6, settling_share=0.34)
    assert settings.exploration_steps == 4
    assert settings.exploration.total_steps == settings.exploration_steps
    tensors = chain(steps_done=3)
    run = dict(phi=phi, segments=SEGMENTS, settings=settings)
    theta, r, averages, chosen = scale_adapted_l2e_rule(*tensors, step=3, **run, **HYPER)
    assert not r.any()
    assert chosen.isfinite().all()
    assert torch.equal(chosen, unsettled_root(theta, averages, step=3, **run, **HYPER))
    silent = [*phi[:-1], (phi[-1][0] * 0, phi[-1][1] * 0)]
    plain = unsettled_root(theta, averages, step=3, **{**run, "phi": silent}, **HYPER)
    torch.testing.assert_close(plain.square(), torch.full_like(plain, 0.2 * 0.1))
    assert ((chosen / plain).log().abs() > 0.05).any()
    # It settles: the network is not asked again, the second moment follows the gradients, and the last one counts.
    root = chosen
    for step, gradient in ((4, tensors[1] * 5), (5, tensors[1] * 7)):
        theta, r, averages, root = scale_adapted_l2e_rule(
            theta, gradient, tensors[2], r, averages, root, step=step, **run, **HYPER
        )
        assert torch.equal(root, chosen) == (step == 4)
    # As ScaleAdaptedSGHMC's, times κ·exp(μ), with the prior's gradient as a floor.
    second, prior = averages[3] / (1 - 0.99**6), (HYPER["prior_precision"] * HYPER["temperature"]) ** 0.5 / 300.0
    torch.testing.assert_close(root.square(), chosen.square() / (second.sqrt() + prior + 1e-5))
    after = scale_adapted_l2e_rule(theta, tensors[1] * 9, tensors[2], r, averages, root, step=6, **run, **HYPER)
    assert torch.equal(after[3], root)
    assert torch.equal(after[2], averages)


def test_without_settling_the_mass_is_that_of_the_exploration():
    run = dict(phi=phi_of(network()), segments=SEGMENTS)
    tensors = chain(steps_done=3)
    alone, first = (
        scale_adapted_l2e_rule(*tensors, step=3, settings=settings, **run, **HYPER)
        for settings in (
            ScaleAdaptedL2ESettings(adaptation_steps=4, settling_share=0.0),
            ScaleAdaptedL2ESettings(adaptation_steps=5, settling_share=0.2),
        )
    )
    second, prior = alone[2][3] / (1 - 0.99**4), (HYPER["prior_precision"] * HYPER["temperature"]) ** 0.5 / 300.0
    torch.testing.assert_close(alone[3], first[3] / (second.sqrt() + prior + 1e-5).sqrt())
    assert ScaleAdaptedL2ESettings(adaptation_steps=1, settling_share=0.9).exploration_steps == 1


@pytest.mark.parametrize("own", [False, True])
def test_leading_axes_are_members_of_their_own(own):
    vector = flatten(phi_of(network()))
    phis = torch.stack([vector, vector * 1.1]) if own else torch.stack([vector, vector])
    shapes = shapes_of(phi_of(network()))
    phi = unflatten(phis if own else vector, shapes)
    tensors, settings = chain(3, (2,)), ScaleAdaptedL2ESettings(adaptation_steps=4)
    run = dict(segments=SEGMENTS, settings=settings, **HYPER)
    for step in (2, 3, 4):
        tensors[5] = tensors[5] + 0.1
        both = scale_adapted_l2e_rule(*tensors, phi=phi, step=step, **run)
        for i in range(2):
            alone = scale_adapted_l2e_rule(*(x[i] for x in tensors), phi=unflatten(phis[i], shapes), step=step, **run)
            for ours, theirs in zip(both, alone, strict=True):
                torch.testing.assert_close(ours[i], theirs, rtol=1e-9, atol=1e-12)


def variances(module, *, freeze=True, steps=1500, skip=700, temperature=1.0, adaptation_steps=200, seed=0):
    """Variances over their targets on Gaussians of condition number 1e4, from exact draws on; the sampler, too.

    The gradients there, and so √v̂, grow with √T: κ with it gives all temperatures the same stability.
    """
    torch.manual_seed(seed)
    curvatures = torch.logspace(0, 4, 5)
    params = [(torch.randn(4000) * (temperature / k).sqrt()).requires_grad_() for k in curvatures]
    sampler = ScaleAdaptedL2E(
        params,
        0.02,
        N,
        network=module,
        adaptation_steps=adaptation_steps if freeze else 10**6,
        mass_scale=5.0 * temperature**0.5,
        reference_data=None,
        beta_scale=0.3,
        temperature=temperature,
        eps=1e-3,
        momentum_init="normal",
    )
    total = torch.zeros(5)
    for step in range(steps):
        for p, k in zip(params, curvatures, strict=True):
            p.grad = k * p.detach() / N
        sampler.step()
        if step >= skip:
            total += torch.stack([p.detach().square().mean() for p in params]) * curvatures / temperature
    return total / (steps - skip), sampler


@pytest.mark.parametrize("temperature", [1.0, 0.1])
@pytest.mark.parametrize("seed", [0, 1])
def test_any_network_leaves_the_law_once_the_mass_is_frozen(seed, temperature):
    """A random network; 4,000 coordinates, 800 steps after the freeze. 3 %: the softest tensor mixes in
    some hundred steps."""
    ratio, sampler = variances(network(0.3, seed), temperature=temperature, seed=seed)
    assert sampler.is_sampling
    assert ratio.tolist() == pytest.approx([1.0] * 5, rel=0.03)


def test_a_mass_that_is_never_frozen_has_another_law():
    """The planted fault: the same network goes on exploring."""
    ratio, sampler = variances(network(0.3, 0), freeze=False)
    assert not sampler.is_sampling
    assert (ratio - 1).abs().max() > 0.2, ratio


@pytest.mark.parametrize("compiled", [True, False])
def test_the_optimizer_is_the_rule_with_and_without_compiled_code(compiled, monkeypatch):
    if not compiled:
        monkeypatch.setenv(ENVIRONMENT_VARIABLE, "0")
    torch.manual_seed(0)
    module, start = network(0.3), torch.randn(40)
    p = start.clone().requires_grad_()
    sampler = ScaleAdaptedL2E([p], 0.05, N, network=module, adaptation_steps=6, prior_precision=2.0)
    settings, phi = sampler.settings, [(w.detach(), b.detach()) for w, b in layers_of(module)]
    state = [start, torch.zeros(40), torch.zeros(4, 40), torch.zeros(40)]
    generator = torch.Generator().manual_seed(3)
    for step in range(12):
        gradient, noise = 0.05 * torch.randn(2, 40, generator=generator)
        monkeypatch.setattr(sampler, "noise_like", lambda _, noise=noise: noise.clone())
        p.grad = gradient
        sampler.step()
        theta, *rest = state
        state = list(
            scale_adapted_l2e_rule(
                theta,
                gradient,
                noise,
                *rest,
                phi=phi,
                segments=Segments((40,)),
                lr=0.05,
                num_data=N,
                temperature=1.0,
                prior_precision=2.0,
                momentum_decay=0.1,
                step=step,
                settings=settings,
            )
        )
        torch.testing.assert_close(p.detach(), state[0], rtol=1e-4, atol=1e-5)
        assert sampler.is_sampling == (step >= 6)
    torch.testing.assert_close(sampler.state[p]["root"], state[3], rtol=1e-3, atol=1e-5)


def test_nothing_is_collected_before_the_mass_is_frozen():
    model = small_network()
    sampler = ScaleAdaptedL2E(model.parameters(), 0.01, N, network=None, adaptation_steps=5)
    samples = PosteriorSamples(model, sampler, burn_in=0, thinning=1)
    for _ in range(8):
        sampler.step(closure_for(model, sampler))
    assert len(samples) == 3


@pytest.mark.parametrize("joins_after", [3, 4, 7])
def test_a_parameter_that_joins_after_the_exploration_has_no_mass(joins_after):
    """Three steps of exploration, two of settling."""
    p, late = (torch.ones(3, requires_grad=True) for _ in range(2))
    sampler = ScaleAdaptedL2E([p], 0.01, N, network=None, adaptation_steps=5, settling_share=0.4)
    for _ in range(joins_after):
        p.grad = torch.ones(3)
        sampler.step()
    sampler.add_param_group({"params": [late]})
    p.grad, late.grad = torch.ones(3), torch.ones(3)
    before = p.detach().clone()
    with pytest.raises(ValueError, match=f"has no mass: the exploration has 3 steps, {joins_after} are over"):
        sampler.step()
    assert torch.equal(p.detach(), before)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("without", [{3}, {5}, {3, 4, 5}])
def test_a_parameter_without_a_gradient_when_the_mass_is_chosen_or_frozen_gets_one_all_the_same(
    without, compiled, monkeypatch
):
    """Steps 0 to 3 explore, 4 and 5 settle. Its mass is that of its averages, as for a parameter of its own chain."""
    if not compiled:
        monkeypatch.setenv(ENVIRONMENT_VARIABLE, "0")
    torch.manual_seed(0)
    other, p = torch.randn(7).requires_grad_(), torch.randn(2, 20).requires_grad_()
    means = [torch.zeros(7), torch.full((2, 20), 0.5)]
    sampler = ScaleAdaptedL2E(
        [{"params": [other, p], "prior_mean": means}],
        0.02,
        N,
        network=network(0.3),
        temperature=0.5,
        prior_precision=2.0,
        adaptation_steps=6,
        settling_share=0.34,
        missing_gradient="skip",
    )
    assert sampler.settings.exploration_steps == 4
    run = dict(settings=sampler.settings, num_data=N, temperature=0.5, prior_precision=2.0)
    for step in range(8):
        before = p.detach().clone()
        other.grad = 0.05 * torch.randn(7)
        p.grad = None if step in without else 0.05 * torch.randn(2, 20)
        sampler.step()
        state = {name: x.reshape(*x.shape[: x.dim() - 2], 40) for name, x in sampler.state[p].items()}
        assert torch.equal(before, p) == (step in without)
        if step == 3:
            phi, segments = [(w.detach(), b.detach()) for w, b in layers_of(sampler.network)], Segments((40,))
            where, at = (p.detach() - 0.5).reshape(-1), dict(lr=0.02, momentum_decay=0.1, step=3)
            expected = unsettled_root(where, state["averages"], phi=phi, segments=segments, **at, **run)
            torch.testing.assert_close(state["root"], expected, rtol=1e-4, atol=1e-6)
            assert not state["momentum"].any()
        if step == 5:
            expected = settled_root(expected, state["averages"], step=5, **run)
            torch.testing.assert_close(state["root"], expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(state["root"], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("done", [2, 4, 5, 8])
def test_a_chain_resumes_bit_for_bit_in_each_of_its_phases(done):
    """Four steps of exploration, two of settling."""

    def chain():
        model = small_network()
        generator = torch.Generator().manual_seed(2)
        settings = dict(network=network(0.3), adaptation_steps=6, settling_share=0.34, generator=generator)
        return model, ScaleAdaptedL2E(model.parameters(), 0.02, N, **settings)

    model, sampler = chain()
    for step in range(10):
        if step == done:
            kept = copy.deepcopy([model.state_dict(), sampler.state_dict()])
        sampler.step(closure_for(model, sampler))
    other, resumed = chain()
    other.load_state_dict(kept[0])
    resumed.load_state_dict(kept[1])
    for _ in range(done, 10):
        resumed.step(closure_for(other, resumed))
    assert resumed.is_sampling
    for ours, theirs in zip(other.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_the_length_of_the_exploration_must_be_given():
    p = torch.ones(3, requires_grad=True)
    with pytest.raises(ValueError, match="adaptation_steps must be given"):
        ScaleAdaptedL2E([p], 0.01, N)
    with pytest.raises(ValueError, match="adaptation_steps must be at least 1, got 0"):
        ScaleAdaptedL2E([p], 0.01, N, adaptation_steps=0)
    with pytest.raises(ValueError, match=r"feature_set must be one of .* got 'paper'"):
        ScaleAdaptedL2E([p], 0.01, N, adaptation_steps=3, feature_set="paper")
    with pytest.raises(ValueError, match=r"network must take \d+ features .* and give 4 outputs, got \d+ and 2"):
        ScaleAdaptedL2E([p], 0.01, N, adaptation_steps=3, network=build_network("lean", (8,), 2))


def test_untrained_it_explores_as_sghmc():
    """The last layer of a fresh network is zero: α = β = μ = 0."""
    torch.manual_seed(0)
    p = torch.randn(5, requires_grad=True)
    q = p.detach().clone().requires_grad_()
    generators = [torch.Generator().manual_seed(1) for _ in range(2)]
    ours = ScaleAdaptedL2E([p], 0.01, N, network=None, adaptation_steps=3, generator=generators[0])
    theirs = L2E([q], 0.01, N, network=None, generator=generators[1])
    for _ in range(3):
        p.grad, q.grad = torch.ones(5), torch.ones(5)
        ours.step(), theirs.step()
    assert torch.equal(p.detach(), q.detach())
    root = ours.state[p]["root"]
    assert root.tolist() == pytest.approx([math.sqrt(0.2 * 0.1 / (1 + 1e-5))] * 5, rel=1e-5)


def test_with_normalised_outputs_it_explores_by_a_direction_of_fixed_size():
    """And has three outputs: the mass is the last of them."""
    module = build_network("lean", (8, 8), 3, zero_last=False, generator=torch.Generator().manual_seed(0))
    settings = ScaleAdaptedL2ESettings(adaptation_steps=6, normalise_output=True)
    phi, run = phi_of(module), dict(segments=SEGMENTS, settings=settings)
    *state, root = chain()
    exploring = [*state]
    for step in range(settings.exploration_steps):
        *moved, root = scale_adapted_l2e_rule(*state, root, phi=phi, step=step, **run, **HYPER)
        expected = l2e_rule(
            *exploring, phi=explorer(phi), segments=SEGMENTS, step=step, settings=settings.exploration, **HYPER
        )
        state, exploring = [moved[0], *state[1:3], *moved[1:]], [expected[0], *exploring[1:3], *expected[1:]]
        torch.testing.assert_close(state[0], exploring[0])
    mu = phi[-1][1][-1]
    flat = [(w * 0, b * 0) for w, b in phi[:-1]] + [(phi[-1][0] * 0, phi[-1][1])]
    known = dict(phi=flat, step=settings.exploration_steps - 1, **run, **HYPER)
    chosen = unsettled_root(state[0], state[4], **known)
    torch.testing.assert_close(chosen, torch.full_like(chosen, float((mu.exp() * 0.2 * 0.1).sqrt())))
    with pytest.raises(ValueError, match="3 outputs"):
        settings.check_network(phi_of(network()))


def test_a_state_from_before_outputs_could_be_normalised_still_goes_on():
    def sampler(**more):
        p = torch.zeros(3, requires_grad=True)
        return ScaleAdaptedL2E([p], num_data=100, adaptation_steps=6, network=None, lr=0.01, **more)

    earlier = sampler().state_dict()
    del earlier["sampler"]["network"]["settings"]["normalise_output"]
    sampler().load_state_dict(earlier)
    earlier["sampler"]["network"]["settings"].pop("eps")
    with pytest.raises(ValueError, match="eps is None there"):
        sampler().load_state_dict(earlier)


def test_a_half_precision_parameter_may_lack_a_gradient_in_the_step_that_chooses_the_mass():
    a, b = (torch.nn.Parameter(torch.randn(4, 3).bfloat16()) for _ in range(2))
    sampler = ScaleAdaptedL2E([a, b], num_data=100, adaptation_steps=4, missing_gradient="skip")
    last = sampler.settings.exploration_steps - 1
    for step in range(6):
        a.grad, b.grad = torch.randn(4, 3).bfloat16(), None if step == last else torch.randn(4, 3).bfloat16()
        sampler.step()
    assert sampler.state[b]["root"].gt(0).all()


def test_a_compiled_step_refuses_one_that_joins_after_the_exploration():
    a, b = (torch.nn.Parameter(torch.ones(8)) for _ in range(2))
    network = build_network("lean", (4,), 4)
    sampler = ScaleAdaptedL2E([a, b], 0.01, 100, network=network, adaptation_steps=4, missing_gradient="skip")
    torch._dynamo.reset()
    step = torch.compile(sampler.step, backend="eager")
    for _ in range(6):
        a.grad = torch.ones(8)
        step()
    b.grad = torch.ones(8)
    with pytest.raises(ValueError, match="has no mass"):
        step()
    assert torch.equal(b.detach(), torch.ones(8))


def test_the_default_weights_keep_their_law_up_to_the_rate_of_their_card():
    """The command-line tools name the same weights; beyond the rate nothing is promised."""

    def sampler(**own):
        return ScaleAdaptedL2E([torch.nn.Parameter(torch.zeros(2, 3))], num_data=100, adaptation_steps=6, **own)

    default = sampler()
    assert default.card["name"] == "scale-adapted-l2e-gated"
    assert default.param_groups[0]["lr"] == 0.002
    assert default.badge == sampler(lr=0.003).badge == "O(h)"
    assert sampler(lr=0.005).badge == "heuristic"
    assert sampler(network="scale-adapted-l2e-orthogonal-whitened", lr=0.005).badge == "O(h)"
