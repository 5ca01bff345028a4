"""Write into the cards of shipped weights what the tables of comparisons say of them.

    python tools/card_metrics.py             # docs/tables/compare_*.md into pretrained/*.json

The field "metrics" of a card gets, under "tables", NLL, accuracy and ECE on test images, mean and standard deviation
over seeds, of every row that is known to be of these weights. Weights and badges stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro
from experiments.harness.output import explained
from experiments.meta_training.card_metrics import metrics_of, with_tables

import pretrained
from learned_samplers.base.files import write_atomically
from learned_samplers.learned.weights import card_path

TABLES = Path(__file__).parents[1] / "docs" / "tables"


@dataclass(frozen=True)
class Options:
    """Where the tables are."""

    # Folder of the tables.
    tables: Path = TABLES
    # Compare only: end with an error that names the cards that would change.
    check: bool = False


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; `arguments` None takes those of the process."""
    with explained():
        options = tyro.cli(Options, args=arguments, description=__doc__)
        found = metrics_of(sorted(options.tables.glob("compare_*.md")), pretrained.names())
        changed = []
        for name in pretrained.names():
            path = card_path(pretrained.path(name))
            card = json.loads(path.read_text())
            metrics = with_tables(card, found.get(name, {}))
            if metrics != card["metrics"]:
                changed.append(name)
                if not options.check:
                    write_atomically(path, (json.dumps({**card, "metrics": metrics}, indent=2) + "\n").encode())
        if options.check and changed:
            raise ValueError(f"the tables say something else than the cards of {', '.join(changed)}: run this tool")
    for name in pretrained.names():
        print(f"{name}: {len(found.get(name, {}))} rows{', changed' if name in changed else ''}")


if __name__ == "__main__":
    main()
