"""Reading back the Markdown tables that `compare.py` and `combine.py` write."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from experiments.harness.tables import plain

_COMMAND = re.compile(r"^(?:- (?P<labels>[^`]*): )?`(?:for [^`]*do )?(?P<command>python tools/compare\.py [^`]*)`?\s*$")
_BUDGET = re.compile(r"^#+ (\d+) gradients$")
#: What the header of a budget's first table holds, the one with the scores of every method.
_SCORES = {"method", "lr", "samples"}


@dataclass(frozen=True)
class TableRow:
    """A method's scores at one budget.

    Attributes:
        label: what the table calls the method, with the seeds that diverged, if any did.
        budget: minibatch gradients.
        commands: the words of each command that made the row, several where it has further seeds; none where the table
            does not say.
        cells: column → text.
    """

    label: str
    budget: int
    commands: tuple[tuple[str, ...], ...]
    cells: Mapping[str, str]

    @property
    def method(self) -> str:
        """The label without its failures."""
        return plain(self.label)

    def check_whole(self, table: Path) -> None:
        """Raise ValueError, naming table and row, where a seed diverged: its numbers are means of the others alone."""
        if self.method != self.label:
            raise ValueError(f"{table}, {self.budget} gradients: {self.label} has no mean over all its seeds")

    def options(self, name: str, usual: str | None = None) -> list[str | None]:
        """The value of an option in each of the commands."""
        return [words[words.index(name) + 1] if name in words else usual for words in self.commands or ((),)]

    def option(self, name: str, usual: str | None = None) -> str | None:
        """The value of an option of the first command; commands of one row agree in all but seeds and folders."""
        return self.options(name, usual)[0]

    def numbers(self, column: str) -> list[float]:
        """Mean and standard deviation over seeds; the mean alone of one seed.

        Raises:
            ValueError: the cell is no such number.
        """
        try:
            return [float(part) for part in self.cells[column].split("±")]
        except ValueError:
            raise ValueError(f"{self.label}: {self.cells[column]!r} is no mean ± standard deviation") from None


@dataclass
class _Place:
    """What stands above the line that is read."""

    commands: tuple[tuple[str, ...], ...] = ()
    of_rows: dict[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    budget: int = 0
    header: list[str] | None = None


def read_rows(table: Path) -> Iterator[TableRow]:
    """The rows of all first tables of a file, each with the budget and the command above it."""
    place = _Place()
    for line in table.read_text().splitlines():
        if match := _COMMAND.match(line):
            words = tuple(shlex.split(match["command"].rstrip(" `").split(";")[0]))
            if match["labels"]:
                for label in match["labels"].split(", "):
                    place.of_rows[label] = (*place.of_rows.get(label, ()), words)
            else:
                place.commands, place.of_rows = (words,), {}
        elif match := _BUDGET.match(line):
            place.budget = int(match[1])
        elif not line.startswith("|"):
            place.header = None
        elif place.header is None:
            place.header = _cells(line)
        elif set(place.header) >= _SCORES and not line.startswith("|-"):
            cells = dict(zip(place.header, _cells(line)))
            label = cells["method"]
            commands = place.of_rows.get(label, place.commands)
            yield TableRow(label, place.budget, tuple(c for c in commands if _runs(c, place.budget)), cells)


def _runs(command: Sequence[str], budget: int) -> bool:
    """Whether a command has a budget among its own; one that names none takes them from its preset."""
    if "--budgets" not in command:
        return True
    rest = command[command.index("--budgets") + 1 :]
    return str(budget) in itertools.takewhile(lambda word: not word.startswith("--"), rest)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]
