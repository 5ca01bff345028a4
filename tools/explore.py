"""Does it explore? Long chains of every sampler by the protocol of experiments/explore, and a table.

    python tools/explore.py                  # the digits: some hours of one core
    python tools/explore.py --part fashion   # Fashion-MNIST: half a day and more

Under --out: table.md, results.json, TensorBoard curves, samples, and every run: the same command goes on from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
import tyro
from experiments.explore.experiment import SEEDS, Experiment, ExploreOptions
from experiments.harness.output import command_line, explained, settings_of, write_outputs


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; `arguments` None takes those of the process."""
    with explained():
        options = tyro.cli(ExploreOptions, args=arguments, description=__doc__, default=ExploreOptions(seeds=6))
        options.chosen()
        options = replace(options, out=options.out or Path("runs") / f"explore_{options.part}")
        options = replace(options, seeds=min(options.seeds, SEEDS[options.part]))
        torch.set_num_threads(options.threads)
        experiment = Experiment(options)
    assert options.out is not None
    text = ""
    with explained(options.out):
        for text in experiment.all():
            content = {"settings": settings_of(options), "rows": experiment.found}
            write_outputs(options.out, command_line("explore", arguments), text, content)
    print(f"{text}\nwritten to {options.out}")


if __name__ == "__main__":
    main()
