"""Figures of predictions and samples.

Each function draws into the Matplotlib ``Axes`` given as ``ax``, or into those of a new figure, and returns them;
save with ``axes.figure.savefig("name.png", dpi=150)``. Figures are made without pyplot: no window opens, nothing
stays behind in global state.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from learned_samplers.base.optional import require
from learned_samplers.checks import HeldOutReport
from learned_samplers.diagnostics import LossLines
from learned_samplers.metrics import calibration_bins, ece
from learned_samplers.posterior.figure import PALETTE, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DASHES = ("-", "--", "-.", ":")


def _axes(ax: Axes | None, size: tuple[float, float] = (5.0, 4.0)) -> Axes:
    if ax is not None:
        return ax
    return new_figure(size).add_subplot()


def _finish(ax: Axes, title: str | None) -> Axes:
    ax.grid(True, color="0.9", linewidth=0.8)
    ax.set_axisbelow(True)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    if title:
        ax.set_title(title)
    return ax


def _styles() -> Any:
    """Colour and dash pairs: all colours with one dash before the next dash."""
    return cycle([(color, dash) for dash in DASHES for color in PALETTE])


def _integers() -> Any:
    return require("matplotlib.ticker", "plots").MaxNLocator(integer=True)


def _legend_beside(ax: Axes, title: str | None = None) -> None:
    # Beside the axes, where it covers no data whatever these are.
    place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.02, 1.0), "borderaxespad": 0}
    ax.legend(**place, frameon=False, title=title, alignment="left")


def reliability_diagram(
    probs: Any, labels: Any, ax: Axes | None = None, *, num_bins: int = 15, title: str | None = None
) -> Axes:
    """Accuracy against confidence in bins, with the gap to the diagonal and the share of examples in each bin.

    Args:
        probs: (N, C) predicted probabilities.
        labels: (N,) integers.
        num_bins: bins of equal width on [0, 1], those of :func:`learned_samplers.metrics.ece`; its value heads the
            legend.

    Raises:
        TypeError, ValueError: as for :func:`learned_samplers.metrics.ece`.
    """
    bins = calibration_bins(probs, labels, num_bins)
    error = ece(probs, labels, num_bins)
    ax = _axes(ax, (6.4, 4.0))
    left = np.arange(num_bins) / num_bins
    width = 1 / num_bins
    held = (bins.num_examples > 0).cpu().numpy()
    accuracy, confidence = bins.accuracy.cpu().numpy(), bins.confidence.cpu().numpy()
    share = (bins.num_examples / bins.num_examples.sum()).cpu().numpy()
    ax.bar(left, share, width, align="edge", color="0.85", label="share of examples")
    ax.plot([0, 1], [0, 1], color="0.4", linestyle="--", linewidth=1, label="perfect calibration")
    ax.vlines(confidence[held], confidence[held], accuracy[held], color=PALETTE[1], linewidth=2, label="gap")
    ax.plot(confidence[held], accuracy[held], "o-", color=PALETTE[0], markersize=4, label="accuracy in bin")
    ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence (largest probability)", ylabel="accuracy")
    _legend_beside(ax, f"ECE {error:.3f} ({num_bins} bins)")
    return _finish(ax, title)


def _numbers(name: str, values: Any) -> np.ndarray:
    """(R, K) numbers."""
    array = values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else values
    try:
        array = np.atleast_2d(np.asarray(array, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be numbers, got {type(values).__name__}") from error
    if array.ndim != 2 or not array.size:
        raise ValueError(f"{name} must have shape (K,) or (R, K), got {array.shape}")
    return array


def cosine_similarity_map(similarity: Any, ax: Axes | None = None, *, title: str | None = None) -> Axes:
    """Heat map of the cosine similarities between samples, with the colour scale fixed to [−1, 1].

    Args:
        similarity: (K, K) as from :func:`learned_samplers.diagnostics.cosine_similarity`; K ≤ 8 also get their numbers.

    Raises:
        ValueError: not a square matrix of numbers in [−1, 1].
    """
    matrix = np.asarray(similarity, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.size:
        raise ValueError(f"similarity must have shape (K, K), got {matrix.shape}")
    if not (np.abs(matrix) <= 1 + 1e-6).all():
        raise ValueError(f"similarity must lie in [-1, 1], got {matrix[~(np.abs(matrix) <= 1 + 1e-6)][0]}")
    ax = _axes(ax, (5.0, 4.2))
    image = ax.imshow(matrix, vmin=-1, vmax=1, cmap="PuOr_r", interpolation="nearest")
    count = len(matrix)
    if count <= 8:
        for i, j in np.ndindex(count, count):
            # White on the dark ends of the scale.
            color = "white" if abs(matrix[i, j]) > 0.6 else "black"
            ax.text(j, i, f"{matrix[i, j]:.2f}", ha="center", va="center", fontsize=8, color=color)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(_integers())
    ax.set(xlabel="sample", ylabel="sample")
    ax.figure.colorbar(image, ax=ax, label="cosine similarity")
    if title:
        ax.set_title(title)
    return ax


def loss_barriers(
    lines: Mapping[str, LossLines] | LossLines,
    ax: Axes | None = None,
    *,
    ylabel: str = "loss",
    title: str | None = None,
) -> Axes:
    """Losses along the straight lines between samples: thin lines for the pairs, a thick one for their mean.

    Args:
        lines: from :func:`learned_samplers.diagnostics.loss_lines`; several by name, for comparison.
        ylabel: what was evaluated, with its unit.

    Raises:
        TypeError, ValueError: not such lines, or none.
    """
    named = {"": lines} if isinstance(lines, LossLines) else dict(lines)
    if not named:
        raise ValueError("lines must hold at least one set of lines, got none")
    for name, value in named.items():
        if not isinstance(value, LossLines):
            raise TypeError(f"lines[{name!r}] must be LossLines, got {type(value).__name__}")
    ax = _axes(ax, (6.4, 4.0))
    styles = _styles()
    for name, value in named.items():
        color, dash = next(styles)
        if len(value.losses) > 1:
            ax.plot(value.positions, value.losses.T, color=color, linewidth=0.8, alpha=0.35)
        pairs = f"{len(value.pairs)} pair{'s' if len(value.pairs) > 1 else ''}"
        label = f"{name}: {pairs}," if name else f"{pairs},"
        label += f"\nmean barrier {value.barriers.mean():.3g}"
        ax.plot(value.positions, value.losses.mean(0), color=color, linestyle=dash, linewidth=2.2, label=label)
    ax.set(xlabel="position t on the line (1−t)·θ + t·θ′", ylabel=ylabel, xlim=(0, 1))
    _legend_beside(ax)
    return _finish(ax, title)


def held_out_path(report: HeldOutReport, ax: Axes | None = None, *, title: str | None = None) -> Axes:
    """NLL of held-out rows along a path of priors or temperatures, with the standard errors of the differences.

    Args:
        report: from `suggest_prior` or `suggest_temperature`.

    Raises:
        TypeError: it is no such report.
    """
    if not isinstance(report, HeldOutReport):
        raise TypeError(f"report must be a HeldOutReport, got {type(report).__name__}")
    ax = _axes(ax, (5.0, 3.4))
    values, losses, errors = ([getattr(row, key) for row in report.rows] for key in ("value", "nll", "error"))
    style: dict[str, Any] = {"color": PALETTE[0], "marker": "o", "markersize": 4, "capsize": 3, "linewidth": 1.4}
    ax.errorbar(values, losses, errors, **style)
    for value, name, dash in ((report.suggested, "suggested", "--"), (report.present, "yours", ":")):
        ax.axvline(value, color=PALETTE[1], linestyle=dash, linewidth=1.4, label=f"{name}: {value:.3g}")
    ax.legend(frameon=False)
    ax.set(xscale="log", xlabel=report.quantity, ylabel="NLL of held-out rows")
    return _finish(ax, title)
