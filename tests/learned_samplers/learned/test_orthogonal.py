"""The orthogonal factor of momentum: against singular values, for any shape, and what it refuses."""

import math

import pytest
import torch
from torch import nn

from learned_samplers import L2E, AdaptedSGHMC
from learned_samplers.base.matrices import orthogonal
from learned_samplers.base.segments import Segments
from learned_samplers.learned.feature_sets import FEATURE_SETS
from learned_samplers.learned.l2e.rule import L2ESettings
from learned_samplers.learned.whole_matrices import whole_direction


def matrix(rows, columns, seed=0, **kind):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64, **kind)


def test_the_direction_looks_a_step_ahead():
    segments = Segments.of([torch.empty(3, 2, 2), torch.empty(4), torch.empty(())])
    m, g = matrix(1, 17, 4)[0], matrix(1, 17, 5)[0]
    found = whole_direction(FEATURE_SETS["matrix"], m, g, segments, None, g)
    ahead = 0.9 * m + 0.1 * g
    (first,) = orthogonal([ahead[:12].view(3, 4)])
    torch.testing.assert_close(found[:12], first.flatten())
    torch.testing.assert_close(found[12:16], ahead[12:16] / ahead[12:16].square().mean().sqrt())
    assert found[16].abs() == pytest.approx(1.0)


def test_shapes_are_needed_and_must_fit():
    with pytest.raises(ValueError, match=r"shapes of the tensors must be known here: Segments\(lengths, shapes\)"):
        whole_direction(FEATURE_SETS["matrix"], *[torch.ones(4)] * 2, Segments((4,)), None, torch.ones(4))
    with pytest.raises(ValueError, match=r"shapes of Segments must have the lengths \(4,\), got \(\(2, 3\),\)"):
        Segments((4,), ((2, 3),))


@pytest.mark.parametrize("kind", ["compiled", "torch", "float64"])
def test_the_optimizer_moves_a_matrix_along_its_orthogonal_factor(kind, monkeypatch):
    """A network whose β is minus the feature: one step of a cold chain from rest is SGHMC's and −s_β·ε·feature."""
    if kind == "torch":
        monkeypatch.setenv("LEARNED_SAMPLERS_NATIVE", "0")
    dtype = torch.float64 if kind == "float64" else torch.float32
    settings = L2ESettings(feature_set="matrix", beta_scale=3.0, friction_scale=0.0)
    network = nn.Sequential(nn.Linear(31, 2), nn.ReLU(), nn.Linear(2, 2))
    with torch.no_grad():
        for p in network.parameters():
            p.zero_()
        place = settings.features.index("orthogonal_0.9")
        network[0].weight[:, place] = torch.tensor([1.0, -1.0])
        network[2].weight[1] = torch.tensor([-1.0, 1.0])
    params = [nn.Parameter(matrix(6, 3).to(dtype)), nn.Parameter(matrix(1, 5)[0].to(dtype))]
    before = [p.detach().clone() for p in params]
    gradients = [matrix(6, 3, 8).to(dtype), matrix(1, 5, 9)[0].to(dtype)]
    for p, g in zip(params, gradients, strict=True):
        p.grad = g.clone()
    sampler = L2E(params, lr=1e-4, num_data=100, network=network, settings=settings, temperature=0.0)
    sampler.step()
    for p, old, g in zip(params, before, gradients, strict=True):
        (factor,) = orthogonal([g if g.ndim > 1 else g[None]])
        epsilon = math.sqrt(1e-4 / 100)
        expected = old - epsilon * (epsilon * 100 * g + 3.0 * factor.view_as(g))
        torch.testing.assert_close(p.detach(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("adapted", [False, True])
def test_compiled_code_and_torch_walk_the_same_way_with_the_shipped_weights(adapted, monkeypatch):
    """Also through exploring, settling and sampling, and in pieces of a tensor (the first is larger than one)."""
    ends = []
    for native in ("1", "0"):
        monkeypatch.setenv("LEARNED_SAMPLERS_NATIVE", native)
        params = [nn.Parameter(matrix(300, 120).float()), nn.Parameter(matrix(1, 7)[0].float())]
        own = dict(lr=1e-4, num_data=1000, generator=torch.Generator().manual_seed(3))
        if adapted:
            sampler = AdaptedSGHMC(params, warmup=L2E, warmup_steps=4, **own)
        else:
            sampler = L2E(params, network="l2e-gated", total_steps=10, **own)
        for step in range(6):
            for i, p in enumerate(params):
                drawn = matrix(1, p.numel(), 7 * step + i).view(p.shape)
                p.grad = 0.1 * p.detach() + 0.01 * drawn.float()
            sampler.step()
        ends.append(torch.cat([p.detach().flatten() for p in params]))
    moved = (ends[0][:36000] - matrix(300, 120).float().flatten()).square().mean().sqrt()
    assert (ends[0] - ends[1]).abs().max() < 1e-2 * moved


def test_narrow_averages_give_nearly_the_same_direction():
    ends = []
    for dtype in ("float32", "bfloat16"):
        p = nn.Parameter(matrix(12, 9).float())
        sampler = L2E([p], lr=1e-3, num_data=100, network="l2e-gated", temperature=0.0, averages_dtype=dtype)
        for step in range(4):
            p.grad = matrix(12, 9, 20 + step).float()
            sampler.step()
        ends.append(p.detach() - matrix(12, 9).float())
    assert (ends[0] - ends[1]).norm() < 0.03 * ends[0].norm()


def test_sharded_parameters_are_refused_with_a_reason():
    sampler = L2E([nn.Parameter(torch.ones(3, 2))], num_data=10, network="l2e-gated")
    assert (
        sampler.not_sharded
        == "feature set 'matrix' sees whole matrices (take other weights, such as network='l2e' of L2E)"
    )


def test_matrices_that_take_long_at_every_step_are_spoken_of_before_the_first():
    small, large = (nn.Parameter(torch.zeros(side, side)) for side in (800, 900))
    L2E([small], num_data=10, network="l2e-gated")
    message = r"^L2E's network sees .*, 22 billion operations a step here \(the largest is 900×900\): slow on a CPU"
    with pytest.warns(UserWarning, match=message) as caught:
        L2E([large], num_data=10, network="l2e-gated")
    assert caught[0].filename == __file__
    L2E([large], num_data=10, network="l2e")
    L2E([nn.Parameter(large.detach().to("meta"))], num_data=10, network=None, feature_set="matrix", lr=0.1)
