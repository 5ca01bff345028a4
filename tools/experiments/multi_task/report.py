"""The results of `multi_task.py`: tables, a figure, one JSON file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from experiments.harness.figures import grid_lines, new_figure
from experiments.harness.output import counted, write_outputs
from experiments.harness.tables import finished, markdown, spread, with_failures
from experiments.harness.tuning import Tuning, score_text
from experiments.multi_task.comparison import Choice, TaskOptions
from experiments.multi_task.methods import METHODS
from experiments.multi_task.runner import Result
from learned_samplers import plots

#: Score → heading, factor, decimals.
SCORES = {"accuracy": ("accuracy %", 100, 2), "brier": ("Brier", 1, 4), "ece": ("ECE %", 100, 2)}

Finals = Mapping[str, Mapping[str, Sequence[Result]]]  # data set → method → its runs, one a seed
Tunings = Mapping[str, Mapping[str, Tuning[Choice, Result]]]  # data set → method → what was tried
Tasks = Mapping[str, Sequence[str]]  # data set → the names of its tasks


def values(results: Sequence[Result], score: str, task: int) -> list[float]:
    """A score of one task of each run that did not diverge."""
    return [SCORES[score][1] * result.scores[score][task] for result in finished(results)]


def overconfidence(result: Result) -> float:
    """Mean confidence less accuracy in %, mean over the tasks: below zero where the ensemble is better than it says."""
    gaps = np.array(result.confidence) - np.array(result.scores["accuracy"])
    return 100 * float(gaps.mean())


def score_table(finals: Finals, tasks: Tasks, score: str) -> str:
    """A row a data set and task, a column a method, as the paper's Table 1."""
    names = dict.fromkeys(name for methods in finals.values() for name in methods)
    return markdown(
        [
            {"data set, task": f"{dataset}, {task}"} | {name: cell(methods.get(name, ()), score, k) for name in names}
            for dataset, methods in finals.items()
            for k, task in enumerate(tasks[dataset])
        ]
    )


def cell(results: Sequence[Result], score: str, task: int) -> str:
    """Mean ± standard deviation over the runs that did not diverge, and how many did."""
    return with_failures(spread(values(results, score, task), SCORES[score][2]), results)


def run_table(finals: Finals) -> str:
    """What was chosen and what came of it: a row a data set and method."""
    table = []
    for dataset, methods in finals.items():
        for runs in methods.values():
            good = finished(runs)
            single = [100 * float(np.mean(r.members["accuracy"])) for r in good]
            weights = [r.weights for r in good if r.weights is not None]
            row = {
                "data set, method": f"{dataset}, {with_failures(runs[0].method, runs)}",
                "lr": f"{runs[0].lr:g}",
                "energy": runs[0].energy.replace("_", " ") if METHODS[runs[0].method].repels else "–",
                "best epoch": ", ".join(str(r.best_epoch) for r in good),
                "constant particles": ", ".join(str(r.constant[r.best_epoch - 1]) for r in good),
                "validation NLL": spread([r.validation_nll for r in good if r.validation_nll is not None], 4),
                "accuracy % of one particle": spread(single, 2),
                "confidence − accuracy %": spread([overconfidence(r) for r in good], 1),
                "weights": ", ".join(f"{w:.2f}" for w in np.mean(weights, 0)) if weights else "–",
                "seconds": spread([r.seconds for r in good], 0, with_std=False),
            }
            table.append(row)
    return markdown(table)


def tuning_table(tunings: Tunings) -> str:
    """Validation NLL of everything that was tried, a row a data set and method."""
    rows = []
    for dataset, methods in tunings.items():
        for name, tuning in methods.items():
            tried = ", ".join(f"{choice}: {score_text(tuning.mean(choice))}" for choice in sorted(tuning.trials))
            rows.append({"data set, method": f"{dataset}, {name}", "validation NLL": tried})
    return markdown(rows)


def content(finals: Finals, tunings: Tunings, tasks: Tasks) -> dict[str, Any]:
    """Everything as numbers."""
    sets: dict[str, Any] = {}
    for dataset, methods in finals.items():
        sets[dataset] = {}
        for method, runs in methods.items():
            scores = {f"{s}, {task}": values(runs, s, k) for s in SCORES for k, task in enumerate(tasks[dataset])}
            tuning = tunings.get(dataset, {}).get(method)
            trials = [] if tuning is None else [run for tried in tuning.trials.values() for run in tried]
            keys = ("lr", "energy", "epochs", "seed", "validation_nll")
            sets[dataset][method] = {
                "tuning": [{key: getattr(run, key) for key in keys} for run in trials],
                "scores": scores,
                "runs": [{k: v for k, v in asdict(r).items() if k != "settings"} for r in runs],
            }
    first = next(iter(next(iter(finals.values())).values()))[0]
    return {"settings": first.settings, "data sets": sets}


def report(options: TaskOptions, finals: Finals, tunings: Tunings, tasks: Tasks, command: str) -> str:
    """Write tables, figure and numbers; the tables."""
    parts = [f"### {heading}\n\n{score_table(finals, tasks, score)}" for score, (heading, _, _) in SCORES.items()]
    parts.append(f"### Runs\n\n{run_table(finals)}")
    if tunings:
        parts.append(f"### Validation NLL by learning rate\n\n{tuning_table(tunings)}")
    tuned = "Learning rates are not tuned. "
    if tunings:
        tuned = f"Learning rates are tried on the first seed, in {counted(options.tune_epochs, 'epoch')}. "
    note = (
        f"Test scores of the ensemble of {options.settings.particles} particles, mean ± standard deviation over "
        f"{counted(options.seeds, 'seed')}; calibration error in 10 bins. {tuned}Constant particles predict the same "
        "for every validation image. Seconds are of the clock, for training alone."
    )
    text = "\n\n".join([note, *parts])
    write_outputs(options.out, command, text, content(finals, tunings, tasks))
    figure(options.out / "figure.png", finals, tasks)
    return text


def figure(path: Path, finals: Finals, tasks: Tasks) -> None:
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
                    shown = method if k == 0 else None
                    ax.plot([place] * len(found), found, "o", color=color, markersize=4, alpha=0.7, label=shown)
                    if found:
                        ax.plot([place - 0.05, place + 0.05], [np.mean(found)] * 2, color=color, linewidth=2)
            ax.set_xticks(range(len(tasks[dataset])), [task.replace("_", " ") for task in tasks[dataset]])
            grid_lines(ax, axis="y")
            if score == "accuracy":
                ax.set_title(dataset)
        row[0].set_ylabel(heading)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside right upper", frameon=False)
    fig.savefig(path, dpi=110)
