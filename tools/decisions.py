"""Posterior samples where something has to be decided: what to try or label next, which predictions to keep.

    python tools/decisions.py optimise      # Bayesian optimisation on four functions, beside BoTorch's Gaussian process
    python tools/decisions.py label         # active learning on Fashion-MNIST
    python tools/decisions.py select        # risk against coverage on Fashion-MNIST

Each writes table.md, results.json and figure.png under --out. Runs are kept there: after an interruption the same
command continues. The protocols are in experiments/decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from experiments.decisions.labelling import LabellingOptions, label
from experiments.decisions.optimisation import OptimisationOptions, optimise
from experiments.decisions.selection import SelectionOptions, select
from experiments.harness.options import parse_command
from experiments.harness.output import command_line, explained

COMMANDS: dict[str, tuple[type, Callable[..., Any]]] = {
    "optimise": (OptimisationOptions, optimise),
    "label": (LabellingOptions, label),
    "select": (SelectionOptions, select),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; `arguments` None takes those of the process."""
    with explained():
        options, action = parse_command(COMMANDS, arguments, __doc__)
    torch.set_num_threads(options.threads)
    with explained(options.out):
        action(options, command_line("decisions", arguments))


if __name__ == "__main__":
    main()
