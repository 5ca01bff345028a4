"""What the figures of a comparison draw: the means of several runs and their bands."""

import numpy as np
import pytest
from experiments.compare import figures
from experiments.compare.report import BudgetReport
from experiments.harness.figures import band, new_figure
from experiments.harness.runs.methods import METHODS
from experiments.harness.runs.result import Result
from experiments.harness.runs.settings import Settings

X = np.array([1.0, 2.0])


def drawn(scale, runs):
    """The line and the lower and upper edge of the band of runs, one of which comes near 0."""
    ax = new_figure(2, 2).subplots()
    ax.set(yscale=scale)
    band(ax, X, runs, {"color": "C0", "label": "SGHMC"})
    corners = ax.collections[0].get_paths()[0].vertices
    edges = [sorted(corners[corners[:, 0] == x][:, 1]) for x in X]
    return ax.lines[0].get_ydata(), [each[0] for each in edges], [each[-1] for each in edges]


def test_a_band_on_a_linear_axis_is_one_standard_deviation():
    """With n − 1, as in the tables: of two runs their difference over √2."""
    line, low, high = drawn("linear", [[1.0, 1e-4], [4.0, 1.0]])
    assert line == pytest.approx([2.5, 0.50005])
    assert low == pytest.approx([2.5 - 3 / 2**0.5, 0.50005 - 0.9999 / 2**0.5])
    assert high == pytest.approx([2.5 + 3 / 2**0.5, 0.50005 + 0.9999 / 2**0.5])


def test_on_a_logarithmic_axis_means_and_bands_are_those_of_the_logarithms():
    line, low, high = drawn("log", [[1.0, 1e-4], [4.0, 1.0]])
    assert line == pytest.approx([2.0, 1e-2])
    assert low == pytest.approx([2 * 4 ** (-(0.5**0.5)), 1e-2 * 1e4 ** (-(0.5**0.5))])
    assert high == pytest.approx([2 * 4 ** (0.5**0.5), 1e-2 * 1e4 ** (0.5**0.5)])
    assert min(drawn("log", [[1.0, 1e-4], [4.0, 1.0], [1.0, 1e-4]])[1]) > 0, "an arithmetic band would end below 0"


def test_curves_of_runs_that_were_looked_at_differently_often_meet_at_their_steps(tmp_path, monkeypatch):
    """All runs fall along one line, of which 5 and 20 points were kept."""

    def run(seed, points):
        curve = [[1000 * (k + 1) / points, 2 - (k + 1) / points, 0.5] for k in range(points)]
        return Result("SGHMC", 0.05, seed, {}, scores={"nll": 1.0}, num_samples=10, validation_curve=curve)

    drawn = []
    monkeypatch.setattr(figures, "band", lambda ax, x, values, style: drawn.append((x, values)))
    settings = Settings(steps=1000, batch_size=32)
    made = BudgetReport(1000, tmp_path, settings, 698, runs={"SGHMC": [run(0, 5), run(1, 20)]})
    monkeypatch.setattr(figures, "legend_beside", lambda ax: None)
    figures.validation_figure(made, "title")
    x, nll = drawn[0]
    assert x * settings.steps_per_epoch(698) == pytest.approx([200, 400, 600, 800, 1000])
    assert nll == pytest.approx(np.tile([1.8, 1.6, 1.4, 1.2, 1.0], (2, 1)))
    # One that began later, ended sooner: where both are.
    curves = [[[1, 1.0], [2, 2.0], [3, 3.0]], [[1.5, 0.0], [2, 1.0], [2.5, 0.0], [2.8, 0.0]]]
    np.testing.assert_allclose(figures.at_common_steps(curves), [[[2, 2.0]], [[2, 1.0]]])


def test_no_method_is_left_out_of_the_figures(tmp_path):
    runs = {name: [Result(name, 0.1, 0, {}, num_samples=2)] for name in METHODS}
    assert set(figures.styles(BudgetReport(100, tmp_path, Settings(), 1000, runs=runs))) == set(METHODS)
