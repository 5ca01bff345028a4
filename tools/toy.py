"""The particle samplers on two toy problems, with the baselines beside them.

    python tools/toy.py mixtures    # three mixtures with a common region, five seeds: about a minute
    python tools/toy.py zdt3        # a Pareto front in five pieces, in its box: half an hour

Writes table.md, results.json and figure.png under --out, and every finished run, so that an interrupted command goes on
where it was.
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments.common.options import parse_command
from experiments.common.output import command_line, explained
from experiments.toys.experiment import ZDT3, Mixtures, compare


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; `arguments` None takes those of the process."""
    with explained():
        options, action = parse_command({"mixtures": (Mixtures, compare), "zdt3": (ZDT3, compare)}, arguments, __doc__)
    with explained(options.out):
        action(options, command_line("toy", arguments))


if __name__ == "__main__":
    main()
