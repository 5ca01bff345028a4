"""Evidence of the data about prior and temperature: two experiments and a figure.

    python tools/prior.py suggestions   # a path of one chain against a grid of runs, six tasks (an hour of a core)
    python tools/prior.py cold          # T = 1 and T = 0.1, each at its own best prior (45 minutes of a core)
    python tools/prior.py relevance     # figure: which features of friedman1 matter (a minute)

Results are kept in ``--out`` and are not computed twice. Data: see ``--root``, by default LEARNED_SAMPLERS_DATA.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import tyro
from experiments.harness.output import explained
from experiments.prior import cold, relevance, suggestions


@dataclass(frozen=True)
class Options:
    """Which experiment, where its data lie and its results go."""

    # What to run.
    experiment: tyro.conf.Positional[Literal["suggestions", "cold", "relevance"]]
    root: str | None = None  # Folder of the data sets.
    out: Path = Path("runs/prior")  # Folder of the runs and figures.
    seeds: int = 3  # Of suggestions.


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; `arguments` None takes those of the process."""
    with explained():
        options = tyro.cli(Options, args=arguments, description=__doc__)
    torch.set_num_threads(1)
    with explained(options.out):
        options.out.mkdir(parents=True, exist_ok=True)
        lines = {
            "suggestions": lambda: suggestions.table(options.root, options.out, options.seeds),
            "cold": lambda: cold.table(options.root, options.out),
            "relevance": lambda: relevance.figure(options.out),
        }[options.experiment]()
    print("\n".join(lines))


if __name__ == "__main__":
    main()
