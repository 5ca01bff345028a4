"""Kernels: values and derivatives against autograd, bandwidth rules, particles that coincide, blocks."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from learned_samplers.particles import IMQ, RBF, Linear, kernels
from learned_samplers.particles.directions import repulsion
from learned_samplers.particles.kernels import squared_bandwidth, squared_distances

KERNELS = {
    "rbf": (RBF(1.3), lambda x, y: torch.exp(-(x - y).square().sum() / (2 * 1.3**2))),
    "imq": (IMQ(0.7), lambda x, y: (1 + (x - y).square().sum() / (2 * 0.7**2)) ** -0.5),
    "linear": (Linear(), lambda x, y: x @ y + 1),
}


@pytest.mark.parametrize("name", KERNELS)
def test_matrices_against_autograd(name):
    """k, Σⱼ ∇_{xⱼ} k(xⱼ, xᵢ) and Σ tr ∇∇k, each from the kernel's definition alone."""
    kernel, function = KERNELS[name]
    x = torch.randn(5, 3, dtype=torch.double)
    matrix = kernel(x)
    values = torch.stack([torch.stack([function(a, b) for b in x]) for a in x])
    first = torch.func.grad(function, 0)
    pushed = torch.stack([sum(first(x[j], x[i]) for j in range(5)) for i in range(5)])
    mixed = torch.func.jacrev(torch.func.grad(function, 0), 1)
    trace = sum(mixed(a, b).trace() for a in x for b in x)
    torch.testing.assert_close(matrix.values, values)
    torch.testing.assert_close(repulsion(x, matrix), pushed)
    torch.testing.assert_close(matrix.trace, trace)


@given(count=st.integers(1, 9), dims=st.integers(1, 20), seed=st.integers(0, 2**31), shift=st.sampled_from([0, 1e3]))
@settings(max_examples=40, deadline=None)
def test_squared_distances(count, dims, seed, shift):
    x = torch.randn(2, count, dims, dtype=torch.double, generator=torch.Generator().manual_seed(seed)) + shift
    expected = (x[..., :, None, :] - x[..., None, :, :]).square().sum(-1)
    found = squared_distances(x)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    assert torch.equal(found, found.mT)
    assert (found.diagonal(dim1=-2, dim2=-1) == 0).all()


@pytest.mark.parametrize("block", [1, 7, 1 << 22])
@pytest.mark.parametrize("name", KERNELS)
def test_blocks_of_coordinates(name, block, monkeypatch):
    x = torch.randn(3, 4, 11)
    whole = KERNELS[name][0](x)
    monkeypatch.setattr(kernels, "_BLOCK", block)
    for one, other in zip(KERNELS[name][0](x), whole, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_bandwidth_rules(count):
    x = torch.randn(count, 2, dtype=torch.double)
    distances = squared_distances(x)
    pairs = distances[tuple(torch.triu_indices(count, count, 1))].numpy()
    full = np.median(distances.numpy()) / (2 * math.log(count + 1))
    other = np.median(pairs) / (2 * math.log(count))
    assert squared_bandwidth(distances, "full_median").item() == pytest.approx(full)
    assert squared_bandwidth(distances, "off_diagonal_median").item() == pytest.approx(other)
    assert squared_bandwidth(distances, 3.0).item() == 9.0
    torch.testing.assert_close(RBF()(x).values, torch.exp(-distances / (2 * full)))


def test_liu_and_wang_rule_balances_a_pair():
    """With the median over pairs, a particle's M − 1 neighbours at that distance weigh (M − 1)/M together."""
    x = torch.tensor([[0.0], [1.0]], dtype=torch.double)
    assert RBF("off_diagonal_median")(x).values[0, 1].item() == pytest.approx(0.5)


@pytest.mark.parametrize("kernel", [RBF(), IMQ(), RBF("off_diagonal_median"), RBF(2.0)])
@pytest.mark.parametrize("where", [0.0, 0.1, 1e6])
def test_particles_that_coincide(kernel, where):
    """No repulsion and a kernel of one; nothing is NaN, wherever they are."""
    for dtype in (torch.float32, torch.float64):
        x = torch.full((6, 3), where, dtype=dtype)
        matrix = kernel(x)
        assert (matrix.values == 1).all()
        assert repulsion(x, matrix).abs().max() <= 1e-9 * max(where, 1)


def test_zero_median_with_some_apart():
    x = torch.tensor([[0.0, 0.0]] * 5 + [[1.0, 0.0]])
    matrix = RBF()(x)
    assert (matrix.values[:5, :5] == 1).all()
    assert (matrix.values[5, :5] == 0).all()
    assert (matrix.repulsion == 0).all()


def test_far_from_the_origin_digits_are_kept():
    x = torch.randn(5, 3, dtype=torch.double)
    near, far = RBF(1.0)(x), RBF(1.0)(x + 1e6)
    torch.testing.assert_close(near.values, far.values, rtol=0, atol=1e-8)
    torch.testing.assert_close(repulsion(x, near), repulsion(x + 1e6, far), rtol=0, atol=1e-8)
