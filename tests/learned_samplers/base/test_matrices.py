"""The orthogonal factor of a matrix: against singular values, and for any shape."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from learned_samplers.base.matrices import orthogonal, orthogonal_operations
from learned_samplers.base.segments import Segments


def matrix(rows, columns, seed=0, **kind):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64, **kind)


@given(st.integers(2, 9), st.integers(2, 9), st.integers(0, 99), st.sampled_from([1e-6, 1.0, 1e6]))
def test_singular_vectors_stay_and_values_come_near_one(rows, columns, seed, scale):
    """Values between .68 and 1.2 come of all that are not below a three-hundredth of the Frobenius norm."""
    x = matrix(rows, columns, seed)
    u, s, vt = torch.linalg.svd(x, full_matrices=False)
    (found,) = orthogonal([scale * (u * s.clamp(min=0.05) @ vt)])
    inner = u.mT @ found @ vt.mT / math.sqrt(max(rows, columns))
    assert (inner - inner.diag().diag()).abs().max() < 1e-8
    assert inner.diag().min() > 0.6
    assert inner.diag().max() < 1.25


@pytest.mark.parametrize(("rows", "columns"), [(20, 128), (300, 30), (40, 160)])
def test_long_matrices_take_another_way_to_the_same(rows, columns):
    x = matrix(rows, columns, 6)
    x[0] *= 1e-4
    (found,) = orthogonal([x])
    u, s, vt = torch.linalg.svd(x, full_matrices=False)
    s = s / s.norm()
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    torch.testing.assert_close(found, math.sqrt(max(rows, columns)) * (u * s @ vt), rtol=1e-8, atol=1e-8)
    (single,) = orthogonal([x.float()])
    torch.testing.assert_close(single.double(), found, rtol=0, atol=1e-3)


def test_a_single_row_is_divided_by_its_root_mean_square():
    x = matrix(1, 12)
    for given_x in (x, x.mT):
        (found,) = orthogonal([given_x])
        torch.testing.assert_close(found, given_x / x.square().mean().sqrt())


def test_matrices_of_one_shape_and_leading_axes_do_not_touch_each_other():
    first, second, other = matrix(4, 6, 1), matrix(4, 6, 2), matrix(6, 4, 3)
    together = orthogonal([first, other, second])
    for got, alone in zip(together, (first, other, second), strict=True):
        torch.testing.assert_close(got, orthogonal([alone])[0], rtol=1e-10, atol=1e-12)
    (batch,) = orthogonal([torch.stack([first, second])])
    torch.testing.assert_close(batch, torch.stack([together[0], together[2]]), rtol=1e-10, atol=1e-12)


def test_dead_and_rank_one_matrices_are_finite():
    (dead,) = orthogonal([torch.zeros(3, 5)])
    assert not dead.any()
    u, v = matrix(5, 1), matrix(1, 3)
    (found,) = orthogonal([u @ v])
    expected = (u / u.norm()) @ (v / v.norm()) * math.sqrt(5)
    ratio = (found / expected).flatten()
    assert ratio.std() < 1e-6
    assert 0.6 < ratio.mean() < 1.25


@pytest.mark.parametrize("shape", [(7, 9), (40, 40), (16, 300), (300, 16, 2), (5,), (1, 8)])
def test_operations_are_those_that_torch_counts(shape):
    segments = Segments.of([torch.ones(shape)] * 2)
    with FlopCounterMode(display=False) as counter:
        orthogonal([matrix(*sides) for sides in segments.matrices])
    assert orthogonal_operations(segments) == counter.get_total_flops()
