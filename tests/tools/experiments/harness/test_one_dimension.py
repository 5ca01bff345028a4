"""Functions of one variable: their data, and what is measured over regions."""

from __future__ import annotations

import pytest
import torch
from experiments.harness.one_dimension import deviations, regions, training_points

RANGES = ((-5.0, -1.0), (1.0, 4.0))


def test_data_lie_on_the_intervals():
    x, y = training_points(RANGES, (400, 300), 0.1, 0, torch.float32)
    assert x.shape == y.shape == (700, 1)
    assert [int(((x >= low) & (x <= high)).sum()) for low, high in RANGES] == [400, 300]
    assert (y - x.sin()).std().item() == pytest.approx(0.1, rel=0.1)


def test_spread_is_measured_by_region():
    grid = torch.linspace(-7, 6, 261)[:, None]
    masks = regions(grid, RANGES)
    assert torch.equal(sum(mask.int() for mask in masks.values()), torch.ones(261, dtype=torch.int))
    offsets = torch.tensor([-1.0, 1.0])[:, None]
    values = grid[:, 0].sin() + offsets * masks["in the gap"]
    row = deviations(values, grid, RANGES, reference=grid[:, 0].sin() + 2 * offsets)
    assert row["deviation in the gap"] == pytest.approx(2**0.5)
    assert row["deviation outside"] == 0
    assert row["ratio in the gap"] == pytest.approx(0.5)
    assert row["mean at the data"] == pytest.approx(0, abs=1e-6)
