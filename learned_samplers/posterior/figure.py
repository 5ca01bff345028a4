"""One figure of a chain: traces, kinetic temperature, agreement of its halves and of chains. Matplotlib when used."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from learned_samplers.base.optional import require
from learned_samplers.posterior.settling import rhat
from learned_samplers.posterior.store import Entry
from learned_samplers.posterior.verdict import COORDINATES, LARGEST_RHAT, Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Okabe and Ito's palette, told apart with every kind of colour vision; its yellow is too pale for lines on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
#: Coordinates whose traces are drawn, and chains that are named.
_TRACES, _NAMED = 3, 7
#: Larger R̂ are drawn here.
_LARGEST_SHOWN = 4.0
#: Samples of a chain, or of a cycle, from which its halves are compared.
_FEWEST = 4


def new_figure(size: tuple[float, float]) -> Figure:
    """Return a figure without pyplot: no window opens, nothing stays behind in global state."""
    figure = require("matplotlib.figure", "plots").Figure(figsize=size, layout="constrained")
    require("matplotlib.backends.backend_agg", "plots").FigureCanvasAgg(figure)
    return figure


def weights_of(samples: Sequence[Mapping[str, Tensor]]) -> tuple[np.ndarray, list[str]]:
    """Return evenly spaced coordinates of the weights, (sample, coordinate), and their names."""
    sizes = {name: tensor.numel() for name, tensor in samples[0].items()}
    total = sum(sizes.values())
    count = min(total, COORDINATES)
    chosen, names, picks, start = (np.arange(count) * total) // count, list[str](), [], 0
    for name, size in sizes.items():
        inside = chosen[(chosen >= start) & (chosen < start + size)] - start
        picks.append((name, inside))
        shape = tuple(samples[0][name].shape)
        names += [f"{name}{[int(i) for i in np.unravel_index(int(flat), shape)]}" for flat in inside]
        start += size
    rows = [
        np.concatenate([sample[name].double().cpu().numpy().ravel()[at] for name, at in picks]) for sample in samples
    ]
    return np.stack(rows), names


def draw(values: np.ndarray, names: Sequence[str], entries: Sequence[Entry], verdict: Verdict) -> Figure:
    """Draw a collection.

    Args:
        values: (sample, coordinate), weights or predictions.
        names: of the coordinates.
        entries: the records of the samples.
        verdict: stands above.
    """
    figure = new_figure((9.5, 6.0))
    figure.suptitle(textwrap.fill(verdict.text, 120), fontsize=10, x=0.01, ha="left")
    parts: Any = figure.subfigures(1, 2, width_ratios=(1.5, 1))
    left, right = parts
    chains = _by(entries, lambda entry: entry.chain)
    _traces(left, values, names, entries, chains)
    upper, lower = right.subplots(2, 1)
    _temperatures(upper, entries, chains)
    _agreement(lower, values, entries)
    for ax in figure.get_axes():
        ax.grid(True, color="0.9", linewidth=0.8)
        ax.set_axisbelow(True)
        ax.spines[["top", "right"]].set_visible(False)
    return figure


def _by(entries: Sequence[Entry], key: Any) -> dict[Any, list[int]]:
    """Return the positions of the samples by a key."""
    positions: dict[Any, list[int]] = {}
    for position, entry in enumerate(entries):
        positions.setdefault(key(entry), []).append(position)
    return positions


def _traces(
    figure: Any, values: np.ndarray, names: Sequence[str], entries: Sequence[Entry], chains: dict[int, list[int]]
) -> None:
    spread = values.std(0)
    pool = np.flatnonzero(spread >= np.median(spread)) if np.isfinite(spread).all() else np.arange(values.shape[1])
    count = min(_TRACES, len(pool))
    shown = pool[((2 * np.arange(count) + 1) * len(pool)) // (2 * count)]
    axes = np.atleast_1d(figure.subplots(count, 1, sharex=True))
    steps = np.array([entry.step for entry in entries])
    for ax, coordinate in zip(axes, shown, strict=True):
        for number, (chain, at) in enumerate(chains.items()):
            label = f"chain {chain}" if number < _NAMED else None
            style = {"color": PALETTE[number % len(PALETTE)], "linewidth": 1.0, "marker": "."}
            ax.plot(steps[at], values[at, coordinate], label=label, markersize=3, **style)
        ax.set_title(names[coordinate], fontsize=9, loc="left")
        ax.ticklabel_format(axis="y", useOffset=False)
    axes[-1].set_xlabel("step")
    if len(chains) > 1:
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)


def _temperatures(ax: Any, entries: Sequence[Entry], chains: dict[int, list[int]]) -> None:
    ax.set(xlabel="step", ylabel="temperature")
    known = [entry for entry in entries if entry.kinetic is not None]
    for number, at in enumerate(chains.values()):
        points = [(entries[k].step, entries[k].kinetic) for k in at if entries[k].kinetic is not None]
        label = "kinetic" if number == 0 else None
        style = {"color": PALETTE[number % len(PALETTE)], "linewidth": 1.0, "marker": "."}
        ax.plot(*zip(*points, strict=True), label=label, markersize=3, **style) if points else None
    asked = sorted((entry.step, entry.temperature) for entry in known if entry.temperature is not None)
    if asked:
        ax.plot(*zip(*asked, strict=True), color="0.3", linestyle="--", linewidth=1.2, label="asked for")
    if known:
        ax.set_ylim(bottom=0)
        ax.legend(frameon=False, fontsize=8)
    else:
        _say(ax, "no kinetic temperature\nwas recorded")


def _agreement(ax: Any, values: np.ndarray, entries: Sequence[Entry]) -> None:
    """Draw the share of coordinates whose R̂ is below a value, between halves of a chain and across chains."""
    ax.set(xlabel="R-hat", ylabel="share of coordinates", ylim=(0, 1.02))
    parts = list(_by(entries, lambda entry: (entry.chain, entry.cycle)).values())
    length = min(map(len, parts))
    if length < _FEWEST or not np.isfinite(values).all():
        why = "predictions are not finite" if length >= _FEWEST else f"R-hat needs {_FEWEST}\nsamples of a chain"
        _say(ax, why)
        return
    half = length // 2
    chains = np.stack([values[at[-length:]] for at in parts])
    halves = np.stack([chains[:, :half], chains[:, length - half :]], 1)
    lines = {"between halves of a chain": np.mean([rhat(chain) for chain in halves], 0)}
    if len(parts) > 1:
        lines[f"across {len(parts)} chains"] = rhat(halves.reshape(2 * len(parts), half, -1))
    for (label, numbers), color, dash in zip(lines.items(), PALETTE, ("-", "--"), strict=False):
        ordered = np.sort(np.minimum(numbers, _LARGEST_SHOWN))
        shares = np.arange(1, len(ordered) + 1) / len(ordered)
        ax.step(ordered, shares, where="post", color=color, linestyle=dash, label=label)
    ax.axvline(LARGEST_RHAT, color="0.3", linestyle=":", linewidth=1.2, label=f"limit between halves, {LARGEST_RHAT:g}")
    ax.axhline(0.9, color="0.7", linewidth=0.8)
    ax.legend(frameon=False, fontsize=8, loc="lower right")


def _say(ax: Any, text: str) -> None:
    """Write why there is nothing to draw."""
    ax.text(0.5, 0.5, text, transform=ax.transAxes, ha="center", va="center")
    ax.set(xticks=[], yticks=[])
