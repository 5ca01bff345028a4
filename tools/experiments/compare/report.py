"""The numbers and tables of a comparison, and the notes above them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from experiments.compare.corruptions import corruption_tables
from experiments.compare.presets import PRESETS
from experiments.harness.output import write_outputs
from experiments.harness.run_store import fingerprint
from experiments.harness.runs.methods import Setting
from experiments.harness.runs.result import SCORES, Result, label
from experiments.harness.runs.runner import predictions
from experiments.harness.runs.settings import Settings
from experiments.harness.tables import finished, markdown, mean_and_std, rectangular, spread
from experiments.harness.tuning import Tuning
from learned_samplers import metrics

#: Beside the tables, whichever of them there are; tables are named by what their header holds.
NOTES = """Mean ± standard deviation over seeds. NLL in nats, ECE in 15 bins; KLD: mean divergence between the
predictions of two samples; ESS/s: effective sample size of a chain's log-probability of the true label, the median
over test images, per second of the run; cR̂ < 1.1: share of the weights whose chain agrees between its two halves (1,000
weights of a run), and of each layer's in a table of their own; also tuned: momentum decay a, temperature T, exploration
ratio, the share of burn-in, the final lr as a share of the first, or an optimizer's weight decay; seconds of training
and collecting.
The table with tries: the settings that were tuned over, each on every tuning seed; median and worst seed; difference of
the NLL to the first row's at the same seed (same initial weights and minibatches), ± its standard error over seeds, and
the standard error that the choice of test images alone gives; AUROC: of telling the data set from the test images by
the largest probability, or by the mutual information of the samples' predictions; entropy: of the predictions on it, in
nats; agreement: share of the test images with the reference's most probable class; total variation: half the sum of the
probabilities' absolute differences, the mean over them.
The table with temperatures: of the first seed, after burn-in of all weights (and from the coldest to the hottest part
of the network); medians over all pairs of samples, on validation images (of rows that are not tuned of all seeds):
barrier of the loss on the line between the two, and between neighbours, cosine of their weights less those at the
start, disagreement of the most probable class, and ambiguity: the mean loss of the two less that of their average.
With HMC among the rows, or a reference, predictions are compared with it; with HMC, with its chains of other seeds.
Settings are tuned by validation NLL: a balanced choice at the smallest budget, its best again at the larger ones.
"""
OTHER_CODE = "Some runs were read back that another version of the code had made."
# Columns of a table: key, heading, decimals; the keys are those of `measured`.
COLUMNS = (
    *(column for column in SCORES if column[0] != "ood_auroc"),
    ("single_nll", "NLL of a sample", 4),
    ("kld", "KLD", 4),
    ("ess", "ESS", 1),
    ("ess_per_second", "ESS/s", 2),
    ("converged", "cR̂ < 1.1", 3),
    ("seconds", "seconds", 1),
)
#: Of pairs of samples, `Result.modes`: the measure, its column's heading, and how it is written.
PAIRS = {
    "barrier": ("barrier [nats]", 4),
    "near_barrier": ("of neighbours", 4),
    "cosine": ("cosine", 3),
    "disagreement": ("disagreement", 4),
    "ambiguity": ("ambiguity [nats]", 4),
    "kl": ("KL [nats]", 3),
}
#: How far predictions are from a reference's: of each number its column's heading, and the function of both.
DISTANCES = {
    "agreement": ("agreement with the reference", metrics.agreement),
    "total_variation": ("total variation", metrics.total_variation),
}
_RUN_KEYS = ("seed", "lr", "validation_nll", "gradient_evaluations", "diverged", "ess", "curves", "ood", "device")


@dataclass
class BudgetReport:
    """Finished runs of one budget in a folder: trials of each row, and its final runs, one a seed.

    Attributes:
        settings: of the comparison at this budget; a row may differ.
        convergence, corruptions: they were asked for; what an earlier command measured may be of some seeds.
        reference: probabilities (test images, classes) to compare with.
        lost: why a method has no runs: it diverged at every setting.
        data, network: fingerprints of the data, and of a network of the user's own.
        other_code: runs were read back that another version of the code had made.
        preset: its name, for the criterion.
    """

    budget: int
    folder: Path
    settings: Settings
    num_data: int
    tuning: dict[str, Tuning[Setting, Result]] = field(default_factory=dict)
    runs: dict[str, list[Result]] = field(default_factory=dict)
    convergence: bool = False
    corruptions: bool = False
    reference: torch.Tensor | None = None
    lost: dict[str, str] = field(default_factory=dict)
    data: str | None = None
    other_code: bool = False
    network: Mapping[str, str] = field(default_factory=dict)
    preset: str = ""

    def measured(self, result: Result) -> dict[str, Any]:
        """Numbers of a run that are averaged over seeds, those that exist."""
        numbers = {"kld": result.pairwise_kld, "seconds": result.seconds, "ess_per_second": result.ess_per_second}
        if result.is_chain:
            numbers["ess"] = result.ess
        if result.ambiguity is not None and result.scores:
            numbers["single_nll"] = result.scores["nll"] + result.ambiguity
        if self.convergence and result.converged:
            numbers["converged"] = result.converged["all"]
        if result.diverged is None and (reference := self.reference_for(result)) is not None:
            test = predictions(result, self.folder)["test"]
            numbers |= {name: distance(test, reference) for name, (_, distance) in DISTANCES.items()}
        measured = {key: value for key, value in numbers.items() if value is not None}
        return {**result.scores, **measured, "num_samples": result.num_samples}

    def reference_for(self, result: Result) -> torch.Tensor | None:
        """Probabilities that a run is compared with: the reference, or the average of HMC's chains of other seeds."""
        if self.reference is not None:
            return self.reference
        chains = [run for run in finished(self.runs.get("HMC", ())) if run.seed != result.seed]
        if not chains:
            return None
        return torch.stack([predictions(run, self.folder)["test"].double() for run in chains]).mean(0)

    @property
    def is_compared(self) -> bool:
        """True if there is anything to compare predictions with."""
        return self.reference is not None or len(finished(self.runs.get("HMC", ()))) > 1


def losses(results: Sequence[Result], folder: Path) -> torch.Tensor:
    """Negative log-probability of each test image's label, the mean over a method's seeds, in nats."""
    saved = [predictions(result, folder) for result in finished(results)]
    true = [p["test"].gather(1, p["test_labels"].long().unsqueeze(1))[:, 0].double() for p in saved]
    return -torch.stack(true).clamp_min(metrics.FLOOR).log().mean(0)  # as `metrics.nll` has it


def paired(ours: Sequence[Result], theirs: Sequence[Result], folder: Path | None = None) -> dict[str, Any] | None:
    """The difference of two methods' test NLL over the seeds that both have finished; None for no such seed."""
    both = {result.seed: result for result in finished(theirs)}
    mine = [result for result in finished(ours) if result.seed in both]
    rivals = [both[result.seed] for result in mine]
    if not mine:
        return None
    mean, std = mean_and_std([a.scores["nll"] - b.scores["nll"] for a, b in zip(mine, rivals)])
    numbers: dict[str, Any] = {"mean": mean, "error": std / math.sqrt(len(mine)) if len(mine) > 1 else None}
    if folder is not None:
        difference = losses(mine, folder) - losses(rivals, folder)
        numbers["image_error"] = float(difference.std() / math.sqrt(len(difference)))
    return numbers


def content(report: BudgetReport) -> dict[str, Any]:
    """Numbers of a budget; the temperatures and curves over a run are in its own file, which "file" names."""
    return {
        "settings": asdict(report.settings),
        "num_data": report.num_data,
        "data": report.data,
        "network": dict(report.network),
        "other_code": report.other_code,
        # Of single precision: the last digits of a sum of doubles differ between machines.
        "reference": None if report.reference is None else fingerprint([report.reference.float()]),
        "lost": report.lost,
        "methods": {name: _method_content(report, name) for name in report.runs},
    }


def _method_content(report: BudgetReport, name: str) -> dict[str, Any]:
    results, tuning, first = report.runs[name], report.tuning[name], next(iter(report.runs.values()))
    rows = [report.measured(result) for result in finished(results)]
    summary = {key: mean_and_std([row[key] for row in rows]) for key in rows[0]} if rows else {}
    trials = {setting: [run.validation_nll for run in tried] for setting, tried in tuning.trials.items()}
    return {
        "label": label(results),
        **tuning.chosen.numbers,
        "also_tuned": tuning.chosen.text(report.num_data),
        "at_edge": len(trials) > 1 and bool(tuning.edges()),
        "tuning": [
            {**setting.numbers, "validation_nll": tuning.mean(setting), "seeds": seeds}
            for setting, seeds in trials.items()
            if seeds
        ],
        "mean": {key: mean for key, (mean, _) in summary.items()},
        "std": {key: std if len(rows) > 1 else None for key, (_, std) in summary.items()},
        "difference": None if results is first else paired(results, first, report.folder),
        "health": {**results[0].mean_temperatures, "modes": results[0].modes},
        "corruptions": [result.corruptions for result in results] if report.corruptions else [],
        "runs": [_run_content(report, result) for result in results],
    }


def _run_content(report: BudgetReport, result: Result) -> dict[str, Any]:
    file = f"{report.folder.name}/runs/{result.name}.json"
    return {"file": file, **{key: getattr(result, key) for key in _RUN_KEYS}, **report.measured(result)}


def tables(report: BudgetReport, numbers: Mapping[str, Any]) -> str:
    """The budget's tables and the sentences below them, as Markdown; `numbers` is its `content`."""
    methods, cells = numbers["methods"], dict[str, list[dict[str, str]]]()
    for name, results in report.runs.items():
        rows = [report.measured(result) for result in finished(results)]
        for table, row in {
            "scores": _score_cells(rows, methods[name], results),
            "robust": _robust_cells(report, name, rows, methods[name]["difference"] or {}),
            "health": _health_cells(results),
        }.items():
            cells.setdefault(table, []).extend([{"method": label(results), **row}] if row else [])
    shares = {name: by_layer for name, results in report.runs.items() if (by_layer := _layers(report, results))}
    layers = [
        {"cR̂ < 1.1 of the layer": layer, **{label(report.runs[name]): shares[name][layer] for name in shares}}
        for layer in next(iter(shares.values()), ())
    ]
    lines = []
    if ended := [name for name in methods if "nll" in methods[name]["mean"]]:
        lowest = methods[min(ended, key=lambda name: methods[name]["mean"]["nll"])]
        lines.append(f"- Lowest NLL: {lowest['label']}, {lowest['mean']['nll']:.4f}.")
    if edges := [method["label"] for method in methods.values() if method["at_edge"]]:
        lines.append(f"- Tuned to the edge of what was tried: {', '.join(edges)}.")
    lines += [f"- **{name} has no row**: {why}." for name, why in report.lost.items()]
    parts = [markdown(rectangular(rows)) for rows in (*cells.values(), layers) if rows]
    parts += corruption_tables(report.runs) if report.corruptions else []
    return "\n\n".join([f"### {report.budget} gradients", *parts, "\n".join(lines)])


def _values(rows: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    return [row[key] for row in rows if key in row]


def _score_cells(rows: list[dict[str, Any]], method: Mapping[str, Any], results: Sequence[Result]) -> dict[str, str]:
    measured = {key for row in rows for key in row}
    cells = {"lr": f"{method['lr']:g}", "also tuned": method["also_tuned"] or "–"}
    cells |= {heading: spread(_values(rows, key), decimals) for key, heading, decimals in COLUMNS if key in measured}
    cells["samples"] = spread(_values(rows, "num_samples"), 0, with_std=False)
    cells["gradients"] = spread([run.gradient_evaluations for run in results], 0, with_std=False)
    return cells


def _text(value: float | None, form: str = ".4f") -> str:
    return "–" if value is None else f"{value:{form}}"


def _robust_cells(
    report: BudgetReport, name: str, rows: list[dict[str, Any]], difference: Mapping[str, Any]
) -> dict[str, str]:
    results, nlls = report.runs[name], _values(rows, "nll")
    cells = {
        "tries": str(len(report.tuning[name].trials)),
        "median NLL": _text(statistics.median(nlls) if nlls else None),
        "worst NLL": _text(max(nlls, default=None)),
        "difference": _text(difference.get("mean"), "+.4f"),
        "± seeds": _text(difference.get("error")),
        "± images": _text(difference.get("image_error")),
    }
    for key, (heading, _) in DISTANCES.items() if report.is_compared else ():
        cells[heading] = spread(_values(rows, key), 4)
    good = finished(results)
    for images in good[0].ood if good else ():
        cells[f"AUROC {images}"] = spread([result.ood[images]["auroc"] for result in good], 3)
        information = [run.ood[images].get("information_auroc") for run in good]
        cells[f"AUROC {images}, information"] = spread([x for x in information if x is not None], 3)
        cells[f"entropy {images} [nats]"] = spread([result.ood[images]["mean_entropy"] for result in good], 3)
    return cells


def _health_cells(results: Sequence[Result]) -> dict[str, str]:
    cells = {}
    for temperature in ("kinetic", "configurational"):
        means = results[0].mean_temperatures.get(temperature)
        parts = [value for name, value in means.items() if name != "all"] if means else []
        cells[f"{temperature} T"] = f"{means['all']:.3g} ({min(parts):.3g} to {max(parts):.3g})" if means else "–"
    for key, (heading, decimals) in PAIRS.items():
        cells[heading] = spread(_modes(results, key), decimals)
    return cells


def _modes(results: Sequence[Result], key: str) -> list[float]:
    """A median over pairs of samples, of every run that has it."""
    return [run.modes[key] for run in results if run.modes and run.modes.get(key) is not None]


def _medians(results: Sequence[Result]) -> dict[str, float]:
    return {key: statistics.fmean(values) for key in PAIRS if (values := _modes(results, key))}


def _layers(report: BudgetReport, results: Sequence[Result]) -> dict[str, str]:
    """Share of each layer's weights with cR̂ < 1.1, the mean over seeds; {} of rows that are no chains."""
    shares = [result.converged for result in finished(results) if report.convergence and result.converged]
    names = [name for name in shares[0] if name != "all"] if shares else []
    return {name: f"{statistics.fmean(share[name] for share in shares):.3f}" for name in names}


def write_results(out: Path, reports: Sequence[BudgetReport], command: str) -> str:
    """Write results.json and table.md for the budgets that are finished, and return the tables."""
    numbers = [content(report) for report in reports]
    text = "\n\n".join(map(tables, reports, numbers))
    if (preset := PRESETS.get(reports[0].preset)) is not None and preset.criterion is not None:
        means = {
            report.budget: {
                name: {**content["methods"][name]["mean"], **_medians(results)} for name, results in report.runs.items()
            }
            for report, content in zip(reports, numbers)
        }
        text += f"\n\n{preset.criterion(means)}"
    notes = NOTES + f"{OTHER_CODE}\n" * any(report.other_code for report in reports)
    budgets = {str(report.budget): content for report, content in zip(reports, numbers)}
    write_outputs(out, command, f"{notes}\n{text}", {"budgets": budgets})
    return text
