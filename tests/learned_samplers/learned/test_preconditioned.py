"""Precond-L2E: SGHMC when untrained, and its equations written out."""

import math

import pytest
import torch

from learned_samplers.base.segments import Segments
from learned_samplers.learned.averages import update_averages
from learned_samplers.learned.preconditioned import PreconditionedSettings, l2e_precond_rule
from tests.learned_samplers.learned.cases import features, network, phi_of


@pytest.mark.parametrize("clips", [(5.0, 100.0), (1.05, 1.1)])
@pytest.mark.parametrize("fault", [None, "the old momentum in the move", "noise without D"])
def test_the_rule_is_its_equations_and_the_comparison_finds_a_fault(clips, fault):
    module, segments = network(dtype=torch.float64), Segments((30, 12))
    generator = torch.Generator().manual_seed(3)
    theta, g, xi, r = (torch.randn(42, generator=generator, dtype=torch.float64) for _ in range(4))
    lr, n, a, heat, prior = 0.3, 50.0, 0.2, 0.6, 2.0
    eps, averages = math.sqrt(lr / n), torch.zeros(6, 42, dtype=torch.float64)
    settings = PreconditionedSettings(curl_scale=0.8, friction_scale=0.6, curl_clip=clips[0], friction_clip=clips[1])
    at = dict(lr=lr, num_data=n, temperature=heat, prior_precision=prior, momentum_decay=a)
    new = l2e_precond_rule(theta, g, xi, r, averages, settings=settings, phi=phi_of(module), segments=segments, **at)

    def fields(momentum):
        x = features(theta, momentum, g, update_averages(averages, g), segments, lr=lr, num_data=n)
        q, d = module(x.T).detach().T
        friction = (0.6 * d).exp().clamp(1 / clips[1], clips[1]).clamp(max=1 / a)
        return (0.8 * q).exp().clamp(1 / clips[0], clips[0]), friction

    q, d = fields(r)
    spread = torch.ones_like(d) if fault == "noise without D" else d
    moved = (1 - a * d) * r - eps * q * (n * g + prior * theta) + (2 * a * spread * heat).sqrt() * xi
    q, _ = fields(r if fault == "the old momentum in the move" else moved)
    expected = theta + eps * q * moved, moved
    if fault is None:
        for ours, theirs in zip(new, expected, strict=False):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    else:
        assert (new[0] - expected[0]).abs().max() > 1e-4
