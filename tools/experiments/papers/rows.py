"""A row of docs/papers.md, and where its numbers come from: a cell of a table, or words of a page."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Cell:
    """A cell of a table under docs/tables.

    Args:
        table: file name without its ending.
        under: headings, one after the other; the first table after the last of them with this row and column is taken.
        row: its first cell.
        column: its heading.
    """

    table: str
    under: tuple[str, ...]
    row: str
    column: str

    @property
    def page(self) -> str:
        """The file, below docs/."""
        return f"tables/{self.table}.md"

    def text(self, docs: Path) -> str:
        """What stands there; ValueError if there is no such cell."""
        lines = (docs / self.page).read_text().splitlines()
        start = 0
        for heading in self.under:
            places = [i for i, line in enumerate(lines) if i >= start and line.lstrip("#").strip() == heading]
            places = [i for i in places if lines[i].startswith("#")]
            if not places:
                raise ValueError(f"{self.page} has no heading {heading!r} of {self.under}")
            start = places[0] + 1
        names: list[str] = []
        for line in lines[start:]:
            if line.startswith("#"):
                break
            cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
            if not cells:
                names = []
            elif not names:
                names = cells
            elif cells[0] == self.row and self.column in names:
                return cells[names.index(self.column)]
        raise ValueError(f"{self.page} has no cell {self.row!r}, {self.column!r} under {self.under}")


@dataclass(frozen=True)
class Quote:
    """Words that stand on a page below docs/, or in README.md, line breaks aside."""

    page: str
    words: str

    def text(self, docs: Path) -> str:
        """The words; ValueError if the page has not got them."""
        path = docs.parent / self.page if self.page == "README.md" else docs / self.page
        if self.words not in re.sub(r"\s+", " ", path.read_text()):
            raise ValueError(f"{self.page} does not say {self.words!r}")
        return self.words


@dataclass(frozen=True)
class Row:
    """What a table, figure or appendix claims, and what there is of it here.

    Args:
        item: as the paper calls it.
        claim: what it shows.
        command: what does it here, at the scale of the numbers; empty where nothing does.
        numbers: what was found, by name; none where it has not been run.
        scale: of the numbers, or why there are none.
        full: what does it at the paper's scale; empty where nothing does, or the command does.
        between: what differs from the paper, or is missing.
    """

    item: str
    claim: str
    command: str = ""
    numbers: tuple[tuple[str, Cell | Quote], ...] = ()
    scale: str = ""
    full: str = ""
    between: str = ""


def table(rows: tuple[Row, ...], docs: Path) -> str:
    """The rows as Markdown."""
    lines = [
        "| what | what it claims | here | what came out, at which scale | at its own scale | what stands between |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        found = "; ".join(f"{name} {number.text(docs)}".strip() for name, number in row.numbers)
        pages = dict.fromkeys(number.page for _, number in row.numbers)
        links = ", ".join(f"[{_title(page)}]({_link(page)})" for page in pages)
        numbers = f"{found} ({links})" if found else ""
        unknown = "not run" if (row.command or row.full) and not numbers and not row.scale else ""
        cells = [
            f"**{row.item}**",
            row.claim,
            _code(row.command),
            ". ".join(filter(None, (numbers, unknown, row.scale))),
            _code(row.full),
            row.between,
        ]
        lines.append(f"| {' | '.join(cell or '–' for cell in cells)} |")
    return "\n".join(lines)


def _code(command: str) -> str:
    return f"`{command}`" if command else ""


def _title(page: str) -> str:
    return Path(page).stem.replace("_", " ")


def _link(page: str) -> str:
    return "../README.md" if page == "README.md" else page
