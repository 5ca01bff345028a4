"""The table on CIFAR-10 at 32×32: `runs` chooses rates and makes the rows, `table` prints what is there.

    python tools/cifar32.py runs --data DATA                              # on a CPU: some 40 hours of a core
    python tools/cifar32.py runs --data DATA --device cuda --minutes 60   # as much of it as fits

Resumable: call it again after a stop, with the same --out.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from experiments.cifar32.run import data
from experiments.cifar32.study import Study, table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("runs", "table"))
    parser.add_argument("--data", type=Path, required=True, help="folder with cifar10.npz and cifar100.webp")
    parser.add_argument("--out", type=Path, default=Path("runs/cifar32"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, help="runs side by side: 1 on a CPU, all cores but two for a GPU")
    parser.add_argument("--minutes", type=float, help="runs: stop after so many")
    parser.add_argument("--threads", type=int, default=1, help="of a run on a CPU")
    parser.add_argument("--open", action="store_true", help="table: open the closed half of the test images, once")
    options = parser.parse_args()
    if options.command == "table":
        print(table(options.out, data(options.data) if options.open else None))
        return
    torch.set_num_threads(options.threads)
    Study(options.out, options.data, options.device, options.jobs, options.minutes).all()


if __name__ == "__main__":
    main()
