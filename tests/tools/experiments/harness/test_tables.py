"""Tables and the numbers in their cells."""

from __future__ import annotations

import math
from types import SimpleNamespace

from experiments.harness.tables import finished, markdown, mean_and_std, spread, with_error


def test_table_cells():
    assert spread([0.5], 2) == "0.50"
    assert spread([0.5, 0.7], 2) == "0.60 ± 0.14"
    assert spread([], 2) == "–"
    assert math.isnan(mean_and_std([1.0])[1])
    assert with_error([1.0, 2.0, 3.0], 2) == f"2.00 ± {1 / math.sqrt(3):.2f}"
    assert with_error([1.0], 2) == "1.00"
    assert with_error([], 2) == "–"


def test_a_table_is_aligned():
    table = markdown([{"method": "SGD", "NLL": "0.1"}, {"method": "a longer one", "NLL": "0.25"}]).splitlines()
    assert table[1] == "|--------------|-----:|"
    assert table[2] == "| SGD          |  0.1 |"
    assert len({len(line) for line in table}) == 1


def test_runs_that_diverged_are_counted():
    runs = [SimpleNamespace(diverged=None), SimpleNamespace(diverged="the loss is nan")]
    assert finished(runs) == runs[:1]
