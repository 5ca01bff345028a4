"""Functions of one variable with a gap in their data: samples at training points, and what is measured over regions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.harness.figures import new_figure

Intervals = tuple[tuple[float, float], tuple[float, float]]


def training_points(
    ranges: Intervals, counts: tuple[int, int], noise: float, seed: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Inputs, uniform on two intervals, and sin(x) plus noise, (N, 1) each."""
    stream = torch.Generator().manual_seed(seed)
    parts = [
        low + (high - low) * torch.rand(count, generator=stream, dtype=dtype)
        for (low, high), count in zip(ranges, counts, strict=True)
    ]
    x = torch.cat(parts)[:, None]
    return x, x.sin() + noise * torch.randn(len(x), generator=stream, dtype=dtype)[:, None]


def regions(grid: Tensor, ranges: Intervals) -> dict[str, Tensor]:
    """Masks of the grid: where the data are, between them, and beyond them."""
    x = grid[:, 0]
    inside = torch.stack([(x >= low) & (x <= high) for low, high in ranges]).any(0)
    gap = (x > ranges[0][1]) & (x < ranges[1][0])
    return {"at the data": inside, "in the gap": gap, "outside": ~(inside | gap)}


def deviations(values: Tensor, grid: Tensor, ranges: Intervals, reference: Tensor | None = None) -> dict[str, float]:
    """Mean standard deviation of the function (K, n) over each region; also its ratio to that of a reference, and the
    mean distance of both means."""
    scores = {}
    for name, where in regions(grid, ranges).items():
        scores[f"deviation {name}"] = values.std(0)[where].mean().item()
        if reference is not None:
            scores[f"ratio {name}"] = scores[f"deviation {name}"] / reference.std(0)[where].mean().item()
            scores[f"mean {name}"] = (values.mean(0) - reference.mean(0))[where].abs().mean().item()
    return scores


def draw(path: Path, functions: Mapping[str, Tensor], grid: Tensor, data: tuple[Tensor, Tensor], limit: float) -> None:
    """Draw mean and 95 % interval of the function under each method."""
    fig = new_figure(2.6 * len(functions) + 0.6, 3.2)
    x = grid[:, 0]
    panels: Any = fig.subplots(1, len(functions), sharey=True, squeeze=False)[0]
    for axes, (name, values) in zip(panels, functions.items(), strict=True):
        low, high = torch.quantile(values, torch.tensor([0.025, 0.975], dtype=values.dtype), dim=0)
        axes.fill_between(x, low, high, alpha=0.3, linewidth=0, label="95 % of the samples")
        axes.plot(x, values.mean(0), label="mean")
        axes.plot(x, x.sin(), color="black", linestyle="--", linewidth=1, label="sin x")
        axes.plot(data[0], data[1], ".", color="grey", markersize=2, alpha=0.6, zorder=0, label="data")
        axes.set(title=name.replace("(", "\n("), xlabel="x", xlim=(float(x[0]), float(x[-1])), ylim=(-limit, limit))
    panels[0].set_ylabel("y")
    handles, labels = panels[0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=len(labels), markerscale=5)
    fig.savefig(path, dpi=120)
