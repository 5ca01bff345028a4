"""The figures of `compare.py`: scores against samples, modes, temperatures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from _compare_report import BudgetReport
from _figure import new_figure
from _measures import KINDS, overall
from _report import finished, label

from learned_samplers import plots
from learned_samplers.diagnostics import LossLines

SMOOTHING = 5  # points of a run over which a temperature is averaged in its figure


def figure_1(path: Path, report: BudgetReport, title: str) -> None:
    """Accuracy and NLL of the average against the number of samples in it, mean ± standard deviation over seeds."""
    fig = new_figure(15, 4.6)
    axes = fig.subplots(1, 2)
    panels = (("accuracy_curve", plots.accuracy_against_samples), ("nll_curve", plots.nll_against_samples))
    for ax, (attribute, plot) in zip(axes, panels):
        curves, references = {}, {}
        for results in report.runs.values():
            values = [getattr(result, attribute) for result in finished(results)]
            if values and len(values[0]) == 1:
                references[label(results)] = float(np.mean(values))
            elif values:
                curves[label(results)] = values
        if curves:
            plot(curves, ax, references=references)
    # One legend for both panels.
    if axes[1].get_legend() is not None:
        axes[0].get_legend().remove()
    fig.suptitle(title)
    fig.savefig(path, dpi=150)


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
    """Kinetic and configurational temperature of all weights over the first seed's run, a line for each sampler."""
    fig = new_figure(15, 4.6)
    axes = fig.subplots(1, 2)
    for ax, kind in zip(axes, KINDS):
        # Numbered as the curves of figure 1, so that a method keeps its colour.
        for number, results in enumerate(each for each in report.runs.values() if len(each[0].accuracy_curve) > 1):
            points = results[0].temperatures
            values = np.array([overall(point["groups"], kind) for point in points], dtype=float)
            if not points or np.isnan(values).all():
                continue
            steps, means = running_mean(np.array([point["step"] for point in points]), values)
            # A logarithmic axis has no place for the negative values that θ·∇U can have far from equilibrium.
            shown = np.where(means > 0, means, np.nan)
            color, dash = plots.PALETTE[number % len(plots.PALETTE)], plots.DASHES[number // len(plots.PALETTE)]
            ax.plot(steps, shown, color=color, linestyle=dash, label=label(results))
        ax.axhline(report.settings.temperature, color="0.4", linestyle=":", label="target")
        ax.axvline(report.settings.burn_in * report.budget, color="0.7", linewidth=0.8)
        ax.set(yscale="log", xlabel="gradient evaluations", ylabel=f"{kind} temperature")
        ax.grid(True, color="0.9", linewidth=0.8)
        ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.02, 1.0), borderaxespad=0)
    fig.suptitle(f"{title}; means of {SMOOTHING} points, the vertical line is the end of burn-in")
    fig.savefig(path, dpi=150)


def validation_figure(path: Path, report: BudgetReport, title: str) -> None:
    """NLL and accuracy of the current weights on validation images over a run, mean ± standard deviation over seeds."""
    per_epoch = report.settings.steps_per_epoch(report.num_data)
    fig = new_figure(12, 4.2)
    axes, curves = fig.subplots(1, 2), 0
    for number, results in enumerate(each for each in report.runs.values() if len(each[0].accuracy_curve) > 1):
        runs = [np.array(result.validation_curve) for result in finished(results) if result.validation_curve]
        if not runs:  # made before there were such curves
            continue
        points = np.stack([run[: min(map(len, runs))] for run in runs])
        color, dash = plots.PALETTE[number % len(plots.PALETTE)], plots.DASHES[number // len(plots.PALETTE)]
        for ax, column in zip(axes, (1, 2)):
            mean, std = points[..., column].mean(0), points[..., column].std(0)
            ax.plot(points[0, :, 0] / per_epoch, mean, color=color, linestyle=dash, label=label(results))
            ax.fill_between(points[0, :, 0] / per_epoch, mean - std, mean + std, color=color, alpha=0.15, linewidth=0)
        curves += 1
    if not curves:
        return
    axes[0].set(xlabel="epochs", ylabel="NLL of the current weights (nats)", yscale="log")
    axes[1].set(xlabel="epochs", ylabel="accuracy of the current weights")
    for ax in axes:
        ax.grid(True, color="0.9", linewidth=0.8)
    axes[1].legend(frameon=False, loc="lower right")
    fig.suptitle(f"{title}; validation images")
    fig.savefig(path, dpi=110)


def running_mean(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means over windows of `SMOOTHING` points (all of them, where there are fewer), at the windows' ends."""
    width = min(SMOOTHING, len(values))
    return steps[width - 1 :], np.convolve(values, np.ones(width) / width, mode="valid")
