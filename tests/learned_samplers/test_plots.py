"""Plots: what is drawn is what was given, in the axes given."""

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from learned_samplers import metrics, plots
from learned_samplers.diagnostics import LossLines

PROBS = (3 * torch.randn(400, 5, generator=torch.Generator().manual_seed(0))).softmax(1)
LABELS = torch.randint(0, 5, (400,), generator=torch.Generator().manual_seed(1))
LINES = LossLines([(0, 1), (1, 2)], np.linspace(0, 1, 5), np.array([[0, 1, 2, 1, 0.0], [0, 0, 0, 0, 1]]))

DRAWINGS = {
    "reliability_diagram": lambda ax=None: plots.reliability_diagram(PROBS, LABELS, ax, title="title"),
    "cosine_similarity_map": lambda ax=None: plots.cosine_similarity_map(np.eye(3), ax, title="title"),
    "loss_barriers": lambda ax=None: plots.loss_barriers({"a": LINES, "b": LINES}, ax, title="title"),
}


def line(ax, label):
    lines = [artist for artist in ax.lines if artist.get_label() == label]
    assert len(lines) == 1, [artist.get_label() for artist in ax.lines]
    return lines[0]


@pytest.mark.parametrize("name", DRAWINGS)
def test_draws_into_the_given_axes_or_new_ones(name, tmp_path):
    axes = Figure().add_subplot()
    assert DRAWINGS[name](axes) is axes
    new = DRAWINGS[name]()
    assert new.figure is not axes.figure
    for ax in (axes, new):
        assert ax.get_title() == "title"
        assert ax.get_xlabel()
        assert ax.get_ylabel()
    new.figure.savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 5000


@pytest.mark.parametrize("name", ["reliability_diagram", "loss_barriers"])
def test_the_legend_covers_no_data(name):
    ax = DRAWINGS[name]()
    ax.figure.canvas.draw()
    legend, inside = ax.get_legend().get_window_extent(), ax.get_window_extent()
    assert legend.x0 >= inside.x1
    assert legend.x1 <= ax.figure.bbox.x1 + 1, "and is not cut off"


def test_reliability_diagram_shows_the_bins():
    bins = metrics.calibration_bins(PROBS, LABELS, 10)
    ax = plots.reliability_diagram(PROBS, LABELS, num_bins=10)
    held = bins.num_examples > 0
    drawn = line(ax, "accuracy in bin")
    np.testing.assert_allclose(drawn.get_xdata(), bins.confidence[held])
    np.testing.assert_allclose(drawn.get_ydata(), bins.accuracy[held])
    np.testing.assert_allclose([bar.get_height() for bar in ax.patches], bins.num_examples / 400)
    assert ax.get_legend().get_title().get_text() == f"ECE {metrics.ece(PROBS, LABELS, 10):.3f} (10 bins)"


def test_similarity_map_and_its_numbers():
    matrix = np.array([[1, -0.25], [-0.25, 1]])
    ax = plots.cosine_similarity_map(matrix)
    np.testing.assert_array_equal(ax.images[0].get_array(), matrix)
    assert ax.images[0].get_clim() == (-1, 1)
    assert [text.get_text() for text in ax.texts] == ["1.00", "-0.25", "-0.25", "1.00"]
    assert not plots.cosine_similarity_map(np.eye(9)).texts


def test_barrier_lines():
    ax = plots.loss_barriers(LINES, ylabel="NLL / nats")
    assert ax.get_ylabel() == "NLL / nats"
    mean = line(ax, "2 pairs,\nmean barrier 1")  # barriers 2 and 0
    np.testing.assert_allclose(mean.get_ydata(), LINES.losses.mean(0))
    assert len(ax.lines) == 3
