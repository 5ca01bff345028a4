"""The figures of `compare.py`."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np

from experiments.compare.report import BudgetReport
from experiments.harness.figures import band, grid_lines, logarithmic_labels, new_figure
from experiments.harness.runs.result import CURVES, label
from experiments.harness.tables import finished
from learned_samplers import plots
from learned_samplers.diagnostics import LossLines

PANELS = {"accuracy": "accuracy", "nll": "NLL [nats]", "ece": "ECE", "brier": "Brier score", "kld": "KLD [nats]"}
COLUMNS = 4  # of figures with a panel a method

Styles = dict[str, dict[str, Any]]


def draw_all(report: BudgetReport, out: Path) -> None:
    """The figures of one budget."""
    title = f"{report.settings.dataset}, {report.settings.model}, {report.budget} gradients"
    for name, figure in {"figure1": figure_1, "figure2": figure_2}.items():
        if (drawn := figure(report, title)) is not None:
            drawn.savefig(out / f"{name}_{report.budget}.png", dpi=120)


def styles(report: BudgetReport) -> Styles:
    """Style of every method in all figures: those with several samples in a run before the single networks.

    Where there are more methods than looks, the first ones come again.
    """
    ended = {name: finished(results) for name, results in report.runs.items()}
    names = sorted((name for name in ended if ended[name]), key=lambda name: ended[name][0].num_samples == 1)
    looks = itertools.cycle((color, dash) for dash in plots.DASHES for color in plots.PALETTE)
    return {
        name: {"color": color, "linestyle": dash, "label": label(report.runs[name])}
        for name, (color, dash) in zip(names, looks)
    }


def figure_1(report: BudgetReport, title: str) -> Any:
    """Scores of the average against the number of samples in it, mean ± standard deviation over seeds.

    A single network is a dotted line.
    """
    from matplotlib.ticker import MaxNLocator

    fig = new_figure(15, 9.5)
    *axes, last = fig.subplots(2, 3).flatten()
    shown = styles(report)
    for ax, (name, first) in zip(axes, CURVES.items()):
        for method, style in shown.items():
            results = finished(report.runs[method])
            values = [result.curves[name] for result in results]
            if results[0].num_samples < first:
                continue
            if results[0].num_samples == 1:
                ax.axhline(float(np.mean(values)), **{**style, "linestyle": ":"}, linewidth=1.8)
            else:
                band(ax, np.arange(first, first + len(values[0])), values, style, marker="o", markersize=3)
        ax.set(xlabel="samples in the average", ylabel=PANELS[name])
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        grid_lines(ax)
    low, high = axes[1].dataLim.intervaly
    if 0 < 10 * low < high:  # one bad method would press all others together
        logarithmic_labels(axes[1])
    last.remove()
    handles = {label: line for ax in axes for line, label in zip(*ax.get_legend_handles_labels())}
    fig.legend(handles.values(), handles, loc="outside lower center", ncols=4, frameon=False)
    fig.suptitle(title)
    return fig


def figure_2(report: BudgetReport, title: str) -> Any:
    """Validation loss on the lines between pairs of samples, and the cosine of each pair; first seed."""
    by_label = {label(results): results[0].modes for results in report.runs.values() if results[0].modes}
    if not by_label:
        return None
    columns = min(COLUMNS, len(by_label))
    rows = -(-len(by_label) // columns)
    fig = new_figure(max(4.0 * columns, 9.0), 4.6 + 3.4 * rows)
    top, bottom = fig.subfigures(2, 1, height_ratios=[4.6, 3.4 * rows])
    lines = {}
    for name, modes in by_label.items():
        pairs, positions, losses = (modes["lines"][key] for key in ("pairs", "positions", "losses"))
        lines[name] = LossLines([(i, j) for i, j in pairs], np.array(positions), np.array(losses))
    plots.loss_barriers(lines, top.subplots(), ylabel="validation loss (nats)")
    axes = bottom.subplots(rows, columns, squeeze=False).flatten()
    for ax in axes[len(by_label) :]:
        ax.remove()
    for ax, (name, modes) in zip(axes, by_label.items()):
        cosines = np.eye(1 + modes["pairs"][-1][1])
        first, second = np.array(modes["pairs"]).T
        cosines[first, second] = cosines[second, first] = modes["cosines"]
        plots.cosine_similarity_map(cosines, ax, title=name)
    fig.suptitle(title)
    return fig
