"""What the figures of a comparison draw: the means of several runs and their bands."""

import numpy as np
import pytest
import torch
from experiments.common.figures import new_figure
from experiments.images import report
from experiments.images.compare_figures import draw
from experiments.images.result import Result
from PIL import Image

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
    line, low, high = drawn("linear")
    assert line == pytest.approx([2.5, 0.50005])
    assert low == pytest.approx([1.0, 1e-4])
    assert high == pytest.approx([4.0, 1.0])


def test_on_a_logarithmic_axis_means_and_bands_are_those_of_the_logarithms():
    line, low, high = drawn("log")
    assert line == pytest.approx([2.0, 1e-2])
    assert low == pytest.approx([1.0, 1e-4])
    assert high == pytest.approx([4.0, 1.0])
    ax = new_figure(2, 2).subplots()
    ax.set(yscale="log")
    draw(ax, X, [[1.0, 1e-4], [4.0, 1.0], [1.0, 1e-4]], STYLE)
    assert ax.collections[0].get_paths()[0].vertices[:, 1].min() > 0, "an arithmetic band would end below 0"


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
