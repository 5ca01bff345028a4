"""The command `bandits`: a table, a figure, one JSON file."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from experiments.bandits.experiment import SCALES, WHEELS, BanditOptions, Runs
from experiments.bandits.posteriors import METHODS
from experiments.harness.figures import grid_lines, new_figure
from experiments.harness.output import counted, write_outputs
from experiments.harness.tables import markdown, spread

Played = dict[str, dict[str, list[dict[str, Any]]]]  # problem → method → its runs, one a seed


def title(problem: str) -> str:
    return f"wheel, δ = {WHEELS[problem]}" if problem in WHEELS else problem


def figure(path: Path, runs: Played) -> None:
    """A panel a problem: relative regret against rounds, the mean over seeds and its standard deviation."""
    columns = min(3, len(runs))
    rows = -(-len(runs) // columns)
    fig = new_figure(3.6 * columns + 0.3, 2.9 * rows + 0.5)
    axes = fig.subplots(rows, columns, squeeze=False).flatten()
    colours = dict(zip(METHODS, ("#D55E00", "#0072B2", "#009E73"), strict=True))
    for ax, (problem, methods) in zip(axes, runs.items()):
        for method, results in methods.items():
            curves = torch.tensor([r["relative_regret"] for r in results])
            # The first pulls are the same for all; before one of them costs anything there is nothing on this axis.
            begun = int((curves > 0).all(0).int().argmax())
            curves, x = curves[:, begun:], results[0]["rounds"][begun:]
            mean = curves.mean(0)
            ax.plot(x, mean, color=colours[method], label=method)
            if len(results) > 1:
                std = curves.std(0)
                ax.fill_between(x, (mean - std).clamp_min(1), mean + std, color=colours[method], alpha=0.2, linewidth=0)
        ax.set(title=title(problem), yscale="log", ylim=(1, 200), xlabel="rounds", ylabel="regret, % of uniform")
        ax.set_yticks((1, 2, 5, 10, 20, 50, 100, 200), minor=False)
        ax.set_yticks((), minor=True)
        ax.yaxis.set_major_formatter("{x:g}")
        grid_lines(ax)
    for ax in axes[len(runs) :]:
        ax.remove()
    handles, labels = axes[0].get_legend_handles_labels()
    # Two fit under a panel.
    fig.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 2 * columns))
    fig.savefig(path, dpi=110)


def bandits(options: BanditOptions, command: str) -> None:
    """Play everything, and write table (a row a problem: relative regrets after the last round), figure and numbers."""
    runs = Runs(options).all()
    rows = [
        {"problem": title(problem)} | {m: spread([r["relative_regret"][-1] for r in each], 2) for m, each in by.items()}
        for problem, by in runs.items()
    ]
    note = (
        f"cumulative regret after {options.budget.contexts:,} rounds in % of uniform choice, mean ± standard deviation "
        f"over {counted(options.seeds, 'seed')}"
    )
    text = f"{markdown(rows)}\n\n{note}"
    settings = {"budget": asdict(options.budget), "scales": SCALES}
    write_outputs(options.out, command, text, {"settings": settings, "runs": runs})
    figure(options.out / "figure.png", runs)
    print(f"\n{text}\nwritten to {options.out}")
