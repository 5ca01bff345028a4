"""The results of `sample.py`: one table, one figure, one JSON file."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from experiments.harness.figures import new_figure
from experiments.harness.runs.result import Result, label, score_columns
from experiments.harness.runs.runner import predictions
from experiments.harness.tables import finished, mean_and_std, spread
from learned_samplers import metrics, plots

ByMethod = Mapping[str, Sequence[Result]]  # method → its runs, one a seed

#: Medians over pairs of samples, on validation images: see `Exploration`.
PAIRS = {"barrier": "barrier [nats]", "cosine": "cosine", "disagreement": "disagreement"}
PANELS = 6  # reliability diagrams side by side; more take a further line


def rows(runs: ByMethod, out: Path, reference: torch.Tensor | None = None) -> list[dict[str, str]]:
    """One row of text a method: scores as mean ± standard deviation over the seeds that did not diverge.

    With a reference, probabilities (test images, classes), or with HMC among the methods, whose predictions averaged
    over its seeds are one then, each is compared with that: agreement of the most probable class, and total variation
    distance. A chain of HMC itself is compared with the others' average, of which it is no part.
    """
    table = []
    chains = _hmc_chains(runs, out) if reference is None else []
    name = "the reference" if reference is not None else "HMC"
    if chains:
        reference = torch.stack(chains).mean(0)
    for results in runs.values():
        good = finished(results)
        row = {"method": label(results), "lr": f"{results[0].lr:g}"}
        for key, heading, decimals in score_columns(runs.values()):
            row[heading] = spread([result.scores[key] for result in good], decimals)
        if reference is not None:
            pairs = [(predictions(result, out)["test"], reference) for result in good]
            if chains and results[0].method == "HMC":
                others = [chains[:k] + chains[k + 1 :] for k in range(len(chains))]
                pairs = [(p, torch.stack(rest).mean(0)) for p, rest in zip(chains, others) if rest]
            row[f"agreement with {name}"] = spread([metrics.agreement(*pair) for pair in pairs], 4)
            row["total variation"] = spread([metrics.total_variation(*pair) for pair in pairs], 4)
        for key, heading in PAIRS.items() if any(each.modes for every in runs.values() for each in every) else ():
            row[heading] = spread([result.modes[key] for result in good if result.modes], 3)
        row["samples"] = spread([result.num_samples for result in good], 0, with_std=False)
        row["gradients"] = spread([result.gradient_evaluations for result in results], 0, with_std=False)
        row["seconds"] = spread([result.seconds for result in results], 1, with_std=False)
        table.append(row)
    return table


def _hmc_chains(runs: ByMethod, out: Path) -> list[torch.Tensor]:
    """HMC's predictive probabilities on the test images, seed by seed."""
    return [predictions(result, out)["test"] for result in finished(runs.get("HMC", ()))]


def content(runs: ByMethod) -> dict[str, Any]:
    """Everything as numbers: settings, runs, and mean and standard deviation of each score."""
    methods = {}
    for name, results in runs.items():
        good = finished(results)
        columns = score_columns(runs.values()) if good else ()
        summary = {key: mean_and_std([r.scores[key] for r in good]) for key, _, _ in columns}
        methods[name] = {
            "lr": results[0].lr,
            "mean": {key: mean for key, (mean, _) in summary.items()},
            "std": {key: std if len(good) > 1 else None for key, (_, std) in summary.items()},
            "runs": [{k: v for k, v in asdict(result).items() if k != "settings"} for result in results],
        }
    return {"settings": next(iter(runs.values()))[0].settings, "methods": methods}


def figure(path: Path, runs: ByMethod, title: str, out: Path) -> None:
    """A reliability diagram of each method, over all its seeds together, above accuracy against number of samples."""
    good = {name: finished(results) for name, results in runs.items() if finished(results)}
    if not good:
        return
    lines = -(-len(good) // PANELS)
    columns = -(-len(good) // lines)
    places = [*good, *["."] * (lines * columns - len(good))]
    fig = new_figure(max(8.0, 3.2 * columns), 3.5 * (lines + 1))
    panels = [places[at : at + columns] for at in range(0, len(places), columns)]
    axes = fig.subplot_mosaic([*panels, ["accuracy"] * columns])
    curves: dict[str, list[list[float]]] = {}
    references: dict[str, float] = {}
    for name, results in good.items():
        saved = [predictions(result, out) for result in results]
        probabilities = torch.cat([part["test"] for part in saved])
        labels = torch.cat([part["test_labels"] for part in saved])
        plots.reliability_diagram(probabilities, labels, axes[name])
        axes[name].set_title(f"{name}\nECE {metrics.ece(probabilities, labels):.4f}")
        # One legend for all panels, in the last one, without the calibration error, which is in the titles.
        if (legend := axes[name].get_legend()) is not None:
            legend.set_title("15 bins")
            legend.set_visible(name == list(good)[-1])
            legend.set_in_layout(legend.get_visible())
        length = min(len(result.curves["accuracy"]) for result in results)
        if length == 1:
            references[name] = statistics.fmean(result.curves["accuracy"][0] for result in results)
        else:
            curves[name] = [result.curves["accuracy"][:length] for result in results]
    if curves:
        plots.accuracy_against_samples(curves, axes["accuracy"], references=references)
    else:
        axes["accuracy"].remove()
    fig.suptitle(title)
    fig.savefig(path, dpi=150)
