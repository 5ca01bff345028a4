"""Five particles on two tasks: MT-SGD beside its baselines on Multi-MNIST and its like.

    python tools/multi_task.py --preset cpu       # small runs, the whole table with its tuning: 40 minutes
    python tools/multi_task.py --preset paper --device cuda

The files of MNIST and Fashion-MNIST are needed.

For each data set and method learning rates (and, where particles repel each other, two scales of the energies) are
tried on the first seed, in short runs. The choice with the lowest NLL on the validation images (of the ensemble, mean
over the tasks) is trained in full on all seeds; of every run the particles of the epoch with the lowest validation NLL
are kept and scored on the test images, which nothing else has seen. Where the best rate is the smallest or the largest
tried, the next one is tried too.

Under --out: table.md, results.json, figure.png, and every run with its particles. Runs are kept: after an interruption
the same command continues, and parts may be run alone (--dataset, --method).
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments.harness.output import command_line, explained
from experiments.harness.study import carry_out
from experiments.multi_task.experiment import MultiTask, parse


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; `arguments` None takes those of the process."""
    with explained():
        options = parse(arguments, __doc__)
    with explained(options.out):
        carry_out(MultiTask(options), options, command_line("multi_task", arguments))


if __name__ == "__main__":
    main()
