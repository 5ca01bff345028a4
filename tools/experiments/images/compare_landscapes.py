"""Figures of a comparison: validation NLL against the learning rate, and test error on planes through samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from experiments.harness.figures import grid_lines, new_figure
from experiments.harness.tuning import Tuning
from experiments.images.compare_report import BudgetReport
from experiments.images.compare_styles import styles
from experiments.images.methods import Setting
from experiments.images.report import label
from experiments.images.result import Result

COLUMNS = 4


def best_by_rate(tuning: Tuning[Setting, Result]) -> dict[float, float | None]:
    """The lowest mean validation NLL at each learning rate that was tried, over what else was tuned; None where all
    diverged."""
    found: dict[float, float | None] = {}
    for setting in sorted(tuning.trials):
        score = tuning.mean(setting)
        before = found.setdefault(setting.lr, score)
        if score is not None and (before is None or score < before):
            found[setting.lr] = score
    return found


def step_size_figure(path: Path, report: BudgetReport, title: str) -> None:
    """Validation NLL against the learning rate, a panel a method; all others pale behind it.

    From the trials of the tuning: at each rate the best of what else was tuned. The chosen rate is ringed, a cross at
    the upper edge is a rate at which every run diverged.
    """
    from matplotlib.ticker import LogLocator, NullFormatter

    curves = {name: best_by_rate(tuning) for name, tuning in report.tuning.items() if not tuning.given}
    scores = [score for curve in curves.values() for score in curve.values() if score is not None]
    rates = [rate for curve in curves.values() for rate in curve]
    if not scores:
        return
    looks = styles(report)
    columns = min(COLUMNS, len(curves))
    rows = -(-len(curves) // columns)
    fig = new_figure(max(3.6 * columns, 6.0), 2.7 * rows + 0.9)
    axes = fig.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flatten()
    # One rate far too large must not press all others together: what lies higher is cut off.
    low, high = min(scores), min(max(scores), 4 * float(np.median(scores)))
    room = 0.08 * (high - low) + 1e-3
    for ax, (method, curve) in zip(axes, curves.items()):
        for other in curves.values():
            ax.plot(*_points(other), color="0.85", linewidth=0.8)
        style: dict[str, Any] = {"color": looks[method]["color"]} if method in looks else {"color": "0.3"}
        ax.plot(*_points(curve), **style, marker="o", markersize=3.5)
        broken = [rate for rate, score in curve.items() if score is None]
        ax.plot(broken, [high] * len(broken), linestyle="", marker="x", color=style["color"])
        chosen = report.tuning[method].chosen.lr
        ax.plot([chosen], [curve[chosen]], linestyle="", marker="o", markersize=10, fillstyle="none", color="0.2")
        ax.set(xscale="log", xlim=(min(rates) / 1.5, max(rates) * 1.5), ylim=(low - room, high + room))
        if low > 0:  # of a regression it need not be
            ax.set(yscale="log", ylim=(0.9 * low, 1.1 * high))
            ax.yaxis.set(
                major_locator=LogLocator(subs=(1, 2, 5)), major_formatter="{x:g}", minor_formatter=NullFormatter()
            )
        ax.set_title(label(report.runs[method]), fontsize=10)
        grid_lines(ax)
    for ax in axes[len(curves) :]:
        ax.remove()
    fig.supxlabel("learning rate", fontsize=10)
    fig.supylabel("validation NLL [nats]", fontsize=10)
    fig.suptitle(f"{title}; ringed: chosen, ×: diverged, far too high values cut off", fontsize=11)
    fig.savefig(path, dpi=120)


def _points(curve: dict[float, float | None]) -> tuple[list[float], list[float]]:
    """Rates and scores; a gap where a rate diverged."""
    return list(curve), [np.nan if score is None else score for score in curve.values()]


def plane_figure(path: Path, report: BudgetReport, title: str) -> None:
    """Test error on the plane through three samples of the first seed's run, a panel a method, in one scale of colours.

    The axes are distances between weights; the samples are marked 1, 2, 3 in the order of the run.
    """
    found = {label(results): results[0].plane for results in report.runs.values() if results[0].plane}
    if not found:
        return
    columns = min(COLUMNS, len(found))
    rows = -(-len(found) // columns)
    fig = new_figure(max(3.7 * columns + 0.8, 6.5), 3.3 * rows + 0.9)
    axes = fig.subplots(rows, columns, squeeze=False).flatten()
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
    for ax in axes[len(found) :]:
        ax.remove()
    fig.colorbar(drawn, ax=list(axes[: len(found)]), label="test error", pad=0.02, format="{x:.3g}", ticks=levels[::4])
    fig.supxlabel("distance between weights", fontsize=10)
    fig.suptitle(f"{title}; planes through the first, the middle and the last sample", fontsize=11)
    fig.savefig(path, dpi=120)
