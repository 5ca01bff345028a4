"""Tables in Markdown, and the numbers in their cells."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar


class Outcome(Protocol):
    """A run that may have diverged."""

    @property
    def diverged(self) -> str | None: ...


R = TypeVar("R", bound=Outcome)


def markdown(table: Sequence[Mapping[str, str]]) -> str:
    """The rows as an aligned Markdown table; all columns but the first are numbers, and stand to the right."""
    first, *_ = headings = list(table[0])
    widths = {h: max(len(h), *(len(row[h]) for row in table)) for h in headings}

    def line(row: Mapping[str, str]) -> str:
        cells = (row[h].ljust(widths[h]) if h == first else row[h].rjust(widths[h]) for h in headings)
        return f"| {' | '.join(cells)} |"

    rule = "|".join("-" * (widths[h] + 1) + ("-" if h == first else ":") for h in headings)
    return "\n".join([line({h: h for h in headings}), f"|{rule}|", *map(line, table)])


def rectangular(table: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """The rows with the headings of all of them, and a dash where a row has no such cell."""
    headings = dict.fromkeys(heading for row in table for heading in row)
    return [{heading: row.get(heading, "–") for heading in headings} for row in table]


def mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and standard deviation over seeds (n − 1; nan for one seed)."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else float("nan")


def spread(values: Sequence[float], decimals: int) -> str:
    """Mean ± standard deviation, in so many decimals; the mean alone for one value, a dash for none."""
    if not values:
        return "–"
    mean, std = mean_and_std(values)
    return f"{mean:.{decimals}f} ± {std:.{decimals}f}" if len(values) > 1 else f"{mean:.{decimals}f}"


def with_error(values: Sequence[float], decimals: int) -> str:
    """Mean ± standard error of the mean; the mean alone for one value, a dash for none."""
    if len(values) < 2:
        return spread(values, decimals)
    mean, std = mean_and_std(values)
    return f"{mean:.{decimals}f} ± {std / len(values) ** 0.5:.{decimals}f}"


def finished(results: Sequence[R]) -> list[R]:
    """The runs that did not diverge."""
    return [result for result in results if result.diverged is None]
