"""Content of a comparison's figures: the means of several runs and their bands."""

import numpy as np
import pytest
from experiments.compare import figures
from experiments.harness.figures import band, new_figure
from experiments.harness.runs.methods import METHODS
from experiments.harness.runs.result import Result

X = np.array([1.0, 2.0])


def drawn(scale, runs):
    """The line and the lower and upper edge of the band of runs, one of which comes near 0."""
    ax = new_figure(2, 2).subplots()
    ax.set(yscale=scale)
    band(ax, X, runs, {"color": "C0", "label": "SGHMC"})
    corners = ax.collections[0].get_paths()[0].vertices
    edges = [sorted(corners[corners[:, 0] == x][:, 1]) for x in X]
    return ax.lines[0].get_ydata(), [edge[0] for edge in edges], [edge[-1] for edge in edges]


def test_on_a_logarithmic_axis_means_and_bands_are_those_of_the_logarithms():
    line, low, high = drawn("log", [[1.0, 1e-4], [4.0, 1.0]])
    assert line == pytest.approx([2.0, 1e-2])
    assert low == pytest.approx([2 * 4 ** (-(0.5**0.5)), 1e-2 * 1e4 ** (-(0.5**0.5))])
    assert high == pytest.approx([2 * 4 ** (0.5**0.5), 1e-2 * 1e4 ** (0.5**0.5)])
    assert min(drawn("log", [[1.0, 1e-4], [4.0, 1.0], [1.0, 1e-4]])[1]) > 0, "an arithmetic band would end below 0"


def test_no_method_is_left_out_of_the_figures():
    runs = {name: [Result(name, 0.1, 0, {}, num_samples=2)] for name in METHODS}
    assert set(figures.styles(runs)) == set(METHODS)
