"""Baselines without interaction: MGDA, linear scalarisation, Pareto MTL."""

from contextlib import nullcontext

import pytest
import torch

from learned_samplers.particles import MGDA, LinearScalarisation, ParetoMTL
from tests.learned_samplers.particles.particle_problems import MEANS, energies, parameter

DOUBLE = torch.float64


def test_mgda_descends_every_target_and_stops_between():
    x = parameter(6, 2)
    sampler = MGDA([x], 0.05)
    last = energies("MGDA", x).detach()
    for _ in range(300):
        sampler.step(lambda: energies("MGDA", x))
        now = energies("MGDA", x).detach()
        assert (now <= last + 1e-5).all()
        last = now
    means = MEANS
    # Pareto-stationary: on the segment between the means.
    along = ((x.detach() - means[1]) @ (means[0] - means[1])) / (means[0] - means[1]).square().sum()
    nearest = means[1] + along.clamp(0, 1)[:, None] * (means[0] - means[1])
    torch.testing.assert_close(x.detach(), nearest, rtol=0, atol=1e-2)


def test_linear_scalarisation_is_gradient_descent():
    x, y = parameter(3, 2), parameter(3, 2)
    LinearScalarisation([x], 0.1, target_weights=[0.25, 0.75]).step(lambda: energies("L", x))
    loss = (torch.tensor([0.25, 0.75])[:, None] * energies("L", y)).sum()
    loss.backward()
    torch.optim.SGD([y], 0.1).step()
    torch.testing.assert_close(x, y)


def test_pareto_mtl_spreads_over_the_front():
    """Every particle ends in its own sector, from one starting point; MGDA's stay together."""
    spread = {}
    for cls in (ParetoMTL, MGDA):
        x = torch.tensor([[0.1, 2.0]]).repeat(5, 1).requires_grad_()
        sampler = cls([x], 0.05)
        with pytest.warns(UserWarning, match="move alike") if cls is MGDA else nullcontext():
            sampler.step(lambda x=x: energies("ParetoMTL", x))
        for _ in range(299):
            sampler.step(lambda x=x: energies("ParetoMTL", x))
        losses = energies("ParetoMTL", x).detach()
        spread[cls] = torch.atan2(losses[1], losses[0])
    angles = torch.linspace(0, torch.pi / 2, 5)
    assert (spread[ParetoMTL] - angles).abs().max() < torch.pi / 16 + 0.02
    assert spread[MGDA].std() < 1e-4


def test_pareto_mtl_by_enumeration():
    """The first phase descends the violated constraints alone, the second targets and constraints."""
    x = parameter(3, 2, seed=4, dtype=DOUBLE)
    before, losses = x.detach().clone(), energies("ParetoMTL", x).detach()
    gradients = before - MEANS.to(DOUBLE)[:, None]
    preferences = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]], dtype=DOUBLE)
    sampler = ParetoMTL([x], 0.1, preferences=preferences)
    sampler.step(lambda: energies("ParetoMTL", x))
    for m in range(3):
        rows = [u - preferences[m] for u in preferences if (u - preferences[m]) @ losses[:, m] > 0]
        feasible = not rows
        rows += list(torch.eye(2, dtype=DOUBLE)) if feasible else []
        vectors = torch.stack(rows) @ gradients[:, m]
        lengths = []
        for _ in range(2000):  # the shortest of many convex combinations
            w = torch.rand(len(rows), dtype=DOUBLE).pow(4)
            lengths.append(((w / w.sum()) @ vectors).norm())
        moved = (before[m] - x.detach()[m]) / 0.1
        assert moved.norm() <= min(lengths) + 1e-12
        assert moved.norm() >= min(lengths) - 0.05
        assert sampler.param_groups[0]["feasible"][m] == feasible
