"""Run samplers where the answer is known: on Gaussians, and on a posterior of two weights with two modes.

    python tools/toy.py bias        # how far each sampler is from a Gaussian, against its step size: minutes
    python tools/toy.py posterior   # SGD, SGHMC, cyclical SGMCMC and L2E between two modes: seconds

Writes table.md, results.json and figures under --out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from experiments.harness.options import parse_command
from experiments.harness.output import command_line, explained
from experiments.toys.bias import Bias
from experiments.toys.bias import draw as draw_bias
from experiments.toys.trajectories import Posterior, draw


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; `arguments` None takes those of the process."""
    with explained():
        commands: dict[str, tuple[type, Any]] = {
            "bias": (Bias, draw_bias),
            "posterior": (Posterior, draw),
        }
        options, action = parse_command(commands, arguments, __doc__)
    with explained(options.out):
        action(options, command_line("toy", arguments))


if __name__ == "__main__":
    main()
