"""The cost of the direction of matrices: what torch counts, and in proportion to the weights."""

import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from learned_samplers.base.matrices import all_whitened, orthogonal, state_lengths, state_shape, update_covariances_
from learned_samplers.base.matrix_cost import operations
from learned_samplers.base.segments import Segments


@pytest.mark.parametrize("shape", [(7, 9), (40, 40), (16, 300), (300, 16, 2), (600, 700), (5,), (1, 8), (2, 20000)])
def test_operations_are_those_that_torch_counts(shape):
    segments = Segments.of([torch.ones(shape)] * 2)
    (sides, _) = segments.matrices
    states, ones = [torch.zeros(state_shape(shape))] * 2, [torch.ones(sides)] * 2
    with FlopCounterMode(display=False) as counter:
        update_covariances_(states, ones)
        orthogonal(all_whitened(ones, states))
    roots = sum(2.2 * state.shape[-3] * state.shape[-1] ** 3 for state in states if state.numel())
    assert operations(segments) - roots == pytest.approx(counter.get_total_flops(), rel=0.005)


def test_a_resnet_18_costs_in_proportion_to_its_weights():
    """A quarter of a training step at 32×32, batch 64, on one core; in blocks of 512 and whole factors a half."""
    convolutions = [(64, 3), *[(64, 64)] * 4, (128, 64), *[(128, 128)] * 3, (256, 128), *[(256, 256)] * 3]
    convolutions += [(512, 256), *[(512, 512)] * 3]
    shapes = [*((*sides, 3, 3) for sides in convolutions), (128, 64), (256, 128), (512, 256), (10, 512)]
    segments = Segments(tuple(map(math.prod, shapes)), tuple(shapes))
    assert segments.total > 11e6
    assert sum(state_lengths(segments)) < 1.7 * segments.total
    assert operations(segments) < 2500 * segments.total
