"""What `compare.py` writes of a budget: tables, the first learned sampler against the best rival, and all as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from experiments.harness.output import write_outputs
from experiments.harness.run_store import fingerprint
from experiments.harness.tables import finished, markdown, mean_and_std, rectangular, spread
from experiments.harness.tuning import Tuning
from experiments.images.compare_corruptions import corruption_numbers, corruption_tables
from experiments.images.compare_notes import NOTES, OTHER_CODE
from experiments.images.compare_places import places_line
from experiments.images.compare_statistics import (
    DISTANCES,
    beside,
    beside_cells,
    equal_time,
    robust_cells,
    robustness,
)
from experiments.images.compare_verdict import verdict, verdict_line
from experiments.images.methods import METHODS, Setting
from experiments.images.report import label
from experiments.images.result import CURVES, Result
from experiments.images.runner import predictions
from experiments.images.settings import Settings
from learned_samplers import metrics

# Columns of a table: key, heading, decimals; the keys are those of `measured`.
SCORE_COLUMNS = (
    ("accuracy", "accuracy", 4),
    ("nll", "NLL", 4),
    ("ece", "ECE", 4),
    ("brier", "Brier", 4),
    ("rmse", "RMSE", 4),
    ("crps", "CRPS", 4),
    ("coverage", "90 % coverage", 3),
    ("kld", "KLD", 4),
    ("ess_per_second", "ESS/s", 2),
    ("converged", "cR̂ < 1.1", 3),
    ("seconds", "seconds", 1),
)


@dataclass
class BudgetReport:
    """The finished runs of one budget.

    Attributes:
        budget: minibatch gradients of every run.
        folder: where the runs lie.
        settings: of the comparison at this budget; what is tuned may be a method's own.
        num_data, num_classes: number of training images, and of their classes.
        tuning, runs: of each method its trials, and its final runs, one a seed.
        equal_time: of each method its runs in the seconds of the first; {} if there are none.
        reference: probabilities (test images, classes) to compare with, or None.
        lost: why a method has no runs: it diverged at every setting.
        data: the data's fingerprint.
        other_code: whether runs were read back that another version of the code had made.
        network: fingerprints of a network of the user's own; {} for the others.
    """

    budget: int
    folder: Path
    settings: Settings
    num_data: int
    num_classes: int = 10
    tuning: dict[str, Tuning[Setting, Result]] = field(default_factory=dict)
    runs: dict[str, list[Result]] = field(default_factory=dict)
    equal_time: dict[str, list[Result]] = field(default_factory=dict)
    reference: torch.Tensor | None = None
    lost: dict[str, str] = field(default_factory=dict)
    data: str | None = None
    other_code: bool = False
    network: Mapping[str, str] = field(default_factory=dict)


def measured(result: Result) -> dict[str, Any]:
    """The numbers of a run that are averaged over seeds; None where a method has no such number."""
    own = {"kld": result.pairwise_kld, "seconds": result.seconds}
    # Draws of a fitted Gaussian and the networks of an ensemble are no chain.
    own["ess_per_second"] = result.ess_per_second if METHODS[result.method].is_chain else None
    if result.converged is not None:
        own["converged"] = result.converged["all"]
    return {**result.scores, **own, "num_samples": result.num_samples}


def summary(results: Sequence[Result]) -> dict[str, dict[str, Any]]:
    """Mean and standard deviation of each number over the seeds that did not diverge, if all of them have it."""
    rows = [measured(result) for result in finished(results)]
    means: dict[str, dict[str, Any]] = {"mean": {}, "std": {}}
    for key in rows[0] if rows else ():
        if (values := in_all(rows, key)) is None:
            continue
        values = [value for value in values if value is not None]
        mean, std = mean_and_std(values) if values else (math.nan, math.nan)
        means["mean"][key] = mean if values else None
        means["std"][key] = std if len(values) > 1 else None
    return means


def in_all(rows: Sequence[Mapping[str, Any]], key: str) -> list[Any] | None:
    """The values of all rows; None where a row lacks it: what an earlier command measured may be of some seeds."""
    return [row[key] for row in rows] if all(key in row for row in rows) else None


def pooled(results: Sequence[Result], folder: Path, reference: torch.Tensor | None = None) -> dict[str, float] | None:
    """Scores of the average over all seeds' predictions, as parallel chains or a deep ensemble give it.

    With a reference also how near the average is to it. None for fewer than two chains, and for a regression.
    """
    ended = [predictions(result, folder) for result in finished(results)]
    if len(ended) < 2 or "test_variance" in ended[0]:
        return None
    average = sum(each["test"] for each in ended) / len(ended)
    scores = {**metrics.summary(average, ended[0]["test_labels"]), "chains": len(ended)}
    if reference is not None:
        scores |= {name: distance(average, reference) for name, (_, distance) in DISTANCES.items()}
    return scores


def content(report: BudgetReport) -> dict[str, Any]:
    """All numbers of a budget; the curves and the temperatures over a run are in its own file, which "file" names."""
    methods: dict[str, Any] = {}
    for name, results in report.runs.items():
        tuning = report.tuning[name]
        methods[name] = {
            "label": label(results, named=True),
            **numbers_of(tuning.chosen),
            "also_tuned": tuning.chosen.text(report.num_data),
            "at_edge": bool(tuning.edges()),
            "tuning": [
                {
                    **numbers_of(setting),
                    "validation_nll": tuning.mean(setting),
                    "seeds": [each.validation_nll for each in trials],
                }
                for setting, trials in tuning.trials.items()
            ],
            **summary(results),
            "pooled": pooled(results, report.folder, report.reference),
            "health": health(results[0]),
            **robustness(report.runs, name, report.folder, report.num_classes),
            "equal_time": equal_time(report.equal_time.get(name, ())),
            **beside(results, report.folder, report.reference),
            **layer_numbers(results),
            **corruption_numbers(results),
            "runs": [
                {
                    "file": f"{report.folder.name}/runs/{result.name}.json",
                    **{key: getattr(result, key) for key in RUN_KEYS},
                    **measured(result),
                }
                for result in results
            ],
        }
    ended = [name for name, results in report.runs.items() if finished(results)]
    return {
        "settings": asdict(report.settings),
        "num_data": report.num_data,
        "data": report.data,
        "network": dict(report.network),
        "other_code": report.other_code,
        # Of single precision: the last digits of a sum of doubles differ between machines.
        "reference": None if report.reference is None else fingerprint([report.reference.float()]),
        "methods": methods,
        "verdict": verdict(report.runs, report.folder),
        "lowest_nll": min(ended, key=lambda name: methods[name]["mean"]["nll"]) if ended else None,
        "lost": report.lost,
    }


def numbers_of(setting: Setting) -> dict[str, float]:
    """A setting as JSON takes it."""
    return {"lr": setting.lr, **dict(setting.also)}


RUN_KEYS = (
    *("seed", "lr", "validation_nll", "gradient_evaluations", "diverged"),
    *(f"{name}_curve" for name in CURVES),
    *("ess", "scaled_nll", "device", "threads"),
)


def health(result: Result) -> dict[str, Any]:
    """Of the first seed's run: mean temperatures after burn-in, mean loss barrier, mean cosine similarity."""
    modes = result.modes or {}
    return {
        **{kind: result.mean_temperatures.get(kind) for kind in ("kinetic", "configurational")},
        "mean_barrier": modes.get("mean_barrier"),
        "mean_cosine_similarity": modes.get("mean_cosine_similarity"),
    }


def tables(budget: int, numbers: Mapping[str, Any]) -> str:
    """The budget's tables and the sentences below them, as Markdown; `numbers` is its `content`, or read from JSON."""
    scores, robust, others, healths, chains = [], [], [], [], list[dict[str, str]]()
    known = {key for method in numbers["methods"].values() for key in columns_of(method["runs"])}
    if "nll" not in known:  # all have diverged
        known |= {"accuracy", "nll", "ece", "brier"}
    columns = [column for column in SCORE_COLUMNS if column[0] in known]
    for method in numbers["methods"].values():
        name, rows = {"method": method["label"]}, [run for run in method["runs"] if run["diverged"] is None]
        row = {**name, "lr": f"{method['lr']:g}", "also tuned": method["also_tuned"] or "–"}
        for key, heading, decimals in columns:
            row[heading] = spread([value for value in in_all(rows, key) or () if value is not None], decimals)
        row["samples"] = spread([each["num_samples"] for each in rows], 0, with_std=False)
        row["gradients"] = spread([each["gradient_evaluations"] for each in method["runs"]], 0, with_std=False)
        scores.append(row)
        robust.append({**name, **robust_cells(method)})
        others.append({**name, **beside_cells(method)})
        healths.append({**name, **health_cells(method["health"])})
        if (together := method["pooled"]) is not None:
            headings = [*SCORE_COLUMNS, *((key, heading, 4) for key, (heading, _) in DISTANCES.items())]
            cells = {heading: f"{together[key]:.4f}" for key, heading, _ in headings if key in together}
            chains.append({**name, **cells, "runs": str(together["chains"])})
    labels = {name: method["label"] for name, method in numbers["methods"].items()}
    lines = [] if numbers["verdict"] is None else [verdict_line(numbers["verdict"], labels)]
    if numbers["lowest_nll"] is not None:
        lowest = numbers["methods"][numbers["lowest_nll"]]
        lines.append(f"- Lowest NLL: {lowest['label']}, {lowest['mean']['nll']:.4f}.")
    edges = [method["label"] for method in numbers["methods"].values() if method["at_edge"]]
    if edges:
        lines.append(f"- Tuned to the edge of what was tried: {', '.join(edges)}.")
    runs = {method["label"]: method["runs"] for method in numbers["methods"].values()}
    # Files of before have no places.
    places = {name: [(run.get("device"), run.get("threads")) for run in each] for name, each in runs.items()}
    lines += [line] if (line := places_line(places)) else []
    lines += [f"- **{name} has no row**: {why}." for name, why in numbers["lost"].items()]
    parts = [f"### {budget} gradients", markdown(scores), markdown(rectangular(robust))]
    parts += [markdown(rectangular(others))] if any(len(row) > 1 for row in others) else []
    parts += [markdown(healths)]
    parts += [markdown(rectangular(chains))] if chains else []
    parts += [markdown(layers)] if (layers := layer_rows(numbers["methods"])) else []
    parts += corruption_tables(numbers["methods"])
    return "\n\n".join([*parts, "\n".join(lines)])


def columns_of(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The numbers that all runs of a method have which did not diverge; of diverged ones, where there are no others."""
    rows = [run for run in runs if run["diverged"] is None] or runs
    return [key for key in rows[0] if in_all(rows, key) is not None] if rows else []


def layer_numbers(results: Sequence[Result]) -> dict[str, Any]:
    """{"layers": share of each layer's weights with cR̂ < 1.1, the mean over seeds}; {} where not all seeds have it."""
    known = [result.converged or {} for result in finished(results)]
    names = [name for name in known[0] if name != "all" and in_all(known, name) is not None] if known else []
    return {"layers": {name: fmean(each[name] for each in known) for name in names}} if names else {}


def layer_rows(methods: Mapping[str, Any]) -> list[dict[str, str]]:
    """Rows of layers, columns of methods."""
    known = {each["label"]: each["layers"] for each in methods.values() if "layers" in each}
    layers = dict.fromkeys(layer for shares in known.values() for layer in shares)
    return [
        {"cR̂ < 1.1 of the layer": layer, **{label: f"{shares[layer]:.3f}" for label, shares in known.items()}}
        for layer in layers
    ]


def health_cells(numbers: Mapping[str, Any]) -> dict[str, str]:
    cells = {}
    for kind in ("kinetic", "configurational"):
        means = numbers[kind]
        cells[f"{kind} T"] = "–"
        if means is not None:
            parts = [value for name, value in means.items() if name != "all"]
            cells[f"{kind} T"] = f"{means['all']:.3g} ({min(parts):.3g} to {max(parts):.3g})"
    for key, heading, decimals in (("mean_barrier", "barrier [nats]", 4), ("mean_cosine_similarity", "cosine", 3)):
        cells[heading] = "–" if numbers[key] is None else f"{numbers[key]:.{decimals}f}"
    return cells


def write_results(
    out: Path, reports: Sequence[BudgetReport], command: str, choice: str, planned: Sequence[int]
) -> None:
    """Write results.json and table.md for the budgets that are finished, of those that are `planned`; `choice` says how
    settings were chosen."""
    numbers = {str(report.budget): content(report) for report in reports}
    parts = [tables(report.budget, numbers[str(report.budget)]) for report in reports]
    notes = f"{NOTES}{choice}" + f"\n{OTHER_CODE}" * any(report.other_code for report in reports)
    write_outputs(out, command, "\n\n".join([notes, *parts]), {"planned": list(planned), "budgets": numbers})
