"""Small comparisons on the embedded digits, and what they leave on disk."""

import json
from pathlib import Path

from experiments.harness.runs.result import Result

ROOT = Path(__file__).parents[2]
NETWORK = ["--model", "mlp", "--hidden", "8", "--limit", "320", "--batch-size", "32", "--num-samples", "4"]
TINY = [*NETWORK, "--cycles", "2", "--temperature", "0.1", "--ensemble-size", "2", "--burn-in", "0.5"]
SMALL = ["--grid", "2", "--tries", "2", "--tune-seeds", "1", "--extensions", "0", "--values", "exploration_ratio=.8"]


def numbers(out: Path) -> dict:
    return json.loads((out / "results.json").read_text())["budgets"]


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
