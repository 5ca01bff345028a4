"""The figures of `compare.py`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.compare.corruptions import corruption_figure
from experiments.compare.report import BudgetReport
from experiments.harness.figures import band, grid_lines, legend_beside, logarithmic_labels, new_figure
from experiments.harness.runs.result import CURVES, label
from experiments.harness.tables import finished
from learned_samplers import plots
from learned_samplers.diagnostics import LossLines

PANELS = {"accuracy": "accuracy", "nll": "NLL [nats]", "ece": "ECE", "brier": "Brier score", "kld": "KLD [nats]"}
SMOOTHING = 5  # points of a run over which its steps are averaged
COLUMNS = 4  # of figures with a panel a method

Styles = dict[str, dict[str, Any]]


def draw_all(report: BudgetReport, out: Path) -> None:
    """The figures of one budget; of a regression that of its steps alone."""
    title = f"{report.settings.dataset}, {report.settings.model}, {report.budget} gradients"
    figures: dict[str, Callable[[BudgetReport, str], Any]] = {"movement": movement_figure}
    if report.num_classes:
        more = {"figure1": figure_1, "figure2": figure_2, "validation": validation_figure, "planes": plane_figure}
        figures |= more
    if report.corruptions:
        figures["corruptions"] = lambda report, title: corruption_figure(report.runs, styles(report), title)
    for name, figure in figures.items():
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
    lines = {name: LossLines(**{key: np.array(each) for key, each in m["lines"].items()}) for name, m in found.items()}
    plots.loss_barriers(lines, top.subplots(), ylabel="validation loss (nats)")
    for ax, (name, modes) in zip(_panels(bottom, len(found)), found.items()):
        cosines = np.eye(1 + modes["pairs"][-1][1])
        first, second = np.array(modes["pairs"]).T
        cosines[first, second] = cosines[second, first] = modes["cosines"]
        plots.cosine_similarity_map(cosines, ax, title=name)
    fig.suptitle(title)
    return fig


def validation_figure(report: BudgetReport, title: str) -> Any:
    """NLL and accuracy of the current weights on validation images over a run, mean ± standard deviation over seeds."""
    several = {name: [r for r in finished(report.runs[name]) if r.num_samples > 1] for name in styles(report)}
    curves = {name: [r.validation_curve for r in runs if r.validation_curve] for name, runs in several.items()}
    labels = ("NLL of the current weights (nats)", "accuracy of the current weights")
    return _curves_figure(report, curves, labels, ("log", "linear"), f"{title}; validation images", width=1)


def movement_figure(report: BudgetReport, title: str) -> Any:
    """‖Δθ‖² of single steps and the training loss over a run, mean ± standard deviation of their logarithms over
    seeds (L2E's Figure 3)."""
    runs = {name: finished(report.runs[name]) for name in styles(report)}
    curves = {name: [r.movement_curve for r in results if r.movement_curve] for name, results in runs.items()}
    labels = ("‖Δθ‖² of a step", "training loss (nats)")
    return _curves_figure(report, curves, labels, ("log", "log"), f"{title}; means of {SMOOTHING} points", SMOOTHING)


def _curves_figure(
    report: BudgetReport,
    curves: Mapping[str, Sequence[Any]],
    labels: tuple[str, str],
    scales: tuple[str, str],
    title: str,
    width: int,
) -> Any:
    """Two panels over epochs, of curves (step, first, second), each averaged over ``width`` points."""
    if not any(curves.values()):
        return None
    per_epoch, shown = report.settings.steps_per_epoch(report.num_data), styles(report)
    fig = new_figure(14, 4.2)
    axes = fig.subplots(1, 2)
    for ax, column, name, scale in zip(axes, (1, 2), labels, scales):
        ax.set(xlabel="epochs", ylabel=name, yscale=scale)
        for method, found in curves.items():
            if found:
                points = at_common_steps(found)
                steps = running_mean(points[0, :, 0], points[0, :, 0], width)[0] / per_epoch
                values = np.stack([running_mean(points[0, :, 0], run[:, column], width)[1] for run in points])
                band(ax, steps, values, shown[method])
        grid_lines(ax)
    legend_beside(axes[1])
    fig.suptitle(title)
    return fig


def at_common_steps(curves: Sequence[Sequence[Sequence[float]]]) -> np.ndarray:
    """The curves (step, values …) of several runs, interpolated at the steps of the shortest, (runs, points, columns).

    Runs that were looked at differently often have points at different steps, and one may end before another.
    """
    runs = [np.array(curve, dtype=float) for curve in curves]
    steps = min(runs, key=len)[:, 0]
    steps = steps[(steps >= max(run[0, 0] for run in runs)) & (steps <= min(run[-1, 0] for run in runs))]
    return np.array(
        [np.stack([steps, *(np.interp(steps, run[:, 0], each) for each in run[:, 1:].T)], 1) for run in runs]
    )


def running_mean(steps: np.ndarray, values: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Means over windows of so many points (all of them, where there are fewer), at the windows' ends."""
    width = min(width, len(values))
    return steps[width - 1 :], np.convolve(values, np.ones(width) / width, mode="valid")


def plane_figure(report: BudgetReport, title: str) -> Any:
    """Test error on the plane through three samples of the first seed's run, a panel a method, in one scale of colours.

    The axes are distances between weights; the samples are marked 1, 2, 3 in the order of the run.
    """
    found = {label(results): results[0].plane for results in report.runs.values() if results[0].plane}
    if not found:
        return None
    columns = min(COLUMNS, len(found))
    fig = new_figure(max(3.7 * columns, 6.0), 3.3 * -(-len(found) // columns) + 0.9)
    axes = _panels(fig, len(found))
    errors = np.concatenate([np.ravel(plane["test_error"]) for plane in found.values()])
    levels = np.linspace(errors.min(), max(errors.max(), errors.min() + 1e-3), 21)
    drawn = None
    for ax, (name, plane) in zip(axes, found.items()):
        drawn = ax.contourf(plane["across"], plane["down"], plane["test_error"], levels=levels, cmap="viridis_r")
        for number, (x, y) in enumerate(plane["corners"], start=1):
            ax.plot([x], [y], marker="o", markersize=13, color="white", markeredgecolor="black")
            ax.annotate(str(number), (x, y), ha="center", va="center", fontsize=9)
        ax.set_aspect("equal")
        ax.set_title(name, fontsize=10)
    fig.colorbar(drawn, ax=list(axes), label="test error", pad=0.02, format="{x:.3g}", ticks=levels[::4])
    fig.supxlabel("distance between weights", fontsize=10)
    fig.suptitle(f"{title}; planes through the first, the middle and the last sample", fontsize=11)
    return fig


def _panels(fig: Any, count: int) -> list[Any]:
    """So many panels in rows of `COLUMNS`."""
    columns = min(COLUMNS, count)
    axes = fig.subplots(-(-count // columns), columns, squeeze=False).flatten()
    for ax in axes[count:]:
        ax.remove()
    return list(axes[:count])
