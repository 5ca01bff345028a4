"""Put several comparisons of `compare.py` into one table, as if one command had made them.

    python tools/combine.py runs/adam runs/mine                          # folders of compare.py
    python tools/combine.py docs/tables/results/resnet_2000.json runs/mine --out runs/all

For methods that were run one by one, on several machines, or with several weight files of one sampler, and for more
seeds of a row at the setting that it has (compare.py's --given and --seed), which become one row. The comparisons must
be of the same data, network, posterior and budgets. Differences to the first row are paired over common seeds. Nothing
is run: under --out come table.md, with the command of every row, and results.json, which can be combined again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro
from experiments.harness.output import command_line, explained, write_outputs
from experiments.images.combined import combined, read, sources
from experiments.images.compare_notes import NOTES, OTHER_CODE
from experiments.images.compare_report import tables


@dataclass(frozen=True)
class Options:
    """Which comparisons."""

    # Folders of compare.py, or files that it wrote as results.json, in the order of the rows.
    comparisons: tyro.conf.Positional[tuple[Path, ...]]
    # Folder for the table.
    out: Path = Path("runs/combined")

    def __post_init__(self) -> None:
        if not self.comparisons:
            raise ValueError("comparisons: at least one is needed")


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; `arguments` None takes those of the process."""
    with explained():
        options = tyro.cli(Options, args=arguments, description=__doc__)
        numbers = combined({str(path): read(path) for path in options.comparisons})
        other_code = OTHER_CODE if any(found["other_code"] for found in numbers.values()) else ""
        parts = ["\n".join(["Made by", "", *sources(numbers)]), NOTES + other_code]
        parts += [tables(budget, found) for budget, found in numbers.items()]
        text = "\n\n".join(parts)
        write_outputs(
            options.out,
            command_line("combine", arguments),
            text,
            {"budgets": {str(budget): found for budget, found in numbers.items()}},
        )
    print(text)
    print(f"\nin {options.out}: table.md, results.json")


if __name__ == "__main__":
    main()
