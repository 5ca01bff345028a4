"""What the data say of prior and temperature: three experiments and a figure.

    python tools/prior.py headroom      # priors by layer on small tables: what could be gained (two hours of a core)
    python tools/prior.py suggestions   # a path of one chain against a grid of runs, six tasks (an hour of a core)
    python tools/prior.py cold          # T = 1 and T = 0.1, each at its own best prior (45 minutes of a core)
    python tools/prior.py relevance     # figure: which features of friedman1 matter (a minute)

Results are kept in ``--out`` and are not computed twice. Data: see ``--root``, by default LEARNED_SAMPLERS_DATA.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from experiments.prior import cold, headroom, relevance, suggestions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", choices=("headroom", "suggestions", "cold", "relevance"))
    parser.add_argument("--root", help="folder of the data sets")
    parser.add_argument("--out", type=Path, default=Path("runs/prior"))
    parser.add_argument("--seeds", type=int, default=3, help="of suggestions")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.experiment == "headroom":
        lines = headroom.report(headroom.results(arguments.root, arguments.out))
    elif arguments.experiment == "cold":
        lines = cold.table(arguments.root, arguments.out)
    elif arguments.experiment == "relevance":
        lines = relevance.figure(arguments.out)
    else:
        lines = suggestions.table(arguments.root, arguments.out, arguments.seeds)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
