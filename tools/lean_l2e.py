"""Meta-train 15 numbers of L2E against `SGHMC` at its best prior (protocol: `experiments/meta_training/lean.py`).

    python tools/lean_l2e.py --minutes 60     # goes on from the checkpoint in --folder

Ctrl-C saves, and the same command goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro
from experiments.harness.output import explained
from experiments.meta_training.lean import trainer
from experiments.meta_training.lean_rule import LeanRule

from meta_tasks.training.process import one_core


@dataclass(frozen=True)
class Options:
    """Of the run."""

    folder: Path = Path("runs/state/lean_l2e")  # Of the checkpoint.
    minutes: float | None = None  # Minutes of training in this call.
    iterations: int = 2000  # Iterations in all.


def train(options: Options) -> None:
    """Go on with the run in the folder, and print its meta-parameters."""
    options.folder.mkdir(parents=True, exist_ok=True)
    run = trainer(options.folder, options.iterations)
    ended = run.run(options.minutes, progress=True)
    print(f"{ended} after {run.iteration} iterations, {run.seconds / 60:.1f} minutes")
    print(", ".join(f"{name} {w:.3f}" for name, w in zip(LeanRule.names, run.averaged.tolist(), strict=True)))
    run.close()


if __name__ == "__main__":
    with explained():
        one_core()
        train(tyro.cli(Options, description=__doc__))
