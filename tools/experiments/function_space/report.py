"""Tables and figures of the function-space experiments on images and on the sine."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from experiments.function_space.sine import REGIONS
from experiments.harness.figures import grid_lines, new_figure
from experiments.harness.output import settings_of, write_outputs
from experiments.harness.tables import markdown, spread

Results = Mapping[str, Mapping[str, Any]]


def error_rows(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, str]]:
    """A row of text a method: mean ± standard deviation over its runs."""
    return [
        {
            "method": method,
            "test error, %": spread([100 * run["error"] for run in runs], 2),
            "of one network, %": spread([100 * run["error_of_one"] for run in runs], 2),
            "NLL": spread([run["nll"] for run in runs], 4),
            "ECE": spread([run["ece"] for run in runs], 4),
            "Brier": spread([run["brier"] for run in runs], 4),
            "seconds": spread([run["seconds"] for run in runs], 0, with_std=False),
        }
        for method, runs in results.items()
    ]


def attack_tables(results: Results, epsilons: Sequence[float], steps: int) -> str:
    """Accuracy against epsilon under both attacks, as Markdown."""
    parts = []
    for key, title in (("fgsm", "FGSM"), ("iterated", f"Iterated FGSM, {steps} steps")):
        rows = []
        for label, entry in results.items():
            row = {"accuracy at ε =": label}
            for k, epsilon in enumerate(epsilons):
                row[f"{epsilon:g}"] = spread([accuracies[k] for accuracies in entry[key]], 3)
            rows.append(row)
        parts.append(f"{title}:\n\n{markdown(rows)}")
    dead = [{"method": label, "share": spread(entry["without_gradient"], 4)} for label, entry in results.items()]
    parts.append(
        f"Images on which the gradient is exactly zero, so that neither attack moves them:\n\n{markdown(dead)}"
    )
    return "\n\n".join(parts) + "\n"


def accuracy_figure(path: Path, results: Results, epsilons: Sequence[float]) -> None:
    """Accuracy against epsilon, a panel an attack; the mean over the runs."""
    fig = new_figure(9.0, 3.6)
    for axes, (key, title) in zip(
        fig.subplots(1, 2, sharey=True), (("iterated", "iterated FGSM"), ("fgsm", "FGSM")), strict=True
    ):
        for (label, entry), marker in zip(results.items(), "osD^v"):
            means = [statistics.fmean(values) for values in zip(*entry[key], strict=True)]
            axes.plot(epsilons, means, marker=marker, markersize=4, label=label)
        axes.set(title=title, xlabel="ε, largest change of a pixel in [0, 1]", ylim=(0, 1))
        grid_lines(axes)
    fig.axes[0].set_ylabel("accuracy")
    fig.axes[1].legend()
    fig.savefig(path, dpi=130)


def sine_rows(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, str]]:
    """Standard deviation of the function by region, and distance of its mean from HMC's."""
    rows = []
    for label, runs in results.items():
        row = {"method": label}
        for region in REGIONS:
            row[f"deviation {region}"] = spread([run[f"deviation {region}"] for run in runs], 3)
        for region in REGIONS:
            distances = [run[f"mean {region}"] for run in runs]
            row[f"mean's distance from HMC's {region}"] = spread(distances, 3) if any(distances) else ""
        row["seconds"] = spread([run["seconds"] for run in runs], 0, with_std=False)
        rows.append(row)
    return rows


def write(options: Any, command: str, results: dict[str, Any], text: str) -> None:
    """table.md and results.json, and the table on the screen."""
    content = {"settings": settings_of(options), "torch": torch.__version__, **results}
    write_outputs(options.out, command, text, content)
    print(f"\n{text}\nwritten to {options.out}")
