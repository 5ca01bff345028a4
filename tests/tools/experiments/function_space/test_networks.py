"""Stacked perceptrons against torch's modules, and groups of particles that must not see each other."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from experiments.function_space.networks import SeparateGroups, StackedMLP
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from learned_samplers import SVGD
from learned_samplers.particles import IMQ, RBF


def module(mlp, params, index):
    """One network of the stack as torch's own layers."""
    layers, flat = [], params[0][index]
    for into, out in pairwise(mlp.sizes):
        linear = nn.Linear(into, out, dtype=flat.dtype)
        weight, bias, flat = flat.split([out * into, out, len(flat) - out * (into + 1)])
        with torch.no_grad():
            linear.weight.copy_(weight.view(out, into) / (into + 1) ** 0.5)
            linear.bias.copy_(bias / (into + 1) ** 0.5)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@settings(max_examples=20, deadline=None)
@given(sizes=st.lists(st.integers(1, 5), min_size=2, max_size=4), per_group=st.integers(1, 3), groups=st.integers(1, 3))
def test_is_the_usual_network(sizes, per_group, groups):
    mlp = StackedMLP(sizes)
    params = [p.double() for p in mlp.draw(groups * per_group)]
    x = torch.randn(groups, 7, sizes[0], dtype=torch.double)
    outputs = mlp(params, x)
    assert outputs.shape == (groups * per_group, 7, sizes[-1])
    for i in range(groups * per_group):
        torch.testing.assert_close(outputs[i], module(mlp, params, i)(x[i // per_group]))
    torch.testing.assert_close(mlp(params, x[0])[0], outputs[0])


def test_first_outputs_are_of_a_unit_size():
    """E f² = (w·K/2 + 1)/(w + 1) with K = (‖x‖² + 1)/(d + 1), for any width w; 2,000 draws, four standard errors."""
    x = torch.randn(50, 20)
    for width in (10, 300):
        mlp = StackedMLP((20, width, 1))
        measured = mlp(mlp.draw(2000), x).square().mean().item()
        size = ((x.square().sum(1) + 1) / 21).mean().item()
        assert measured == pytest.approx((width * size / 2 + 1) / (width + 1), rel=4 * (3 / 2000) ** 0.5)


def test_bad_shapes():
    with pytest.raises(ValueError, match=r"sizes must be two positive numbers or more, got \(3,\)"):
        StackedMLP((3,))
    mlp = StackedMLP((2, 4, 1))
    for x in (torch.zeros(5, 3), torch.zeros(2, 5, 2)):
        with pytest.raises(ValueError, match="3 networks of 2 inputs cannot take"):
            mlp(mlp.draw(3), x)


def moved(points, kernel):
    """Where SVGD's first step brings the points, on a Gaussian."""
    x = points.clone().requires_grad_()
    SVGD([x], 0.1, kernel=kernel).step(lambda: x.square().sum(1) / 2)
    return x.detach()


@pytest.mark.parametrize("kernel", [RBF(), IMQ(bandwidth=0.7)])
def test_groups_move_as_they_would_alone(kernel):
    points = torch.randn(12, 3, dtype=torch.double)
    alone = torch.cat([moved(part, kernel) for part in points.split(4)])
    torch.testing.assert_close(moved(points, SeparateGroups(kernel, 3)), alone)
    assert not torch.allclose(moved(points, kernel), alone)  # what it would be if they saw each other
    with pytest.raises(ValueError, match="12 particles cannot be split into 5 groups"):
        moved(points, SeparateGroups(kernel, 5))
