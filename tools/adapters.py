"""Posteriors of an adapter against their rivals: LoRA on 100 and 1,000 labels of two tasks.

    python tools/adapters.py

Writes table.md and results.json under --out, where the pretrained weights and the runs are kept too: after an
interruption the same command continues. The protocol is in experiments/adapters/study.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import tyro
from experiments.adapters.study import AdapterOptions, compare
from experiments.harness.output import command_line, explained


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; `arguments` None takes those of the process."""
    with explained():
        options = tyro.cli(AdapterOptions, args=arguments, description=__doc__)
    torch.set_num_threads(options.threads)
    with explained(options.out):
        compare(options, command_line("adapters", arguments))


if __name__ == "__main__":
    main()
