"""Meta-train 15 numbers of L2E against `SGHMC` at its best prior (protocol: `experiments/meta_training/lean.py`).

    python tools/lean_l2e.py --minutes 60     # goes on from the checkpoint in --folder

Ctrl-C saves, and the same command goes on.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from experiments.meta_training.lean import trainer
from experiments.meta_training.lean_rule import LeanRule

from meta_tasks.training.process import one_core


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/state/lean_l2e"))
    parser.add_argument("--minutes", type=float, help="of training in this call")
    parser.add_argument("--iterations", type=int, default=2000, help="in all")
    arguments = parser.parse_args()
    one_core()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    run = trainer(arguments.folder, arguments.iterations)
    ended = run.run(arguments.minutes, progress=True)
    print(f"{ended} after {run.iteration} iterations, {run.seconds / 60:.1f} minutes")
    print(", ".join(f"{n} {w:.3f}" for n, w in zip(LeanRule.names, run.averaged.tolist(), strict=True)))
    run.close()


if __name__ == "__main__":
    main()
