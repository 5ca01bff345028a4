"""Meta-SGMCMC against SGLD and SGHMC on Gaussian posteriors unlike those of its training: correlated and noisy.

    python tools/gaussians.py --network runs/toy/weights.safetensors

Every sampler takes one gradient a step, from the same initial states. SGLD and SGHMC get the learning rate and momentum
decay of a grid that are best on other tasks of the same kind; the learned sampler those of its card. Writes table.md,
results.json, figure.png (states over the contours of a task in the plane, KL over steps) and contours.png (what the
networks learned) under --out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import tyro
from experiments.harness.output import command_line, explained
from experiments.toys.gaussians import Options, learned, write


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; `arguments` None takes those of the process."""
    with explained():
        options = tyro.cli(Options, args=arguments, description=__doc__)
        meta = learned(options)
        torch.set_num_threads(1)
        print(write(options, meta, command_line("gaussians", arguments)))


if __name__ == "__main__":
    main()
