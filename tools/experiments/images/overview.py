"""What the comparisons on CIFAR-10 say together: README's table and its figure, from the tables of docs/tables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

from experiments.harness.figures import new_figure
from experiments.harness.read_tables import TableRow, read_rows

#: How README's table begins; it ends at the next empty line.
BEGIN = "| NLL | law |"
_TEMPERATURE = re.compile(r"\bT (\d*\.?\d+(?:e[+-]?\d+)?)")


@dataclass(frozen=True)
class Panel:
    """One length of run on one network: a column of the table.

    Attributes:
        name: of the column.
        budget: minibatch gradients.
        tables: files without ``.md``; of a method that stands in several the first counts.
    """

    name: str
    budget: int
    tables: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """A method.

    Attributes:
        text: of the table, in Markdown.
        law: what its samples promise; None for what is no sampler.
        labels: what the tables call it.
        short: of the figure.
        ours: whether this project made it.
        notes: panel → mark that stands at the number.
    """

    text: str
    law: str | None
    labels: tuple[str, ...]
    short: str
    ours: bool = False
    notes: tuple[tuple[str, str], ...] = ()


_CNN = ("compare_cifar10_whitened", "compare_cifar10_matrix", "compare_cifar10_tuned", "compare_law_cifar10")
PANELS = (
    Panel("CNN, 1,000 gradients", 1000, _CNN),
    Panel("CNN, 5,000", 5000, _CNN),
    Panel(
        "ResNet-20, 2,000",
        2000,
        ("compare_resnet_orthogonal_whitened", "compare_resnet_proxy", "compare_resnet_whitened"),
    ),
    Panel("ResNet-20, 8,000", 8000, ("compare_resnet_8000",)),
)
ROWS = (
    Row(
        "**`L2E`**, default weights: a direction chosen by hand, a learned gate on it",
        "–",
        ("L2E [l2e-gated]",),
        "L2E, default weights",
        ours=True,
    ),
    Row(
        '`L2E(network="l2e-orthogonal-whitened")`: the direction alone, without the gate',
        "–",
        ("L2EOrthogonalWhitenedStart", "L2E [l2e-orthogonal-whitened]"),
        "L2E, without the gate",
        ours=True,
    ),
    Row(
        '`L2E(network="l2e-sparse")`: all learned, from φ₀; no gate',
        "–",
        ("L2E [l2e-sparse]",),
        "L2E, learned from φ₀",
        ours=True,
    ),
    Row("φ₀, its untrained start: Adam's direction", "–", ("L2EStart",), "φ₀, Adam's direction"),
    Row(
        "**`ScaleAdaptedL2E`**, default weights: with that gate, and a law",
        "O(h)",
        ("ScaleAdaptedL2E [scale-adapted-l2e-gated]",),
        "ScaleAdaptedL2E, default weights",
        ours=True,
        notes=(("ResNet-20, 2,000", "†"),),
    ),
    Row(
        '`ScaleAdaptedL2E(network="scale-adapted-l2e-orthogonal-whitened")`: without it',
        "O(h)",
        ("ScaleAdaptedL2E [scale-adapted-l2e-orthogonal-whitened]",),
        "ScaleAdaptedL2E, without the gate",
        ours=True,
        notes=(("ResNet-20, 2,000", "†"),),
    ),
    Row("`ScaleAdaptedSGHMC`", "O(h)", ("ScaleAdaptedSGHMC",), "ScaleAdaptedSGHMC"),
    Row("`SGHMC`", "O(h)", ("SGHMC",), "SGHMC"),
    Row("`BAOA`", "O(h)", ("BAOA",), "BAOA", notes=(("ResNet-20, 2,000", "†"),)),
    Row("`CyclicalSGMCMC`", "–", ("CyclicalSGMCMC",), "CyclicalSGMCMC"),
    Row("Muon with a cosine", None, ("Muon",), "Muon, cosine", notes=(("ResNet-20, 2,000", "†"),)),
    Row("average over Muon's trajectory", None, ("MuonAverage",), "Muon, trajectory average"),
    Row("average over Shampoo's trajectory", None, ("ShampooAverage",), "Shampoo, trajectory average"),
    Row("SGD with a cosine", None, ("SGD",), "SGD, cosine", notes=(("CNN, 1,000 gradients", "‡"),)),
    Row("Adam with a cosine", None, ("Adam",), "Adam, cosine"),
    Row("moving average of Adam's weights", None, ("AdamEMA",), "Adam, moving average"),
    Row(
        "average over Adam's trajectory",
        None,
        ("AdamAverage",),
        "Adam, trajectory average",
        notes=(("ResNet-20, 2,000", "†"),),
    ),
    Row("SWAG", None, ("SWAG",), "SWAG"),
    Row("IVON", None, ("IVON",), "IVON"),
)

Scores = Mapping[tuple[str, str], list[float]]


def _rows(folder: Path) -> dict[tuple[str, str], TableRow]:
    """(panel, method's short name) → its row; what was not run is left out.

    Raises:
        ValueError: seeds of a row that counts diverged.
    """
    found: dict[tuple[str, str], TableRow] = {}
    for panel in PANELS:
        for table in panel.tables:
            path = folder / f"{table}.md"
            there = {row.method: row for row in read_rows(path) if row.budget == panel.budget and "NLL" in row.cells}
            for method in ROWS:
                for label in method.labels:
                    if label in there and (panel.name, method.short) not in found:
                        there[label].check_whole(path)
                        found[panel.name, method.short] = there[label]
    return found


def scores(folder: Path) -> dict[tuple[str, str], list[float]]:
    """(panel, method's short name) → NLL on test images, mean and standard deviation; what was not run is left out."""
    return {key: row.numbers("NLL") for key, row in _rows(folder).items()}


def temperatures(folder: Path) -> dict[tuple[str, str], str]:
    """(panel, method's short name) → the temperature that it was tuned to, of those that have one."""
    found = {key: _TEMPERATURE.search(row.cells.get("also tuned", "")) for key, row in _rows(folder).items()}
    return {key: match[1].removeprefix("0") or "0" for key, match in found.items() if match}


def markdown(found: Scores, cold: Mapping[tuple[str, str], str]) -> str:
    """The table, the lowest mean of each column in bold, and the temperatures of what has a law.

    Args:
        found: as of `scores`.
        cold: as of `temperatures`.
    """
    best = {p.name: min(found[key][0] for key in found if key[0] == p.name) for p in PANELS}
    lines = [BEGIN + "".join(f" {panel.name} |" for panel in PANELS), "|---|---|" + "---:|" * len(PANELS)]
    for row in ROWS:
        cells = [row.text, row.law or ""]
        known = [cold.get((panel.name, row.short)) for panel in PANELS]
        if row.law == "O(h)" and any(known):
            cells[1] = f"O(h); T = {', '.join(each or '–' for each in known)}"
        for panel in PANELS:
            numbers = found.get((panel.name, row.short))
            text = "–" if numbers is None else " ± ".join(_short(number) for number in numbers)
            if numbers is not None and _short(numbers[0]) == _short(best[panel.name]):
                text = f"**{text}**"
            cells.append(" ".join(filter(None, (text, dict(row.notes).get(panel.name)))))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _short(number: float) -> str:
    """Three decimals, half up as a reader rounds the four of a table, without the zero before the point."""
    return str(Decimal(str(number)).quantize(Decimal("0.001"), ROUND_HALF_UP)).removeprefix("0")


def put_into(page: str, table: str) -> str:
    """A page with this table in the place of the one that it has.

    Raises:
        ValueError: the page has no such table, or several.
    """
    if page.count(f"\n{BEGIN}") != 1:
        raise ValueError(f"the page must have one table that begins with {BEGIN!r}, and has {page.count(BEGIN)}")
    start = page.index(f"\n{BEGIN}") + 1
    return page[:start] + table + page[page.index("\n\n", start) :]


def figure(found: Scores, *, dark: bool) -> Any:
    """The same as dots with their standard deviations, a panel a column, the best method on top."""
    ground, ink, pale = ("#1e2129", "#e6e6e6", "0.35") if dark else ("white", "black", "0.88")
    accent, law, other = ("#FF9F4A", "#56B4E9", "0.6") if dark else ("#D55E00", "#0072B2", "0.45")
    fig = new_figure(11, 4.6)
    fig.patch.set_facecolor(ground)
    order = sorted(ROWS, key=lambda row: _rank(row, found), reverse=True)
    axes = fig.subplots(1, len(PANELS), sharey=True)
    for ax, panel in zip(axes, PANELS):
        ax.set_facecolor(ground)
        for place, row in enumerate(order):
            if (numbers := found.get((panel.name, row.short))) is None:
                continue
            colour = accent if row.ours else law if row.law == "O(h)" else other
            mark = "D" if row.law == "O(h)" else "o"
            error = numbers[1] if len(numbers) > 1 else None
            ax.errorbar(numbers[0], place, xerr=error, fmt=mark, color=colour, markersize=5, capsize=2, elinewidth=1.2)
        ax.set_title(panel.name, color=ink, fontsize=10)
        ax.set_xlabel("NLL", color=ink)
        ax.grid(True, color=pale, linewidth=0.8)
        ax.set_axisbelow(True)
        ax.tick_params(colors=ink, labelsize=8)
        for spine in ax.spines.values():
            spine.set_color(pale)
    axes[0].set_yticks(range(len(order)), [row.short for row in order])
    for text, row in zip(axes[0].get_yticklabels(), order):
        text.set_color(accent if row.ours else ink)
    return fig


def _rank(row: Row, found: Scores) -> float:
    """Mean over the panels of a method's NLL over the lowest of the panel."""
    ratios = []
    for panel in PANELS:
        if (numbers := found.get((panel.name, row.short))) is not None:
            lowest = min(each[0] for key, each in found.items() if key[0] == panel.name)
            ratios.append(numbers[0] / lowest)
    return sum(ratios) / len(ratios) if ratios else float("inf")
