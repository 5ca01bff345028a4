"""ScaleAdaptedL2E, the optimizer: its rule with and without compiled code, what joins or lacks a gradient, resuming."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from learned_samplers import L2E, PosteriorSamples, ScaleAdaptedL2E
from learned_samplers.base.segments import Segments
from learned_samplers.learned.l2e.rule import L2ESettings, l2e_rule
from learned_samplers.learned.native.library import ENVIRONMENT_VARIABLE
from learned_samplers.learned.network import build_network, layers_of
from learned_samplers.learned.scale_adapted.rule import (
    ScaleAdaptedL2ESettings,
    explorer,
    scale_adapted_l2e_rule,
    settled_root,
    unsettled_root,
)
from tests.harness import closure_for, small_network
from tests.learned_samplers.learned.scale_adapted.cases import HYPER, SEGMENTS, N, chain, network, phi_of


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


@pytest.mark.parametrize("joins_after", [0, 150, 280, 298])
def test_a_parameter_that_joins_late_has_the_mass_of_its_gradients(joins_after):
    """Gradients of the same size: the same mass to 5 %. From a second moment of zero it is up to 1.9 times."""
    early, late = (torch.zeros(30, 30, requires_grad=True) for _ in range(2))
    late.requires_grad_(joins_after == 0)
    sampler = ScaleAdaptedL2E([early, late], 1e-6, N, network=None, adaptation_steps=300, settling_share=0)
    generator = torch.Generator().manual_seed(0)
    for step in range(300):
        if step == joins_after:
            late.requires_grad_()
        for p in (early, late):
            p.grad = torch.randn(30, 30, generator=generator) if p.requires_grad else None
        sampler.step()
    masses = [sampler.state[p]["root"].square().mean().item() for p in (late, early)]
    assert masses[0] / masses[1] == pytest.approx(1, rel=0.05)


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


def test_settings_of_another_sampler_are_refused_by_their_class():
    with pytest.raises(TypeError, match=r"settings must be .*ScaleAdaptedL2ESettings"):
        ScaleAdaptedL2E([torch.ones(3, requires_grad=True)], num_data=10, settings=L2ESettings())
