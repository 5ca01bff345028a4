"""Figures without a window and without matplotlib's global state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def new_figure(width: float, height: float) -> Any:
    """A matplotlib figure of that size in inches, to be drawn on and saved as PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    fig = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(fig)
    return fig


def grid_lines(ax: Any, **options: Any) -> None:
    """Pale lines behind the curves."""
    ax.grid(True, color="0.9", linewidth=0.8, **options)
    ax.set_axisbelow(True)


def band(
    ax: Any, x: Sequence[float] | np.ndarray, values: Any, style: dict[str, Any], *, error: bool = False, **more: Any
) -> None:
    """Values (runs, points): their mean, and a band of one standard deviation; of their logarithms on such an axis.

    ``error``: of one standard error of the mean.
    """
    runs, logarithmic = np.array(values, dtype=float), ax.get_yscale() == "log"
    if logarithmic:
        runs = np.log(np.maximum(runs, np.finfo(float).tiny))
    mean, std = runs.mean(0), runs.std(0, ddof=int(len(runs) > 1)) / (len(runs) ** 0.5 if error else 1.0)
    edges = (mean, mean - std, mean + std)
    middle, low, high = map(np.exp, edges) if logarithmic else edges
    ax.plot(x, middle, **style, **more)
    if len(runs) > 1:
        ax.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0)


def logarithmic_labels(ax: Any) -> None:
    """A logarithmic vertical axis whose ticks are 1, 2, 5, 10, … as plain numbers."""
    from matplotlib.ticker import LogLocator, NullFormatter

    ax.set(yscale="log")
    ax.yaxis.set(major_locator=LogLocator(subs=(1, 2, 5)), major_formatter="{x:g}", minor_formatter=NullFormatter())
