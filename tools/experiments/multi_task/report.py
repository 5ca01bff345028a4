"""What `multi_task.py` leaves behind: tables, a figure, one JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from experiments.common.figure import new_figure
from experiments.images.report import markdown, mean_and_std, spread
from experiments.multi_task.methods import ENERGIES, METHODS
from experiments.multi_task.runner import Result
from learned_samplers import plots

#: Score → heading, factor, decimals.
SCORES = {"accuracy": ("accuracy %", 100, 2), "brier": ("Brier", 1, 4), "ece": ("ECE %", 100, 2)}

Finals = Mapping[str, Mapping[str, Sequence[Result]]]  # data set → method → its runs, one a seed


def finished(results: Sequence[Result]) -> list[Result]:
    """The runs that did not diverge."""
    return [result for result in results if result.diverged is None]


def label(results: Sequence[Result]) -> str:
    failed = len(results) - len(finished(results))
    return METHODS[results[0].method].label + (f" ({failed} of {len(results)} diverged)" if failed else "")


def values(results: Sequence[Result], score: str, task: int) -> list[float]:
    return [SCORES[score][1] * result.scores[score][task] for result in finished(results)]


def overconfidence(result: Result) -> float:
    """Mean confidence less accuracy in %, mean over the tasks: below zero where the ensemble is better than it says."""
    gaps = []
    for task in result.bins:
        confidence, accuracy, count = (np.array(task[key]) for key in ("confidence", "accuracy", "num_examples"))
        gaps.append(float((count * (confidence - accuracy)).sum() / count.sum()))
    return 100 * float(np.mean(gaps))


def score_table(finals: Finals, tasks: Mapping[str, Sequence[str]], score: str) -> str:
    """A row a data set and task, a column a method, as the paper's Table 1."""
    names = dict.fromkeys(name for methods in finals.values() for name in methods)
    table = []
    for dataset, methods in finals.items():
        for k, task in enumerate(tasks[dataset]):
            cells = {METHODS[name].label: cell(methods.get(name, ()), score, k) for name in names}
            table.append({"data set, task": f"{dataset}, {task}", **cells})
    return markdown(table)


def cell(results: Sequence[Result], score: str, task: int) -> str:
    """Mean ± standard deviation over the runs that did not diverge, and how many did."""
    text, failed = spread(values(results, score, task), SCORES[score][2]), len(results) - len(finished(results))
    return f"{text} ({failed} of {len(results)} diverged)" if failed else text


def run_table(finals: Finals) -> str:
    """What was chosen and what came of it: a row a data set and method."""
    table = []
    for dataset, methods in finals.items():
        for runs in methods.values():
            good = finished(runs)
            single = [100 * float(np.mean(r.members["accuracy"])) for r in good]
            weights = [r.weights for r in good if r.weights is not None]
            row = {
                "data set, method": f"{dataset}, {label(runs)}",
                "lr": f"{runs[0].lr:g}",
                "energy": runs[0].energy.replace("_", " ") if METHODS[runs[0].method].repels else "–",
                "best epoch": ", ".join(str(r.best_epoch) for r in good),
                "validation NLL": spread([r.validation_nll for r in good if r.validation_nll is not None], 4),
                "accuracy % of one particle": spread(single, 2),
                "confidence − accuracy %": spread([overconfidence(r) for r in good], 1),
                "weights": ", ".join(f"{w:.2f}" for w in np.mean(weights, 0)) if weights else "–",
                "seconds": spread([r.seconds for r in runs], 0, with_std=False),
            }
            table.append(row)
    return markdown(table)


def tuning_table(trials: Mapping[str, Mapping[str, Sequence[Result]]]) -> str:
    """Validation NLL of everything that was tried, a row a data set and method, a column a scale of the energies."""

    def tried(runs: Sequence[Result], energy: str) -> str:
        chosen = sorted((run for run in runs if run.energy == energy), key=lambda run: run.lr)
        scores = ["diverged" if run.validation_nll is None else f"{run.validation_nll:.3f}" for run in chosen]
        return ", ".join(f"{run.lr:g}: {score}" for run, score in zip(chosen, scores, strict=True)) or "–"

    return markdown(
        [
            {
                "data set, method": f"{dataset}, {METHODS[name].label}",
                **{energy.replace("_", " "): tried(runs, energy) for energy in ENERGIES},
            }
            for dataset, methods in trials.items()
            for name, runs in methods.items()
        ]
    )


def write_results(
    path: Path, finals: Finals, trials: Mapping[str, Mapping[str, Sequence[Result]]], tasks: Mapping[str, Any],
    command: str,
) -> None:  # fmt: skip
    """Everything as numbers."""
    content: dict[str, Any] = {}
    for dataset, methods in finals.items():
        content[dataset] = {}
        for method, runs in methods.items():
            scores = {
                f"{score}, {task}": mean_and_std(values(runs, score, k))
                for score in SCORES
                for k, task in enumerate(tasks[dataset])
                if finished(runs)
            }
            content[dataset][method] = {
                "tuning": [
                    {
                        "lr": r.lr,
                        "energy": r.energy,
                        "epochs": r.epochs,
                        "seed": r.seed,
                        "validation_nll": r.validation_nll,
                    }
                    for r in trials.get(dataset, {}).get(method, ())
                ],
                "mean": {key: mean for key, (mean, _) in scores.items()},
                "std": {key: std if len(finished(runs)) > 1 else None for key, (_, std) in scores.items()},
                "runs": [{k: v for k, v in asdict(r).items() if k != "settings"} for r in runs],
            }
    first = next(iter(next(iter(finals.values())).values()))[0]
    path.write_text(json.dumps({"command": command, "settings": first.settings, "data sets": content}, indent=1))


def figure(path: Path, finals: Finals, tasks: Mapping[str, Sequence[str]]) -> None:
    """A row a score, a column a data set: a method's seeds as points, the tasks beside each other."""
    fig = new_figure(3.6 * len(finals) + 2.4, 7.6)
    axes = fig.subplots(len(SCORES), len(finals), squeeze=False, sharey="row")
    names = list(dict.fromkeys(method for methods in finals.values() for method in methods))
    for row, (score, (heading, _, _)) in zip(axes, SCORES.items(), strict=True):
        for ax, (dataset, methods) in zip(row, finals.items(), strict=True):
            for number, method in enumerate(names):
                runs = methods.get(method, ())
                for k in range(len(tasks[dataset])):
                    found = values(runs, score, k)
                    place = k + 0.8 * (number - (len(names) - 1) / 2) / len(names)
                    color = plots.PALETTE[number % len(plots.PALETTE)]
                    shown = METHODS[method].label if k == 0 else None
                    ax.plot([place] * len(found), found, "o", color=color, markersize=4, alpha=0.7, label=shown)
                    if found:
                        ax.plot([place - 0.05, place + 0.05], [np.mean(found)] * 2, color=color, linewidth=2)
            ax.set_xticks(range(len(tasks[dataset])), [task.replace("_", " ") for task in tasks[dataset]])
            if len(tasks[dataset]) > 3:
                ax.tick_params(axis="x", rotation=60)
            ax.grid(True, axis="y", color="0.9", linewidth=0.8)
            ax.set_axisbelow(True)
            if score == "accuracy":
                ax.set_title(dataset)
        row[0].set_ylabel(heading)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside right upper", frameon=False)
    fig.savefig(path, dpi=110)
