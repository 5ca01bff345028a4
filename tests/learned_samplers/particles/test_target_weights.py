"""The quadratic programme on the simplex: optimality on random matrices, scales, degenerate cases."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from learned_samplers.particles import min_norm_weights

SIZES = (1, 2, 3, 4, 5, 12)


def residual(gram, weights):
    """Distance of w from optimal: w on the simplex, and (Uw)ᵢ ≥ wᵀUw for every i, relative to the largest entry."""
    product = (gram @ weights[..., None])[..., 0]
    value = (product * weights).sum(-1, keepdim=True)
    scale = gram.abs().amax(dim=(-2, -1)).clamp_min(1e-300)
    outside = torch.maximum(-weights.amin(-1), (weights.sum(-1) - 1).abs())
    return torch.maximum(((value - product).amax(-1) / scale), outside).max().item()


@given(
    size=st.sampled_from(SIZES),
    rank=st.integers(1, 6),
    batch=st.sampled_from([(), (1,), (7,), (2, 3)]),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=60, deadline=None)
def test_optimality_conditions(size, rank, batch, seed):
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(*batch, size, rank, dtype=torch.double, generator=generator)
    gram = vectors @ vectors.mT
    weights = min_norm_weights(gram)
    assert weights.shape == (*batch, size)
    assert residual(gram, weights) < 1e-12


@pytest.mark.parametrize("size", SIZES)
def test_the_residual_finds_a_wrong_answer(size):
    """The planted fault: equal weights, which are right for one weight alone."""
    vectors = torch.randn(size, 8, dtype=torch.double)
    gram = vectors @ vectors.T
    fault = torch.full((size,), 1 / size, dtype=torch.double)
    assert (residual(gram, fault) > 1e-3) == (size > 1)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scale", [1e-15, 1e15])
def test_neither_scale_nor_order_matters(size, scale):
    vectors = torch.randn(4, size, 9, dtype=torch.double)
    gram, order = vectors @ vectors.mT, torch.randperm(size)
    weights = min_norm_weights(gram)
    torch.testing.assert_close(min_norm_weights(gram * scale), weights, rtol=0, atol=1e-9)
    torch.testing.assert_close(min_norm_weights(gram[:, order][..., order]), weights[:, order], rtol=0, atol=1e-9)


@pytest.mark.parametrize("size", SIZES)
def test_special_cases(size):
    """Zero and the identity; all the same; one vector twice, which weighs together as much as it does alone."""
    gram = torch.stack([torch.zeros(size, size), torch.eye(size)])
    torch.testing.assert_close(min_norm_weights(gram), torch.full((2, size), 1 / size), rtol=0, atol=1e-7)
    ones = torch.ones(size, size, dtype=torch.double) * 3
    assert residual(ones, min_norm_weights(ones)) < 1e-12
    vectors = torch.randn(size, 9, dtype=torch.double)
    twice = torch.cat([vectors, vectors[:1]])
    alone, both = min_norm_weights(vectors @ vectors.T), min_norm_weights(twice @ twice.T)
    torch.testing.assert_close(both[0] + both[-1], alone[0], rtol=0, atol=1e-7)
    vectors[:-1] *= 1e7  # one short vector among long ones
    gram = vectors @ vectors.T
    assert residual(gram, min_norm_weights(gram)) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtype_is_kept(dtype):
    vectors = torch.randn(3, 4)
    gram = (vectors @ vectors.T).to(dtype)
    weights = min_norm_weights(gram)
    assert weights.dtype == dtype
    torch.testing.assert_close(weights.double().sum(), torch.tensor(1.0, dtype=torch.double), rtol=0, atol=1e-2)
