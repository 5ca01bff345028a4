"""Small networks on tables: ours, microcanonical ensembles (bde), ensembles, dropout, a Gaussian process.

    python tools/tables.py --bde-python venv_bde/bin/python                              # some hours of one core
    python tools/tables.py --sets concrete yacht --splits gap0 gap1 gap2 --methods ours gp

bde is the package sklearn-contrib-bde, which may lie in an environment of its own. The protocol is in
experiments/tables. Under --out: table.md, results.json and every run: the same command goes on from there.
"""

from __future__ import annotations

from collections.abc import Sequence

import tyro
from experiments.harness.output import command_line, explained
from experiments.harness.study import carry_out
from experiments.tables.comparison import Tables, TablesOptions


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; `arguments` None takes those of the process."""
    with explained():
        options = tyro.cli(TablesOptions, args=arguments, description=__doc__)
    with explained(options.out):
        carry_out(Tables(options), options, command_line("tables", arguments))


if __name__ == "__main__":
    main()
