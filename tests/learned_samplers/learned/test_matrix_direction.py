"""The matrix direction that L2E's network may see: in every way to take a step, over a resumption, and its cost."""

import math

import pytest
import torch
from torch import nn

import learned_samplers
from learned_samplers import AdaptedSGHMC
from learned_samplers.base import matrices
from learned_samplers.base.matrices import orthogonal
from learned_samplers.learned.feature_sets import FEATURE_SETS
from learned_samplers.learned.l2e import L2ESettings
from learned_samplers.learned.network import build_network
from tests.learned_samplers.learned.flat_keywords import L2E

D = matrices.COVARIANCE_DECAY


def matrix(rows, columns, seed=0, **kind):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64, **kind)


def expected_direction(ahead, covariance):
    """By the definition: the orthogonal factor of M·(R + 10⁻⁴·‖R‖)^(−1/2), or before the first root of M."""
    if covariance is None:
        return orthogonal([ahead])[0]
    values, vectors = torch.linalg.eigh(covariance)
    root = vectors @ torch.diag((values / covariance.norm() + 1e-4) ** -0.5) @ vectors.mT
    return orthogonal([ahead @ root])[0]


def network_along_the_direction():
    """One linear layer whose β is minus the matrix direction."""
    network = build_network("matrix", ())
    with torch.no_grad():
        network[0].weight[1, FEATURE_SETS["matrix"].names.index("matrix_direction")] = -1.0
    return network


@pytest.mark.parametrize("kind", ["compiled", "torch", "one by one", "float64", "bfloat16 averages"])
def test_the_optimizer_moves_a_matrix_along_its_direction(kind, monkeypatch):
    """A step of a cold chain is SGHMC's and −s_β·ε·direction."""
    if kind in ("torch", "one by one"):
        monkeypatch.setenv("LEARNED_SAMPLERS_NATIVE", "0")
    dtype = torch.float64 if kind == "float64" else torch.float32
    rounded = {"averages_dtype": "bfloat16"} if kind == "bfloat16 averages" else {}
    settings = L2ESettings(feature_set="matrix", beta_scale=3.0, friction_scale=0.0, **rounded)
    params = [nn.Parameter(matrix(6, 3).to(dtype)), nn.Parameter(matrix(1, 5)[0].to(dtype))]
    params = params[:1] if kind == "one by one" else params
    cold = dict(temperature=0.0, momentum_decay=1.0)
    sampler = L2E(params, 1e-4, 100, network=network_along_the_direction(), settings=settings, **cold)
    m, covariance = 0.0, None
    for step in range(3):
        before = params[0].detach().clone()
        gradients = [matrix(6, 3, 8 + step).to(dtype), matrix(1, 5, 19 + step)[0].to(dtype)][: len(params)]
        for p, g in zip(params, gradients, strict=True):
            p.grad = g.clone()
        sampler.step()
        g = gradients[0].double()
        m = 0.9 * m + 0.1 * g
        direction = expected_direction(0.9 * m + 0.1 * g, covariance).to(dtype)
        covariance = (1 - D) * g.mT @ g if covariance is None else covariance  # its root is kept for ten steps
        epsilon = math.sqrt(1e-4 / 100)
        moved = before - epsilon * (epsilon * 100 * gradients[0] + 3.0 * direction)
        torch.testing.assert_close(params[0].detach(), moved, rtol=1e-4, atol=1e-4 if rounded else 2e-6)
    assert sampler.state[params[0]]["whitening"].shape == (2, 1, 3, 3)


def test_compiled_code_and_torch_explore_settle_and_sample_the_same_way_with_the_shipped_weights(monkeypatch):
    """In pieces of a tensor too: the first is larger than one."""
    ends = []
    for native in ("1", "0"):
        monkeypatch.setenv("LEARNED_SAMPLERS_NATIVE", native)
        params = [nn.Parameter(matrix(300, 120).float()), nn.Parameter(matrix(1, 7)[0].float())]
        keywords = dict(lr=1e-4, num_data=1000, generator=torch.Generator().manual_seed(3))
        sampler = AdaptedSGHMC(params, warmup=learned_samplers.L2E, warmup_steps=4, **keywords)
        for step in range(6):
            for i, p in enumerate(params):
                drawn = matrix(1, p.numel(), 7 * step + i).view(p.shape)
                p.grad = 0.1 * p.detach() + 0.01 * drawn.float()
            sampler.step()
        ends.append(torch.cat([p.detach().flatten() for p in params]))
    moved = (ends[0][:36000] - matrix(300, 120).float().flatten()).square().mean().sqrt()
    assert (ends[0] - ends[1]).abs().max() < 1e-2 * moved


def test_sharded_parameters_are_refused_with_a_reason():
    assert "matrices" in L2E([nn.Parameter(torch.ones(3, 2))], num_data=10, network="l2e-gated").not_sharded


def test_matrices_that_take_long_at_every_step_are_spoken_of_before_the_first():
    small, large = (nn.Parameter(torch.zeros(side, side)) for side in (3000, 6000))
    learned_samplers.L2E([small], num_data=10, network="l2e-gated")
    message = r"^L2E's network sees .*billion operations a step here \(the largest is 6000×6000\): slow on a CPU"
    with pytest.warns(UserWarning, match=message) as caught:
        learned_samplers.L2E([large], num_data=10, network="l2e-gated")
    assert caught[0].filename == __file__
    learned_samplers.L2E([large], num_data=10, network="l2e")
    learned_samplers.L2E(
        [nn.Parameter(large.detach().to("meta"))], num_data=10, network=None, settings={"feature_set": "matrix"}, lr=0.1
    )


def test_one_that_joins_moves_along_its_momentum_until_its_turn():
    """Not along nothing: its root is 1 until it is made."""
    settings = L2ESettings(feature_set="matrix", beta_scale=3.0, friction_scale=0.0)
    first, late = nn.Parameter(matrix(3, 4)), nn.Parameter(matrix(4, 3, 1))
    sampler = L2E(
        [first, late],
        lr=1e-4,
        num_data=100,
        network=network_along_the_direction(),
        settings=settings,
        temperature=0.0,
        missing_gradient="skip",
    )
    for step in range(13):
        first.grad = matrix(3, 4, step)
        sampler.step()
    late.grad, before = matrix(4, 3, 50), late.detach().clone()
    sampler.step()
    epsilon = math.sqrt(1e-4 / 100)
    (direction,) = orthogonal([late.grad])
    expected = before - epsilon * (epsilon * 100 * late.grad + 3.0 * direction)
    torch.testing.assert_close(late.detach(), expected, rtol=1e-5, atol=1e-8)
