"""What the tables of comparisons say of shipped weights, for the field "metrics" of their cards."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

#: The option that names a learned sampler's weights, by what tables call the sampler, and the weights without it, where
#: they have always been the same.
OPTIONS: dict[str, tuple[str, str | None]] = {
    "L2E": ("--l2e-network", None),
    "ScaleAdaptedL2E": ("--scale-adapted-l2e-network", None),
    "L2EPaper": ("--l2e-paper-network", "l2e-paper"),
    "L2E (paper)": ("--l2e-paper-network", "l2e-paper"),
    "KineticL2E": ("--kinetic-l2e-network", "kinetic-l2e"),
}
#: Untrained starts that are shipped weights.
STARTS = {"L2EOrthogonalWhitenedStart": "l2e-orthogonal-whitened"}
#: Columns of a table that go into a card.
COLUMNS = ("NLL", "accuracy", "ECE")

_COMMAND = re.compile(r"^(?:- (?P<labels>[^`]*): )?`(?:for [^`]*do )?(?P<command>python tools/compare\.py [^`]*)`?\s*$")
_BUDGET = re.compile(r"^#+ (\d+) gradients$")
_NAMED = re.compile(r"^(?P<sampler>\w+) \[(?P<weights>[\w-]+)\]$")


@dataclass
class _Place:
    """What stands above the line that is read."""

    command: list[str] = field(default_factory=list)
    of_rows: dict[str, list[str]] = field(default_factory=dict)
    budget: str = ""
    header: list[str] | None = None


def metrics_of(tables: Iterable[Path], names: Iterable[str]) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Of each of the weights: experiment → column → mean and standard deviation over seeds.

    An experiment is named by its preset, gradients, seeds and table. A row counts where its label names its weights, or
    the command above it does; rows of weights that are not among ``names`` are left out.

    Args:
        tables: Markdown files as ``compare.py`` and ``combine.py`` write them.
        names: of the weights.

    Raises:
        ValueError: two rows of the same weights and experiment, or one that cannot be read.
    """
    found: dict[str, dict[str, dict[str, list[float]]]] = {name: {} for name in names}
    for table in tables:
        for weights, experiment, numbers in _rows(table):
            if weights not in found:
                continue
            if experiment in found[weights]:
                raise ValueError(f"{table}: {weights} has two rows of {experiment}")
            found[weights][experiment] = numbers
    return {name: rows for name, rows in found.items() if rows}


def _rows(table: Path) -> Iterator[tuple[str, str, dict[str, list[float]]]]:
    """Weights, experiment and numbers of each row of a learned sampler."""
    place = _Place()
    for line in table.read_text().splitlines():
        if match := _COMMAND.match(line):
            words = shlex.split(match["command"].rstrip(" `").split(";")[0])
            if match["labels"]:
                place.of_rows |= dict.fromkeys(match["labels"].split(", "), words)
            else:
                place.command, place.of_rows = words, {}
        elif match := _BUDGET.match(line):
            place.budget = match[1]
        elif not line.startswith("|"):
            place.header = None
        elif place.header is None:
            place.header = _cells(line)
        elif {"lr", "samples", *COLUMNS} <= set(place.header) and not line.startswith("|-"):
            row = dict(zip(place.header, _cells(line)))
            command = place.of_rows.get(row["method"], place.command)
            if command and (weights := _weights(row["method"], command)):
                numbers = {column: _numbers(row[column], table) for column in COLUMNS}
                yield weights, _experiment(command, place.budget, table.stem), numbers


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _weights(label: str, command: list[str]) -> str | None:
    """The weights that a row is of; None for a method that has none, or where nothing says which."""
    if match := _NAMED.match(label):
        return match["weights"] if match["sampler"] in OPTIONS or match["sampler"] == "MetaSGMCMC" else None
    if label in STARTS:
        return STARTS[label]
    if label not in OPTIONS:
        return None
    option, usual = OPTIONS[label]
    return _option(command, option, usual)


def _option(command: list[str], name: str, usual: str | None) -> str | None:
    return command[command.index(name) + 1] if name in command else usual


def _experiment(command: list[str], budget: str, stem: str) -> str:
    seeds, first = _option(command, "--seeds", "3"), _option(command, "--seed", "0")
    return f"{_option(command, '--preset', '')}, {budget} gradients, {seeds} seeds from {first} ({stem})"


def _numbers(cell: str, table: Path) -> list[float]:
    """Mean and standard deviation; the mean alone of one seed."""
    try:
        return [float(part) for part in cell.split("±")]
    except ValueError:
        raise ValueError(f"{table}: {cell!r} is no mean ± standard deviation") from None


def with_tables(card: Mapping[str, object], rows: Mapping[str, object]) -> dict[str, object]:
    """A card's metrics with what the tables say of it, in the place of what earlier ones said."""
    before = card["metrics"]
    assert isinstance(before, dict)
    own = {key: value for key, value in before.items() if key != "tables" and value != {}}
    return own | ({"tables": dict(rows)} if rows else {})
