"""f-SVGD beside SVGD, ensembles, the bootstrap and Monte Carlo: the experiments of its paper.

    python tools/function_space.py uci                     # nine regression sets; times: reports/function_space.md
    python tools/function_space.py uci --preset paper
    python tools/function_space.py mnist                   # classification error
    python tools/function_space.py sine                    # a one-dimensional posterior beside HMC
    python tools/function_space.py bandits                 # Thompson sampling; 5,000 rounds: a quarter of an hour

Each writes table.md and results.json (sine and bandits also figure.png) under --out. Runs are kept there: after an
interruption the same command continues.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from experiments.bandits.experiment import BanditOptions, Bandits
from experiments.function_space.images import MNIST, ImageEnsembles
from experiments.function_space.sine import Sine, SinePosteriors
from experiments.function_space.uci import UCI, Regressions
from experiments.harness.options import parse_command
from experiments.harness.output import command_line, explained
from experiments.harness.study import Experiment, carry_out

COMMANDS: dict[str, tuple[type, type[Experiment]]] = {
    "uci": (UCI, Regressions),
    "mnist": (MNIST, ImageEnsembles),
    "sine": (Sine, SinePosteriors),
    "bandits": (BanditOptions, Bandits),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; `arguments` None takes those of the process."""
    with explained():
        options, experiment = parse_command(COMMANDS, arguments, __doc__)
    torch.set_num_threads(options.threads)
    with explained(options.out):
        carry_out(experiment(options), options, command_line("function_space", arguments))


if __name__ == "__main__":
    main()
