"""Put what the tables of CIFAR-10 say together into README's table, and draw it.

    python tools/overview.py                 # README.md, docs/figures/overview_light.png and overview_dark.png
    python tools/overview.py --check         # does README say what the tables say?

Nothing is run: numbers are read from docs/tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro
from experiments.harness.output import explained
from experiments.images.overview import figure, markdown, put_into, scores, temperatures

from learned_samplers.base.files import write_atomically

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Options:
    """Which pages and tables."""

    # The page that has the table.
    page: Path = ROOT / "README.md"
    # Folder of the tables.
    tables: Path = ROOT / "docs" / "tables"
    # Folder of the figures.
    figures: Path = ROOT / "docs" / "figures"
    # Compare only: end with an error where the page says something else.
    check: bool = False


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; `arguments` None takes those of the process."""
    with explained():
        options = tyro.cli(Options, args=arguments, description=__doc__)
        found = scores(options.tables)
        page, table = options.page.read_text(), markdown(found, temperatures(options.tables))
        new = put_into(page, table)
        if options.check:
            if new != page:
                raise ValueError(f"{options.page} does not say what the tables say: run this tool")
            return
        write_atomically(options.page, new.encode())
        options.figures.mkdir(parents=True, exist_ok=True)
        for theme in ("light", "dark"):
            fig = figure(found, dark=theme == "dark")
            fig.savefig(options.figures / f"overview_{theme}.png", dpi=110, facecolor=fig.get_facecolor())
    print(table)
    print(f"\nin {options.page}; figures in {options.figures}")


if __name__ == "__main__":
    main()
