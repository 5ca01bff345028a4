"""Find out which weights are better: networks of L2E on the same fresh tasks, with common random numbers.

    python tools/paired.py l2e runs/mine/weights.safetensors --family digits     # needs no file; the default does
    python tools/paired.py runs/a/weights.safetensors runs/b/weights.safetensors
    python tools/paired.py runs/start/weights.safetensors runs/l2e/weights.safetensors --shares 0.2 0.5 0.8

Every network runs on every task from the same initial weights, minibatches and noise, so that the loss of one over that
of another says more than either: three held-out tasks differ by more than ten iterations of meta-training do. The tasks
are drawn from the family under a name that no meta-training uses, and scored on their validation images, never on test
images: this is the tool to choose weights with. Losses are kept under --out; the same command goes on, and more tasks,
steps or networks are added to what is there, as long as the data and torch's version are the same.

--steps counts minibatch gradients: a network of Kinetic-L2E, whose step takes two, does half as many steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import tyro
from experiments.harness.output import explained
from experiments.meta_training.paired import Options, run, table

from meta_tasks.training.process import one_core


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; `arguments` None takes those of the process."""
    one_core()
    with explained():
        options = tyro.cli(Options, args=arguments, description=__doc__)
        found = run(options)
    names = [*options.networks, *(f"share {share:g}" for share in options.shares)]
    for gradients, losses in found.items():
        datasets = f" ({', '.join(options.datasets)})" if options.datasets else ""
        print(f"\n{options.tasks} tasks of {options.family}{datasets}, {gradients} gradients\n\n{table(names, losses)}")
    print(
        "\nloss: of the model average on validation images, in nats, the geometric mean over the tasks that every "
        "network finished; ±: standard error over tasks; failed: not finite"
    )


if __name__ == "__main__":
    main()
