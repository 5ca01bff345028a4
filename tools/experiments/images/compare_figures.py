"""The figures of `compare.py`: scores against samples, modes, temperatures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.harness.figures import grid_lines, new_figure
from experiments.harness.tables import finished
from experiments.images.compare_corruptions import corruption_figure
from experiments.images.compare_landscapes import plane_figure, step_size_figure
from experiments.images.compare_report import BudgetReport, measured
from experiments.images.compare_styles import styles
from experiments.images.measures import KINDS, overall
from experiments.images.methods import METHODS
from experiments.images.report import label
from experiments.images.result import CURVES, Result
from learned_samplers import plots
from learned_samplers.diagnostics import LossLines

PANELS = {"accuracy": "accuracy", "nll": "NLL [nats]", "ece": "ECE", "brier": "Brier score", "kld": "KLD [nats]"}
SMOOTHING = 5  # points of a run over which a temperature is averaged in its figure


def draw(ax: Any, x: np.ndarray, values: Any, style: dict[str, Any], **more: Any) -> None:
    """Values (runs, points): their mean, and a band of one standard deviation; of their logarithms on such an axis."""
    runs, logarithmic = np.array(values, dtype=float), ax.get_yscale() == "log"
    if logarithmic:
        runs = np.log(np.maximum(runs, np.finfo(float).tiny))
    mean, std = runs.mean(0), runs.std(0, ddof=int(len(runs) > 1))
    middle, low, high = (np.exp(each) if logarithmic else each for each in (mean, mean - std, mean + std))
    ax.plot(x, middle, **style, **more)
    if len(runs) > 1:
        ax.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0)


def draw_all(report: BudgetReport, out: Path) -> None:
    """The figures of one budget; of a regression temperatures, movement and step sizes alone."""
    title = f"{report.settings.dataset}, {report.settings.model}, {report.budget} gradients"
    figures = {
        "figure1": figure_1,
        "figure2": figure_2,
        "temperatures": temperature_figure,
        "validation": validation_figure,
        "movement": movement_figure,
        "step_sizes": step_size_figure,
        "planes": plane_figure,
    }
    if not report.num_classes:  # the others are of classes
        figures = {name: figures[name] for name in ("temperatures", "movement", "step_sizes")}
    for name, figure in figures.items():
        figure(out / f"{name}_{report.budget}.png", report, title)
    corruption_figure(out / f"corruptions_{report.budget}.png", report.runs, styles(report), title)


def figure_1(path: Path, report: BudgetReport, title: str) -> None:
    """Scores of the average against the number of samples in it, mean ± standard deviation over seeds; ESS/s; seconds.

    A single network is a dotted line.
    """
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    fig = new_figure(15, 9.5)
    *axes, last = fig.subplots(2, 3).flatten()
    shown = styles(report)
    for ax, (name, first) in zip(axes, CURVES.items()):
        for method, style in shown.items():
            results = finished(report.runs[method])
            values = [getattr(result, f"{name}_curve") for result in results]
            if results[0].num_samples < first:
                continue
            if results[0].num_samples == 1:
                ax.axhline(float(np.mean(values)), **{**style, "linestyle": ":"}, linewidth=1.8)
            else:
                draw(ax, np.arange(first, first + len(values[0])), values, style, marker="o", markersize=3)
        ax.set(xlabel="samples in the average", ylabel=PANELS[name])
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        grid_lines(ax)
    low, high = axes[1].dataLim.intervaly
    if 0 < 10 * low < high:  # one bad method would press all others together
        axes[1].set(yscale="log")
        axes[1].yaxis.set(
            major_locator=LogLocator(subs=(1, 2, 5)), major_formatter="{x:g}", minor_formatter=NullFormatter()
        )
    time_panel(last, {method: finished(report.runs[method]) for method in shown}, shown)
    handles = {label: line for ax in axes for line, label in zip(*ax.get_legend_handles_labels())}
    fig.legend(handles.values(), handles, loc="outside lower center", ncols=4, frameon=False)
    fig.suptitle(title)
    fig.savefig(path, dpi=130)


def time_panel(ax: Any, runs: dict[str, list[Result]], shown: dict[str, dict[str, Any]]) -> None:
    """Bars of ESS/s, each with its value and the seconds of a run, means over seeds."""
    for place, (method, results) in enumerate(runs.items()):
        rates = [rate for result in results if (rate := measured(result)["ess_per_second"]) is not None]
        rate = float(np.mean(rates)) if rates else None
        ax.barh(-place, rate or 0, color=shown[method]["color"], alpha=0.35)
        text = "no ESS" if rate is None else f"{rate:.3g}/s"
        seconds = float(np.mean([result.seconds for result in results]))
        ax.text(
            0.01,
            -place,
            f"{shown[method]['label']}: {text}, {seconds:.3g} s",
            va="center",
            transform=ax.get_yaxis_transform(),
        )
    ax.set(xlabel="effective samples per second; seconds of a run", yticks=[])
    ax.set_xlim(left=0)


def figure_2(path: Path, report: BudgetReport, title: str) -> None:
    """Test error on the lines between consecutive samples, and cosine similarities of the samples; first seed."""
    found = {label(results): results[0].modes for results in report.runs.values() if results[0].modes}
    if not found:
        return
    columns = min(4, len(found))
    rows = -(-len(found) // columns)
    fig = new_figure(max(4.0 * columns, 9.0), 4.6 + 3.4 * rows)
    top, bottom = fig.subfigures(2, 1, height_ratios=[4.6, 3.4 * rows])
    plots.loss_barriers(
        {name: error_lines(modes) for name, modes in found.items()}, top.subplots(), ylabel="test error"
    )
    axes = bottom.subplots(rows, columns, squeeze=False).flatten()
    for ax, (name, modes) in zip(axes, found.items()):
        plots.cosine_similarity_map(modes["cosine_similarity"], ax, title=name)
    for ax in axes[len(found) :]:
        ax.remove()
    fig.suptitle(title)
    fig.savefig(path, dpi=150)


def error_lines(modes: dict[str, Any]) -> LossLines:
    losses = np.array(modes["test_error"])
    return LossLines([(k, k + 1) for k in range(len(losses))], np.array(modes["positions"]), losses)


def temperature_figure(path: Path, report: BudgetReport, title: str) -> None:
    """Kinetic and configurational temperature of all weights over the first seed's run, a line for each sampler.

    Dotted lines are the temperatures asked for, vertical ones the ends of burn-in; each method has its own, where they
    are tuned.
    """
    first = {method: report.runs[method][0] for method in styles(report)}
    points = {method: run.temperatures for method, run in first.items() if run.temperatures and not run.diverged}
    if not points:
        return
    targets = _colors({method: first[method].settings["temperature"] for method in points}, report)
    chains = {method: first[method].settings for method in points if not METHODS[first[method].method].cyclical}
    ends = _colors({method: settings["burn_in"] for method, settings in chains.items()}, report)
    fig = new_figure(15, 4.6)
    axes = fig.subplots(1, 2)
    for ax, kind in zip(axes, KINDS):
        for method, found in points.items():
            values = np.array([overall(point["groups"], kind) for point in found], dtype=float)
            if np.isnan(values).all():
                continue
            steps, means = running_mean(np.array([point["step"] for point in found]), values)
            # A logarithmic axis has no place for the negative values that θ·∇U can have far from equilibrium.
            ax.plot(steps, np.where(means > 0, means, np.nan), **styles(report)[method])
        for temperature, color in targets.items():
            ax.axhline(temperature, color=color, linestyle=":", label=f"target {temperature:g}")
        for share, color in ends.items():
            ax.axvline(share * report.budget, color=color, linewidth=0.8)
        ax.set(yscale="log", xlabel="gradient evaluations", ylabel=f"{kind} temperature")
        grid_lines(ax)
        ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.02, 1.0), borderaxespad=0)
    fig.suptitle(f"{title}; means of {SMOOTHING} points, vertical lines are the ends of burn-in")
    fig.savefig(path, dpi=150)


def _colors(values: dict[str, float], report: BudgetReport) -> dict[float, str]:
    """The different values, each in the colour of its method, in grey where it is that of several or all."""
    owners: dict[float, list[str]] = {}
    for method, value in values.items():
        owners.setdefault(value, []).append(method)
    alone = len(owners) > 1
    return {
        value: styles(report)[methods[0]]["color"] if alone and len(methods) == 1 else "0.5"
        for value, methods in owners.items()
    }


def validation_figure(path: Path, report: BudgetReport, title: str) -> None:
    """NLL and accuracy of the current weights on validation images over a run, mean ± standard deviation over seeds."""
    per_epoch = report.settings.steps_per_epoch(report.num_data)
    fig = new_figure(14, 4.2)
    axes, curves = fig.subplots(1, 2), 0
    for method, style in styles(report).items():
        results = [result for result in finished(report.runs[method]) if result.num_samples > 1]
        runs = [result.validation_curve for result in results if result.validation_curve]
        if not runs:  # a single network
            continue
        points = at_common_steps(runs)
        for ax, column in zip(axes, (1, 2)):
            draw(ax, points[0, :, 0] / per_epoch, points[..., column], style)
        curves += 1
    if not curves:
        return
    axes[0].set(xlabel="epochs", ylabel="NLL of the current weights (nats)", yscale="log")
    axes[1].set(xlabel="epochs", ylabel="accuracy of the current weights")
    for ax in axes:
        grid_lines(ax)
    axes[1].legend(frameon=False, loc="upper left", bbox_to_anchor=(1.02, 1.0), borderaxespad=0)
    fig.suptitle(f"{title}; validation images")
    fig.savefig(path, dpi=110)


def movement_figure(path: Path, report: BudgetReport, title: str) -> None:
    """‖Δθ‖² of single steps and the training loss over a run, mean ± standard deviation of their logarithms over
    seeds (L2E's Figure 3)."""
    per_epoch = report.settings.steps_per_epoch(report.num_data)
    runs = {name: finished(report.runs[name]) for name in styles(report)}
    curves = {name: [r.movement_curve for r in results if r.movement_curve] for name, results in runs.items()}
    if not any(curves.values()):
        return
    fig = new_figure(14, 4.2)
    axes = fig.subplots(1, 2)
    axes[0].set(xlabel="epochs", ylabel="‖Δθ‖² of a step", yscale="log")
    axes[1].set(xlabel="epochs", ylabel="training loss (nats)", yscale="log")
    for method, found in curves.items():
        if not found:
            continue
        points = at_common_steps(found)
        for ax, column in zip(axes, (1, 2)):
            style = styles(report)[method]
            values = np.stack([running_mean(points[0, :, 0], run[:, column])[1] for run in points])
            draw(ax, running_mean(points[0, :, 0], points[0, :, column])[0] / per_epoch, values, style)
    for ax in axes:
        grid_lines(ax)
    axes[1].legend(frameon=False, loc="upper left", bbox_to_anchor=(1.02, 1.0), borderaxespad=0)
    fig.suptitle(f"{title}; means of {SMOOTHING} points")
    fig.savefig(path, dpi=110)


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


def running_mean(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means over windows of `SMOOTHING` points (all of them, where there are fewer), at the windows' ends."""
    width = min(SMOOTHING, len(values))
    return steps[width - 1 :], np.convolve(values, np.ones(width) / width, mode="valid")
