"""The rule of ScaleAdaptedL2E: L2E while it explores, the right law once the mass is frozen, whatever the network."""

from __future__ import annotations

import pytest
import torch

from learned_samplers import ScaleAdaptedL2E
from learned_samplers.learned.l2e.rule import l2e_rule
from learned_samplers.learned.network import flatten, shapes_of, unflatten
from learned_samplers.learned.scale_adapted.rule import (
    ScaleAdaptedL2ESettings,
    explorer,
    scale_adapted_l2e_rule,
    unsettled_root,
)
from tests.learned_samplers.learned.scale_adapted.cases import HYPER, SEGMENTS, N, chain, network, phi_of


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
