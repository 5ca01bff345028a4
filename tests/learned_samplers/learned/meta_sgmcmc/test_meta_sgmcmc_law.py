"""MetaSGMCMC leaves its law alone: with a random network, gradient noise that is told, a long chain."""

from __future__ import annotations

import pytest
import torch

from learned_samplers import check_sampler
from tests.harness import sghmc_variance
from tests.learned_samplers.learned.flat_keywords import MetaSGMCMC
from tests.learned_samplers.learned.meta_sgmcmc.meta_sgmcmc_cases import network


def test_a_random_network_keeps_the_posterior_up_to_the_step_size():
    module = network(1, scale=0.3, dtype=torch.float32, hidden=(8,))
    options = dict(network=module, energy_scale=100.0, gradient_scale=10.0)
    report = check_sampler(
        lambda p: MetaSGMCMC(p, 0.1, 100, **options),
        stiffness=(0.3,),
        per_chain=True,
        coordinates=2000,
        steps=250,
        refinement=4,
        tolerance=0.03,
    )
    assert report.passed, report
    assert report.verdict == "O(h)"


@pytest.mark.parametrize("told", [False, True])
def test_gradient_noise_that_is_told_does_not_heat(told):
    """Untrained, in closed form: SGHMC's variance with the noise B, and without it once B is taken off."""
    noise = 100.0
    variance = noise if told else 0.0
    report = check_sampler(
        lambda p: MetaSGMCMC(p, 0.1, 100, network=None, gradient_variance=variance),
        gradient_noise=noise,
        coordinates=2000,
        steps=300,
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
        [p],
        0.02,
        100,
        network=network(2, dtype=torch.float32, hidden=(8,)),
        energy_scale=100.0,
        gradient_scale=10.0,
        momentum_decay=0.1,
        curl_scale=0.5,
        friction_scale=0.5,
        generator=torch.Generator().manual_seed(0),
    )

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
