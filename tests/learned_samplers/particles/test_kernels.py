"""Kernels: against autograd, bandwidth rules, particles that coincide or lie far from the origin."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from learned_samplers.particles import IMQ, RBF
from learned_samplers.particles.directions import repulsion
from learned_samplers.particles.kernels import squared_bandwidth, squared_distances
from tests.learned_samplers.particles.particle_problems import FUNCTIONS


@pytest.mark.parametrize("name", FUNCTIONS)
def test_matrices_against_autograd(name):
    """k, Σⱼ ∇_{xⱼ} k(xⱼ, xᵢ) and Σ tr ∇∇k, each from the kernel's definition alone."""
    kernel, function = FUNCTIONS[name]
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
    distances = squared_distances(x)
    torch.testing.assert_close(distances, expected, rtol=1e-9, atol=1e-9)
    assert torch.equal(distances, distances.mT)
    assert (distances.diagonal(dim1=-2, dim2=-1) == 0).all()


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_bandwidth_rules(count):
    x = torch.randn(count, 2, dtype=torch.double)
    distances = squared_distances(x)
    pairs = distances[tuple(torch.triu_indices(count, count, 1))].numpy()
    full = np.median(distances.numpy()) / (2 * math.log(count + 1))
    of_pairs = np.median(pairs) / (2 * math.log(count))
    assert squared_bandwidth(distances, "full_median").item() == pytest.approx(full)
    assert squared_bandwidth(distances, "off_diagonal_median").item() == pytest.approx(of_pairs)
    assert squared_bandwidth(distances, 3.0).item() == 9.0
    torch.testing.assert_close(RBF()(x).values, torch.exp(-distances / (2 * full)))
    if count == 2:  # Liu and Wang: a particle's M − 1 neighbours at that distance weigh (M − 1)/M together
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
        if kernel.bandwidth == "full_median":  # which is 0 where most coincide: the limit σ → 0
            x[5, 0] += 1.0
            matrix = kernel(x)
            assert torch.equal(matrix.values, torch.block_diag(torch.ones(5, 5), torch.ones(1, 1)).double())
            assert not matrix.repulsion.any()


def test_far_from_the_origin_digits_are_kept():
    x = torch.randn(5, 3, dtype=torch.double)
    near, far = RBF(1.0)(x), RBF(1.0)(x + 1e6)
    torch.testing.assert_close(near.values, far.values, rtol=0, atol=1e-8)
    torch.testing.assert_close(repulsion(x, near), repulsion(x + 1e6, far), rtol=0, atol=1e-8)


def test_a_bandwidth_is_one_number_whatever_its_type():
    """A state is compared by the kernel as it is written."""
    assert repr(RBF(1)) == repr(RBF(1.0)) == repr(RBF(np.float64(1)))
