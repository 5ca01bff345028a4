"""The figures of `compare.py`."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np

from experiments.compare.report import BudgetReport
from experiments.harness.figures import band, grid_lines, logarithmic_labels, new_figure
from experiments.harness.runs.methods import Setting
from experiments.harness.runs.result import CURVES, Result, label
from experiments.harness.tables import finished
from experiments.harness.tuning import Tuning
from learned_samplers import plots
from learned_samplers.diagnostics import LossLines

PANELS = {"accuracy": "accuracy", "nll": "NLL [nats]", "ece": "ECE", "brier": "Brier score", "kld": "KLD [nats]"}
COLUMNS = 4  # of figures with a panel a method

Styles = dict[str, dict[str, Any]]


def draw_all(report: BudgetReport, out: Path) -> None:
    """The figures of one budget."""
    title = f"{report.settings.dataset}, {report.settings.model}, {report.budget} gradients"
    for name, figure in {"figure1": figure_1, "figure2": figure_2, "figure3": figure_3}.items():
        if (drawn := figure(report, title)) is not None:
            drawn.savefig(out / f"{name}_{report.budget}.png", dpi=120)


def styles(report: BudgetReport) -> Styles:
    """How every method is drawn in all figures: those with several samples in a run before the single networks.

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
    found = {label(results): results[0].modes for results in report.runs.values() if results[0].modes}
    if not found:
        return None
    columns = min(COLUMNS, len(found))
    rows = -(-len(found) // columns)
    fig = new_figure(max(4.0 * columns, 9.0), 4.6 + 3.4 * rows)
    top, bottom = fig.subfigures(2, 1, height_ratios=[4.6, 3.4 * rows])
    lines = {}
    for name, modes in found.items():
        kept = modes["lines"]
        pairs = [(i, j) for i, j in kept["pairs"]]
        lines[name] = LossLines(pairs, np.array(kept["positions"]), np.array(kept["losses"]))
    plots.loss_barriers(lines, top.subplots(), ylabel="validation loss (nats)")
    axes = bottom.subplots(rows, columns, squeeze=False).flatten()
    for ax in axes[len(found) :]:
        ax.remove()
    for ax, (name, modes) in zip(axes, found.items()):
        cosines = np.eye(1 + modes["pairs"][-1][1])
        first, second = np.array(modes["pairs"]).T
        cosines[first, second] = cosines[second, first] = modes["cosines"]
        plots.cosine_similarity_map(cosines, ax, title=name)
    fig.suptitle(title)
    return fig


def figure_3(report: BudgetReport, title: str) -> Any:
    """What temperature buys: validation NLL at each T, of the best of the other settings tried, mean ± standard error.

    Of one tuning seed there is no error.
    """
    shown = styles(report)
    found = {
        name: at for name, tuning in report.tuning.items() if name in shown and len(at := by_temperature(tuning)) > 1
    }
    if not found:
        return None
    every = sorted({temperature for at in found.values() for temperature in at})
    fig = new_figure(7, 4.6)
    ax = fig.subplots()
    for number, (name, at) in enumerate(found.items()):
        places = [every.index(temperature) + 0.04 * number for temperature in at]
        scores = list(at.values())
        errors = [np.std(each, ddof=1) / len(each) ** 0.5 if len(each) > 1 else np.nan for each in scores]
        ax.errorbar(places, [np.mean(each) for each in scores], errors, **shown[name], marker="o", capsize=3)
    ax.set_xticks(range(len(every)), [f"{temperature:g}" for temperature in every])
    ax.set(xlabel="temperature", ylabel="lowest validation NLL tried [nats]", title=title)
    grid_lines(ax)
    ax.legend(frameon=False)
    return fig


def by_temperature(tuning: Tuning[Setting, Result]) -> dict[float, list[float]]:
    """Each temperature that was tried, in order → the validation NLL of each seed at the best of the other settings."""
    best: dict[float, Setting] = {}
    for setting in tuning.ranked():
        if "temperature" in setting.numbers:
            best.setdefault(setting.numbers["temperature"], setting)
    scores = {at: [run.validation_nll for run in tuning.trials[best[at]]] for at in sorted(best)}
    return {at: [score for score in found if score is not None] for at, found in scores.items()}
