"""Numbers of the runs that did not collapse, and the mean ranks of the methods over sets."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from scipy.stats import rankdata

from experiments.harness.study import Findings, Run
from experiments.harness.tables import rectangular
from experiments.tables.data import SPLITS


def collapsed(result: Mapping[str, Any]) -> bool:
    """True for a run that failed, or knows less than the distribution of the training targets."""
    parts = result["parts"]
    first = next((part for part in parts if part != "gap"), None)
    if first is None:
        return True
    density = parts[first]["lpd"]
    return not (math.isfinite(parts[first]["rmse"]) if density is None else density >= result["plain"][first])


def values(runs: Sequence[Run], part: str, column: str) -> list[float]:
    """A number of every run that has not collapsed."""
    percent = 100.0 if column in ("coverage", "accuracy") else 1.0
    good = [r for r in runs if not collapsed(r)]
    numbers = [r[column] if column in ("seconds", "megabytes") else r["parts"][part][column] for r in good]
    return [percent * number for number in numbers if number is not None]


#: Columns of which a higher number is better; of the others a lower one.
HIGHER = ("lpd", "accuracy")
HEADINGS = {"lpd": "density", "rmse": "RMSE", "accuracy": "accuracy"}


def ranks(findings: Findings, names: Sequence[str], columns: Sequence[str]) -> list[dict[str, str]]:
    """A row a method: its mean rank in each column over sets, by its mean over the splits of a set.

    A method that collapsed on a split of a set is last there. Beside the ranks: coverage, its mean over sets and on how
    many it is within two points of 90 %, and CPU-seconds.
    """
    sets = {name: [problem for split in SPLITS if (problem := f"{name} {split}") in findings.runs] for name in names}
    sets = {name: problems for name, problems in sets.items() if problems}
    rows = {method: {"method": method} for method in findings.methods()}
    for column in columns:
        scores: dict[str, list[float]] = {}
        for problems in sets.values():
            means = {m: s for m in rows if (s := _score(findings, problems, m, column)) is not None}
            signs = [(-1 if column in HIGHER else 1) * score for score in means.values()]
            for method, rank in zip(means, rankdata(signs), strict=True):
                scores.setdefault(method, []).append(float(rank))
        for method, row in rows.items():
            if places := scores.get(method):
                row[f"rank in {HEADINGS[column]}"] = f"{statistics.fmean(places):.2f} ({len(places)} sets)"
    for method, row in rows.items():
        runs = {
            name: [r for p in problems for r in findings.runs[p].get(method, ())] for name, problems in sets.items()
        }
        runs = {name: done for name, done in runs.items() if values(done, "test", "seconds")}
        if runs and "rmse" in columns:
            covered = [statistics.fmean(values(done, "test", "coverage")) for done in runs.values()]
            within = sum(abs(share - 90) <= 2 for share in covered)
            row["coverage, %"] = f"{statistics.fmean(covered):.1f}"
            row["90 ± 2 on"] = f"{within} of {len(covered)}"
        if runs:
            seconds = [statistics.fmean(values(done, "test", "seconds")) for done in runs.values()]
            row["CPU-seconds"] = f"{statistics.fmean(seconds):.1f}"
    return rectangular([row for row in rows.values() if len(row) > 1])


def _score(findings: Findings, problems: Sequence[str], method: str, column: str) -> float | None:
    """Mean over splits of a set; the worst number there is for one that collapsed; None without a run or a number."""
    runs = _runs(findings, problems, method)
    if any(map(collapsed, runs)):
        return -math.inf if column in HIGHER else math.inf
    numbers = values(runs, "test", column)
    return statistics.fmean(numbers) if numbers else None


def _runs(findings: Findings, problems: Sequence[str], method: str) -> list[Run]:
    return [run for problem in problems for run in findings.runs[problem].get(method, ())]
