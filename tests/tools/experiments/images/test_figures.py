"""What the figures of a comparison draw: the means of several runs and their bands."""

import numpy as np
import pytest
import torch
from experiments.harness.figures import new_figure
from experiments.images import compare_figures, report
from experiments.images.compare_figures import draw
from experiments.images.compare_report import BudgetReport
from experiments.images.compare_styles import styles
from experiments.images.methods import METHODS
from experiments.images.result import Result
from experiments.images.settings import Settings
from PIL import Image

from learned_samplers import plots

STYLE = {"color": "C0", "label": "SGHMC"}
X = np.array([1.0, 2.0])


def drawn(scale):
    """The line and the lower and upper edge of the band of two runs, one of which comes near 0."""
    ax = new_figure(2, 2).subplots()
    ax.set(yscale=scale)
    draw(ax, X, [[1.0, 1e-4], [4.0, 1.0]], STYLE)
    corners = ax.collections[0].get_paths()[0].vertices
    edges = [sorted(corners[corners[:, 0] == x][:, 1]) for x in X]
    return ax.lines[0].get_ydata(), [each[0] for each in edges], [each[-1] for each in edges]


def test_a_band_on_a_linear_axis_is_one_standard_deviation():
    """With n − 1, as in the tables: of two runs their difference over √2."""
    line, low, high = drawn("linear")
    assert line == pytest.approx([2.5, 0.50005])
    assert low == pytest.approx([2.5 - 3 / 2**0.5, 0.50005 - 0.9999 / 2**0.5])
    assert high == pytest.approx([2.5 + 3 / 2**0.5, 0.50005 + 0.9999 / 2**0.5])


def test_on_a_logarithmic_axis_means_and_bands_are_those_of_the_logarithms():
    line, low, high = drawn("log")
    assert line == pytest.approx([2.0, 1e-2])
    assert low == pytest.approx([2 * 4 ** (-(0.5**0.5)), 1e-2 * 1e4 ** (-(0.5**0.5))])
    assert high == pytest.approx([2 * 4 ** (0.5**0.5), 1e-2 * 1e4 ** (0.5**0.5)])
    ax = new_figure(2, 2).subplots()
    ax.set(yscale="log")
    draw(ax, X, [[1.0, 1e-4], [4.0, 1.0], [1.0, 1e-4]], STYLE)
    assert ax.collections[0].get_paths()[0].vertices[:, 1].min() > 0, "an arithmetic band would end below 0"


def test_each_method_has_its_own_target_and_end_of_burn_in(tmp_path, monkeypatch):
    """Both are tuned: those of the preset are no run's."""

    def run(method, temperature, burn_in):
        points = [
            {"step": s, "groups": [{"kinetic": 1.0, "configurational": 1.0, "size": 3}]} for s in range(10, 100, 10)
        ]
        settings = {"temperature": temperature, "burn_in": burn_in}
        return [Result(method, 0.1, 0, settings, temperatures=points, num_samples=10, scores={"nll": 1.0})]

    figures = []
    monkeypatch.setattr(compare_figures, "new_figure", lambda *size: figures.append(new_figure(*size)) or figures[-1])
    monkeypatch.setattr(compare_figures, "overall", lambda groups, kind: groups[0][kind])
    runs = {"SGHMC": run("SGHMC", 0.1, 0.5), "BAOA": run("BAOA", 1.0, 0.8), "SGLD": run("SGLD", 1.0, 0.8)}
    made = BudgetReport(100, tmp_path, Settings(temperature=0.3, burn_in=0.2), 1000, runs=runs)
    compare_figures.temperature_figure(tmp_path / "temperatures.png", made, "title")
    lines = [
        line for line in figures[0].axes[0].lines if len(set(line.get_ydata())) == 1 and len(line.get_xdata()) == 2
    ]
    targets = {line.get_ydata()[0]: line.get_label() for line in lines if str(line.get_label()).startswith("target")}
    assert targets == {0.1: "target 0.1", 1.0: "target 1"}
    ends = {line.get_xdata()[0] for line in figures[0].axes[0].lines if line.get_xdata()[0] == line.get_xdata()[-1]}
    assert ends == {50.0, 80.0}


@pytest.mark.parametrize(("methods", "lines", "columns"), [(3, 1, 3), (6, 1, 6), (7, 2, 4), (13, 3, 5)])
def test_many_reliability_diagrams_take_further_lines(tmp_path, monkeypatch, methods, lines, columns):
    probabilities = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)).softmax(1)
    saved = {"test": probabilities, "test_labels": probabilities.argmax(1)}
    monkeypatch.setattr(report, "predictions", lambda result, out: saved)
    runs = {
        f"method {number}": [Result("SGHMC", 0.1, 0, {}, scores={"accuracy": 1.0}, accuracy_curve=[0.9, 1.0])]
        for number in range(methods)
    }
    report.figure(tmp_path / "figure.png", runs, "title", tmp_path)
    with Image.open(tmp_path / "figure.png") as image:
        width, height = image.size
    assert width == pytest.approx(150 * 3.2 * columns, abs=1)
    assert height == pytest.approx(150 * 3.5 * (lines + 1), abs=1)


def test_effective_samples_a_second_are_of_chains_alone():
    ax = new_figure(2, 2).subplots()
    runs = {name: [Result(name, 0.1, 0, {}, seconds=2.0, ess=4.0)] for name in ("SGHMC", "DeepEnsemble", "SWAG")}
    compare_figures.time_panel(ax, runs, {name: {"color": "C0", "label": name} for name in runs})
    assert [bar.get_width() for bar in ax.patches] == [2.0, 0, 0]
    assert [text.get_text() for text in ax.texts][1] == "DeepEnsemble: no ESS, 2 s"


def test_curves_of_runs_that_were_looked_at_differently_often_meet_at_their_steps(tmp_path, monkeypatch):
    """All runs fall along one line, of which 5 and 20 points were kept."""

    def run(seed, points):
        curve = [[1000 * (k + 1) / points, 2 - (k + 1) / points, 0.5] for k in range(points)]
        return Result("SGHMC", 0.05, seed, {}, scores={"nll": 1.0}, num_samples=10, validation_curve=curve)

    drawn = []
    monkeypatch.setattr(
        compare_figures, "draw", lambda ax, x, values, style: drawn.append((x, values)) or draw(ax, x, values, style)
    )
    settings = Settings(steps=1000, batch_size=32)
    made = BudgetReport(1000, tmp_path, settings, 698, runs={"SGHMC": [run(0, 5), run(1, 20)]})
    compare_figures.validation_figure(tmp_path / "validation.png", made, "title")
    x, nll = drawn[0]
    assert x * settings.steps_per_epoch(698) == pytest.approx([200, 400, 600, 800, 1000])
    assert nll == pytest.approx(np.tile([1.8, 1.6, 1.4, 1.2, 1.0], (2, 1)))
    # One that began later, ended sooner: where both are.
    curves = [[[1, 1.0], [2, 2.0], [3, 3.0]], [[1.5, 0.0], [2, 1.0], [2.5, 0.0], [2.8, 0.0]]]
    np.testing.assert_allclose(compare_figures.at_common_steps(curves), [[[2, 2.0]], [[2, 1.0]]])


def test_no_method_is_left_out_of_the_figures(tmp_path):
    runs = {
        name: [Result(name, 0.1, 0, {method.network: "x"} if method.network else {}, num_samples=2)]
        for name, method in METHODS.items()
    }
    assert len(METHODS) > len(plots.PALETTE) * len(plots.DASHES)
    assert set(styles(BudgetReport(100, tmp_path, Settings(), 1000, runs=runs))) == set(METHODS)
