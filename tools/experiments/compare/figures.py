"""The figures of `compare.py`: what an average gains by each sample, and the loss between samples."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.harness.figures import band, grid_lines, logarithmic_labels, new_figure
from experiments.harness.runs.result import CURVES, Result
from learned_samplers import plots
from learned_samplers.diagnostics import LossLines

PANELS = {"accuracy": "accuracy", "nll": "NLL [nats]", "ece": "ECE", "brier": "Brier score", "kld": "KLD [nats]"}
COLUMNS = 4  # of figures with a panel a method
#: Finished runs of each row, by its name in tables.
Results = Mapping[str, Sequence[Result]]


def draw_all(results: Results, title: str, out: Path, budget: int) -> None:
    """The figures of one budget."""
    for name, figure in {"figure1": figure_1, "figure2": figure_2}.items():
        if (drawn := figure({row: runs for row, runs in results.items() if runs})) is not None:
            drawn.suptitle(title)
            drawn.savefig(out / f"{name}_{budget}.png", dpi=120)


def styles(results: Results) -> dict[str, dict[str, Any]]:
    """Style of every row in all figures, those with several samples in a run first; few looks come again."""
    names = sorted(results, key=lambda name: results[name][0].num_samples == 1)
    looks = itertools.cycle((color, dash) for dash in plots.DASHES for color in plots.PALETTE)
    return {name: {"color": color, "linestyle": dash, "label": name} for name, (color, dash) in zip(names, looks)}


def figure_1(results: Results) -> Any:
    """Scores of the average against the number of samples in it, mean ± standard deviation over seeds; a single
    network is a dotted line."""
    from matplotlib.ticker import MaxNLocator

    fig = new_figure(15, 9.5)
    *axes, last = fig.subplots(2, 3).flatten()
    last.remove()
    for ax, (score, first) in zip(axes, CURVES.items()):
        for name, style in styles(results).items():
            values = [result.curves[score] for result in results[name]]
            if results[name][0].num_samples >= max(first, 2):
                band(ax, np.arange(first, first + len(values[0])), values, style, marker="o", markersize=3)
            elif first == 1:
                ax.axhline(float(np.mean(values)), **{**style, "linestyle": ":"}, linewidth=1.8)
        ax.set(xlabel="samples in the average", ylabel=PANELS[score])
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        grid_lines(ax)
    low, high = axes[1].dataLim.intervaly
    if 0 < 10 * low < high:  # one bad method would press all others together
        logarithmic_labels(axes[1])
    handles = {label: line for ax in axes for line, label in zip(*ax.get_legend_handles_labels())}
    fig.legend(handles.values(), handles, loc="outside lower center", ncols=4, frameon=False)
    return fig


def figure_2(results: Results) -> Any:
    """Validation loss on the lines between pairs of samples, and the cosine of each pair; first seed."""
    measured = {name: modes for name, runs in results.items() if (modes := runs[0].modes)}
    if not measured:
        return None
    columns = min(COLUMNS, len(measured))
    rows = -(-len(measured) // columns)
    fig = new_figure(max(4.0 * columns, 9.0), 4.6 + 3.4 * rows)
    top, bottom = fig.subfigures(2, 1, height_ratios=[4.6, 3.4 * rows])
    lines = {}
    for name, modes in measured.items():
        pairs, positions, losses = (modes["lines"][key] for key in ("pairs", "positions", "losses"))
        lines[name] = LossLines([(i, j) for i, j in pairs], np.array(positions), np.array(losses))
    plots.loss_barriers(lines, top.subplots(), ylabel="validation loss (nats)")
    axes = bottom.subplots(rows, columns, squeeze=False).flatten()
    for ax in axes[len(measured) :]:
        ax.remove()
    for ax, (name, modes) in zip(axes, measured.items()):
        cosines = np.eye(1 + modes["pairs"][-1][1])
        first, second = np.array(modes["pairs"]).T
        cosines[first, second] = cosines[second, first] = modes["cosines"]
        plots.cosine_similarity_map(cosines, ax, title=name)
    return fig
