"""Small comparisons on the embedded digits, and what they leave on disk."""

import json
import statistics
from pathlib import Path

from experiments.harness.runs.result import Result

ROOT = Path(__file__).parents[2]
NETWORK = ["--model", "mlp", "--hidden", "8", "--limit", "320", "--batch-size", "32", "--num-samples", "4"]
TINY = [*NETWORK, "--cycles", "2", "--temperature", "0.1", "--ensemble-size", "2", "--burn-in", "0.5"]
SMALL = ["--grid", "2", "--tries", "2", "--tune-seeds", "1", "--extensions", "0", "--values", "exploration_ratio=.8"]


def numbers(out: Path) -> dict:
    """Budget → row → its runs, the setting that was chosen, and those that were tried."""
    content = json.loads((out / "results.json").read_text())
    budgets: dict[str, dict] = {}
    for problem, rows in content["runs"].items():
        for row, runs in rows.items():
            place = {"problem": problem, "method": row}
            chosen, *tuning = (
                {key: value for key, value in entry.items() if key not in place}
                for part in ("chosen", "tuning")
                for entry in content[part]
                if place.items() <= entry.items()
            )
            budgets.setdefault(problem.split()[0], {})[row] = {"runs": runs, **chosen, "tuning": tuning}
    return budgets


def mean(row: dict, key: str) -> float:
    """Mean of a number over a row's runs."""
    return statistics.fmean(run[key] for run in row["runs"])


def read(path: Path) -> Result:
    """A run on disk."""
    record = json.loads(path.read_text())
    return Result(**record["made_of"]["settings"], **record["result"])


def cells(table: str, heading: str, method: str, column: str) -> str:
    """A cell of table.md, in the first table after a heading."""
    lines = table[table.index(heading) :].splitlines()
    header = next(line for line in lines if line.startswith("| method"))
    row = next(line for line in lines if line.startswith(f"| {method} "))
    names = [cell.strip() for cell in header.split("|")]
    return row.split("|")[names.index(column)].strip()
