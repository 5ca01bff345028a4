"""Run samplers where the answer is known: on Gaussians, and in one dimension.

    python tools/toy.py bias         # how far each sampler is from a Gaussian, against its step size: minutes
    python tools/toy.py regression   # L2E beside HMC in one dimension, with a gap in the data: minutes

Writes table.md, results.json and figures under --out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from experiments.harness.options import parse_command
from experiments.harness.output import command_line, explained
from experiments.harness.study import Experiment, carry_out
from experiments.toys.bias import Bias, Biases
from experiments.toys.regression import GapRegression, Regression

COMMANDS: dict[str, tuple[type, type[Experiment]]] = {
    "bias": (Bias, Biases),
    "regression": (Regression, GapRegression),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; `arguments` None takes those of the process."""
    with explained():
        options, experiment = parse_command(COMMANDS, arguments, __doc__)
    torch.set_num_threads(1)
    with explained(options.out):
        carry_out(experiment(options), options, command_line("toy", arguments))


if __name__ == "__main__":
    main()
