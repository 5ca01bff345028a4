"""An empty figure, without a window and without matplotlib's global state."""

from __future__ import annotations

from typing import Any


def new_figure(width: float, height: float) -> Any:
    """A matplotlib figure of that size in inches, to be drawn on and saved as PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    fig = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(fig)
    return fig
