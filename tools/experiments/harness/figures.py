"""Figures without a window and without matplotlib's global state."""

from __future__ import annotations

from typing import Any


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
