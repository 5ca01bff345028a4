"""The particle samplers on two toy problems, with the baselines beside them.

    python tools/toy.py mixtures    # three mixtures with a common region, five seeds: about a minute
    python tools/toy.py zdt3        # a Pareto front in five pieces, in its box: half an hour

Writes table.md, results.json and figure.png under --out, and every finished run, so that an interrupted command goes on
where it was.
"""

from __future__ import annotations

from collections.abc import Sequence

import tyro
from experiments.common.output import command_line, explained
from experiments.toys.experiment import ZDT3, Mixtures, ToyOptions, compare


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; `arguments` None takes those of the process."""
    with explained():
        commands = {"mixtures": Mixtures, "zdt3": ZDT3}
        options: ToyOptions = tyro.extras.subcommand_cli_from_dict(commands, args=arguments, description=__doc__)
    with explained(options.out):
        text = compare(options, command_line("toy", arguments))
    print(f"\n{text}\nwritten to {options.out}")


if __name__ == "__main__":
    main()
