"""What a comparison leaves behind: one table, one figure, one JSON file."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from experiments.common.figure import new_figure
from experiments.images.methods import METHODS
from experiments.images.runner import SCORES, Result, predictions
from experiments.images.settings import Settings
from learned_samplers import metrics, plots

Runs = Mapping[str, Sequence[Result]]  # method → its runs, one a seed


def mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and standard deviation over seeds (n − 1; nan for one seed)."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else float("nan")


def rows(runs: Runs, out: Path) -> list[dict[str, str]]:
    """One row of text a method: scores as mean ± standard deviation over the seeds that did not diverge.

    With HMC among the methods, each is also compared with its predictions, averaged over its seeds: agreement of the
    most probable class, and total variation distance.
    """
    table = []
    reference = hmc_reference(runs, out)
    for results in runs.values():
        good = finished(results)
        row = {"method": label(results), "lr": f"{results[0].lr:g}"}
        for key, heading, decimals in SCORES:
            row[heading] = spread([result.scores[key] for result in good], decimals)
        if reference is not None:
            probabilities = [predictions(result, out)["test"] for result in good]
            row["agreement with HMC"] = spread([metrics.agreement(p, reference) for p in probabilities], 4)
            row["total variation"] = spread([metrics.total_variation(p, reference) for p in probabilities], 4)
        row["samples"] = spread([result.num_samples for result in good], 0, with_std=False)
        row["gradients"] = spread([result.gradient_evaluations for result in results], 0, with_std=False)
        row["seconds"] = spread([result.seconds for result in results], 1, with_std=False)
        table.append(row)
    return table


def finished(results: Sequence[Result]) -> list[Result]:
    """The runs that did not diverge."""
    return [result for result in results if result.diverged is None]


def label(results: Sequence[Result]) -> str:
    """What a table calls the method of some runs: with the weights if they are not its usual ones, and failures."""
    method, settings = METHODS[results[0].method], results[0].settings
    text = method.label
    if method.network and settings[method.network] != getattr(Settings, method.network):
        text += f" [{Path(settings[method.network]).stem}]"
    failed = len(results) - len(finished(results))
    return f"{text} ({failed} of {len(results)} diverged)" if failed else text


def hmc_reference(runs: Runs, out: Path) -> torch.Tensor | None:
    """HMC's predictive probabilities on the test images, averaged over its seeds; None without HMC."""
    good = finished(runs.get("hmc", ()))
    if not good:
        return None
    return torch.stack([predictions(result, out)["test"] for result in good]).mean(0)


def spread(values: Sequence[float], decimals: int, *, with_std: bool = True) -> str:
    """Mean ± standard deviation, in so many decimals; the mean alone for one value, a dash for none."""
    if not values:
        return "–"
    mean, std = mean_and_std(values)
    return f"{mean:.{decimals}f} ± {std:.{decimals}f}" if with_std and len(values) > 1 else f"{mean:.{decimals}f}"


def markdown(table: Sequence[Mapping[str, str]]) -> str:
    """The rows as an aligned Markdown table."""
    headings = list(table[0])
    widths = {h: max(len(h), *(len(row[h]) for row in table)) for h in headings}
    numbers = headings[1:]
    lines = [
        "| " + " | ".join(h.ljust(widths[h]) if h not in numbers else h.rjust(widths[h]) for h in headings) + " |",
        "|" + "|".join("-" * (widths[h] + 1) + (":" if h in numbers else "-") for h in headings) + "|",
    ]
    for row in table:
        cells = [row[h].rjust(widths[h]) if h in numbers else row[h].ljust(widths[h]) for h in headings]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def write_json(path: Path, runs: Runs, tuning: Mapping[str, Mapping[float, Sequence[Result]]], command: str) -> None:
    """Everything as numbers: settings, tuning trials, runs, and mean and standard deviation of each score."""
    content = {}
    for name, results in runs.items():
        good = finished(results)
        summary = {key: mean_and_std([r.scores[key] for r in good]) for key, _, _ in SCORES} if good else {}
        content[name] = {
            "lr": results[0].lr,
            "tuning": [
                {"lr": lr, "validation_nll": [trial.validation_nll for trial in trials]}
                for lr, trials in tuning.get(name, {}).items()
            ],
            "mean": {key: mean for key, (mean, _) in summary.items()},
            "std": {key: std if len(good) > 1 else None for key, (_, std) in summary.items()},
            "runs": [{k: v for k, v in asdict(result).items() if k != "settings"} for result in results],
        }
    settings = next(iter(runs.values()))[0].settings
    path.write_text(json.dumps({"command": command, "settings": settings, "methods": content}, indent=1))


def figure(path: Path, runs: Runs, title: str, out: Path) -> None:
    """A reliability diagram of each method, over all its seeds together, above accuracy against number of samples."""
    good = {name: finished(results) for name, results in runs.items() if finished(results)}
    if not good:
        return
    fig = new_figure(max(8.0, 3.2 * len(good)), 7.0)
    axes = fig.subplot_mosaic([list(good), ["accuracy"] * len(good)])
    curves: dict[str, list[list[float]]] = {}
    references: dict[str, float] = {}
    for name, results in good.items():
        heading = METHODS[name].label
        saved = [predictions(result, out) for result in results]
        probabilities = torch.cat([part["test"] for part in saved])
        labels = torch.cat([part["test_labels"] for part in saved])
        plots.reliability_diagram(probabilities, labels, axes[name])
        axes[name].set_title(f"{heading}\nECE {metrics.ece(probabilities, labels):.4f}")
        # One legend for all panels, in the last one, without the calibration error, which is in the titles.
        if (legend := axes[name].get_legend()) is not None:
            legend.set_title("15 bins")
            legend.set_visible(name == list(good)[-1])
            legend.set_in_layout(legend.get_visible())
        length = min(len(result.accuracy_curve) for result in results)
        if length == 1:
            references[heading] = statistics.fmean(result.accuracy_curve[0] for result in results)
        else:
            curves[heading] = [result.accuracy_curve[:length] for result in results]
    if curves:
        plots.accuracy_against_samples(curves, axes["accuracy"], references=references)
    else:
        axes["accuracy"].remove()
    fig.suptitle(title)
    fig.savefig(path, dpi=150)
