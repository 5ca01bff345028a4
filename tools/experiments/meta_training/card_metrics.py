"""What the tables of comparisons say of shipped weights, for the field "metrics" of their cards."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from experiments.harness.read_tables import TableRow, read_rows

#: The option that names a learned sampler's weights, by what tables call the sampler, and the weights without it, where
#: they have always been the same.
OPTIONS: dict[str, tuple[str, str | None]] = {
    "L2E": ("--l2e-network", None),
    "ScaleAdaptedL2E": ("--scale-adapted-l2e-network", None),
    "L2EPaper": ("--l2e-paper-network", "l2e-paper-first"),
    "L2E (paper)": ("--l2e-paper-network", "l2e-paper-first"),
    "KineticL2E": ("--kinetic-l2e-network", "kinetic-l2e"),
    "MetaSGMCMC": ("--meta-sgmcmc-network", None),
}
#: Untrained starts that are shipped weights.
STARTS = {"L2EOrthogonalWhitenedStart": "l2e-orthogonal-whitened"}
#: Columns of a table that go into a card.
COLUMNS = ("NLL", "accuracy", "ECE")

_NAMED = re.compile(r"^(?P<sampler>\w+) \[(?P<weights>[\w-]+)\]$")


def metrics_of(tables: Iterable[Path], names: Iterable[str]) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Of each of the weights: experiment → column → mean and standard deviation over seeds.

    An experiment is named by its preset, gradients, seeds and table. A row counts where its label names its weights, or
    the command above it does; rows of weights that are not among ``names`` are left out.

    Args:
        tables: Markdown files as ``compare.py`` and ``combine.py`` write them.
        names: of the weights.

    Raises:
        ValueError: two rows of the same weights and experiment, one of which seeds have diverged, or one that cannot
            be read.
    """
    found: dict[str, dict[str, dict[str, list[float]]]] = {name: {} for name in names}
    for table in tables:
        for row in read_rows(table):
            weights = weights_of(row)
            if weights not in found or not set(COLUMNS) <= set(row.cells) or not row.commands:
                continue
            row.check_whole(table)
            experiment = _experiment(row, table.stem)
            if experiment in found[weights]:
                raise ValueError(f"{table}: {weights} has two rows of {experiment}")
            found[weights][experiment] = {column: row.numbers(column) for column in COLUMNS}
    return {name: rows for name, rows in found.items() if rows}


def weights_of(row: TableRow) -> str | None:
    """The weights that a row is of; None for a method that has none, or where nothing says which."""
    if match := _NAMED.match(row.method):
        return match["weights"] if match["sampler"] in OPTIONS else None
    if row.method in STARTS:
        return STARTS[row.method]
    return row.option(*OPTIONS[row.method]) if row.method in OPTIONS else None


def _experiment(row: TableRow, stem: str) -> str:
    seeds = sum(int(each or 0) for each in row.options("--seeds", "3"))
    first = min(int(each or 0) for each in row.options("--seed", "0"))
    return f"{row.option('--preset', '')}, {row.budget} gradients, {seeds} seeds from {first} ({stem})"


def with_tables(card: Mapping[str, object], rows: Mapping[str, object]) -> dict[str, object]:
    """A card's metrics with what the tables say of it, in the place of what earlier ones said."""
    before = card["metrics"]
    assert isinstance(before, dict)
    own = {key: value for key, value in before.items() if key != "tables" and value != {}}
    return own | ({"tables": dict(rows)} if rows else {})
