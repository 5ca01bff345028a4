"""One chain or several for one budget of gradients: a CNN on Fashion-MNIST at 14×14.

    python tools/chains.py    # one, three and five chains at two budgets, three seeds: minutes of a core

Writes table.md and results.json under --out; runs that are there are read back.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from experiments.chains.budget import Budget, OneOrSeveral
from experiments.harness.options import parse
from experiments.harness.output import command_line, explained
from experiments.harness.study import carry_out


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; `arguments` None takes those of the process."""
    with explained():
        options = parse(arguments, Budget(), {}, __doc__)
    torch.set_num_threads(options.threads)
    with explained(options.out):
        carry_out(OneOrSeveral(options), options, command_line("chains", arguments))


if __name__ == "__main__":
    main()
