"""Figures of the toy problems: where the particles of every method are."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.harness.figures import grid_lines, new_figure
from experiments.toys.problems import mixture_energies, zdt3_front

#: Step → particles in the plane, (M, 2).
Snapshots = Mapping[int, Tensor]


def rows_figure(path: Path, snapshots: Mapping[str, Snapshots]) -> None:
    """Mixtures: a row a method, a column a step."""
    columns = list(next(iter(snapshots.values())))
    fig = new_figure(2.3 * len(columns) + 0.6, 2.3 * len(snapshots) + 0.5)
    axes = fig.subplots(len(snapshots), len(columns), sharex=True, sharey=True, squeeze=False)
    for row, (name, taken) in zip(axes, snapshots.items(), strict=True):
        row[0].set_ylabel(name.replace(", ", ",\n") + "\n\nx₂")
        for ax, step in zip(row, columns, strict=True):
            densities(ax)
            particles(ax, taken[step])
            ax.set(xlim=(-7, 7), ylim=(-7, 7))
    for ax, step in zip(axes[0], columns, strict=True):
        ax.set_title(f"step {step:,}")
    for ax in axes[-1]:
        ax.set_xlabel("x₁")
    fig.savefig(path, dpi=100)


def panels_figure(path: Path, snapshots: Mapping[str, Snapshots]) -> None:
    """ZDT3: where the particles start, and a panel a method, where they are after the last step."""
    first = next(iter(snapshots.values()))
    panels = {"start": first[0]} | {name: taken[max(first)] for name, taken in snapshots.items()}
    columns = min(4, len(panels))
    rows = -(-len(panels) // columns)
    fig = new_figure(2.6 * columns + 0.3, 2.5 * rows + 0.2)
    axes = fig.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flatten()
    for ax, (name, points) in zip(axes, panels.items()):
        front_lines(ax)
        particles(ax, points)
        ax.set(xlim=(-0.05, 1.05), ylim=(-1, 6), xlabel="f₁", ylabel="f₂")
        ax.set_title(textwrap.fill(name, 28), fontsize="medium")
    for ax in axes[len(panels) :]:
        ax.remove()
    fig.savefig(path, dpi=100)


def particles(ax: Any, points: Tensor) -> None:
    ax.plot(points[:, 0], points[:, 1], ".", color="#D55E00", markersize=5, markeredgecolor="white", mew=0.4)


def densities(ax: Any) -> None:
    grid = torch.linspace(-7, 7, 141)
    x, y = torch.meshgrid(grid, grid, indexing="xy")
    energies = mixture_energies(torch.stack([x.flatten(), y.flatten()], dim=1))
    for energy, colour in zip(energies, ("Blues", "Greens", "Purples"), strict=True):
        ax.contour(x, y, (-energy).exp().view_as(x), levels=4, cmap=colour, linewidths=0.8, vmin=-0.05)
    ax.set_aspect("equal")


def front_lines(ax: Any) -> None:
    for segment in zdt3_front():
        ax.plot(segment[:, 0], segment[:, 1], color="#0072B2", linewidth=2)
    grid_lines(ax)
