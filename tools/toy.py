"""Run samplers where the answer is known: on Gaussians, and in one dimension.

    python tools/toy.py bias         # how far each sampler is from a Gaussian, against its step size: minutes
    python tools/toy.py regression   # L2E beside HMC in one dimension, with a gap in the data: minutes

Writes table.md, results.json and figures under --out.
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments.harness.options import Action, parse_command
from experiments.harness.output import command_line, explained
from experiments.toys.bias import Bias
from experiments.toys.bias import draw as draw_bias
from experiments.toys.regression import Regression, regression

COMMANDS: dict[str, tuple[type, Action]] = {"bias": (Bias, draw_bias), "regression": (Regression, regression)}


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; `arguments` None takes those of the process."""
    with explained():
        options, action = parse_command(COMMANDS, arguments, __doc__)
    with explained(options.out):
        action(options, command_line("toy", arguments))


if __name__ == "__main__":
    main()
