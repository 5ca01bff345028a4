"""The toy problems against what is known of them, and of the samplers on them."""

from __future__ import annotations

import pytest
import torch
from experiments.toys.experiment import ZDT3, Mixtures, run
from experiments.toys.methods import ON_A_FRONT
from experiments.toys.problems import (
    LEAST,
    REFERENCE,
    SEGMENTS,
    hypervolume,
    into_box,
    mixture_energies,
    mixture_start,
    segments_reached,
    share_in_common_region,
    zdt3,
    zdt3_front,
    zdt3_start,
)
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from learned_samplers.particles import MGDA


def test_mixtures_are_the_papers():
    x = torch.randn(20, 2) * 3
    means = [[[4.0, -4.0], [0.0, 0.5]], [[-4.0, 4.0], [0.5, 0.0]], [[-3.0, -3.0], [0.0, 0.0]]]
    for energy, mean in zip(mixture_energies(x), means, strict=True):
        parts = Independent(Normal(torch.tensor(mean), 0.5**0.5), 1)
        target = MixtureSameFamily(Categorical(torch.tensor([0.7, 0.3])), parts)
        torch.testing.assert_close(energy, -target.log_prob(x))


def test_share():
    x = torch.tensor([[0.0, 0.0], [1.0, 1.0], [4.0, -4.0], [-3.0, -3.0]])
    assert share_in_common_region(x) == 0.5
    assert mixture_start(50, 0).abs().max() <= 10


def test_front_is_what_no_point_dominates():
    """Points with g = 1 outside the segments are dominated by the front, those inside are not."""
    front = torch.cat(zdt3_front(2000))
    first = torch.linspace(1e-4, 1, 500, dtype=torch.double)
    x = torch.zeros(500, 30, dtype=torch.double)
    x[:, 0] = first
    points = zdt3(x, projected=False).T
    dominated = ((front[None] < points[:, None] - 2e-3).all(-1)).any(-1)
    inside = torch.stack([(first >= low) & (first <= high) for low, high in SEGMENTS]).any(0)
    near = torch.stack([(first > low - 0.01) & (first < high + 0.01) for low, high in SEGMENTS]).any(0)
    assert not dominated[inside].any()
    assert dominated[~near].all()


def test_gradients_stay_inside_the_box():
    x = zdt3_start(4, 0).detach()
    x[0, 1:], x[1, 0], x[2, 0] = LEAST, LEAST, 1.0
    x.requires_grad_()
    plain = torch.autograd.grad(zdt3(x, projected=False)[1].sum(), x)[0]
    kept = torch.autograd.grad(zdt3(x)[1].sum(), x)[0]
    assert (plain[0, 1:] > 0).all()
    assert (kept[0, 1:] == 0).all()
    assert torch.equal(kept[3], plain[3])
    first = torch.autograd.grad(zdt3(x)[0].sum(), x)[0]
    assert first[1, 0] == 0
    assert first[2, 0] == 1


def test_hypervolume():
    assert hypervolume(torch.tensor([[0.1, 0.1]])) == pytest.approx(1.0)
    assert hypervolume(torch.tensor([[0.1, 0.6], [0.6, 0.1], [0.7, 0.7], [2.0, -1.0]])) == pytest.approx(0.75)
    assert hypervolume(torch.tensor([list(REFERENCE)])) == 0
    points = torch.rand(30, 2)
    grid = (torch.rand(200_000, 2) * 1.1)[:, None]
    estimate = sum((points[None] <= part).all(-1).any(-1).double().sum() for part in grid.split(20_000)) / 200_000
    assert hypervolume(points) == pytest.approx(estimate.item() * 1.21, abs=0.01)


def test_segments():
    middles = torch.stack([segment[200] for segment in zdt3_front()])
    assert segments_reached(middles) == [1] * 5
    assert segments_reached(middles + 1) == [0] * 5


def test_the_kernel_on_objectives_gets_them():
    """The repulsion follows the objectives: variables that they do not depend on are not pushed apart."""
    make = ON_A_FRONT["MTSGD, code's rule, kernel on objectives"]
    x = torch.rand(6, 2, generator=torch.Generator().manual_seed(0)).requires_grad_()
    before = x.detach().clone()
    options = Mixtures(steps=2)
    run(make, x, lambda x: torch.stack([x[:, 0], (1 - x[:, 0]).square() + 0 * x[:, 1]]), options, keep=())
    assert (x[:, 0] != before[:, 0]).all()
    assert torch.equal(x[:, 1], before[:, 1])


def test_the_wide_kernel_and_normalised_scores_mend_the_collapse():
    """What the documentation says of exact U: with the defaults all weight is on the first objective, else not."""
    weights = {}
    for name in list(ON_A_FRONT)[:3]:
        x = zdt3_start(50, 0)
        sampler = ON_A_FRONT[name]([x], 5e-3, base_optimizer=torch.optim.Adam)
        sampler.param_groups[0]["temperature"] = 1e-2
        for _ in range(100):
            sampler.step(lambda x=x: zdt3(x))
            into_box(x)
        weights[name] = sampler.weights[0].item()
    collapsed, normalised, wide = weights.values()
    assert collapsed > 0.999
    assert 0.3 < normalised < 0.7
    assert wide < 0.995


def test_gradient_descent_on_several_targets_needs_the_projection():
    """What the closure's projection is for: without it nearly every particle of MGDA slides to f₁ = 0."""
    share = {}
    for projected in (True, False):
        x = zdt3_start(30, 0)
        run(MGDA, x, lambda x, p=projected: zdt3(x, projected=p), ZDT3(steps=600, lr=5e-3), keep=(), after=into_box)
        share[projected] = (x.detach()[:, 0] < 1e-3).double().mean().item()
    assert share[True] < 0.5
    assert share[False] > 0.8
