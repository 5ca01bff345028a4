"""The table on CIFAR-10 at 32×32: `tune` chooses rates, `runs` makes the rows, `table` prints what is there.

Resumable: call it again after a stop, with the same --out.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from experiments.cifar32.methods import DERIVED, METHODS
from experiments.cifar32.run import closed_scores, data, file_of, run

TUNING_SEEDS, SEEDS = (100, 101, 102), (1, 2)
TUNING_EPOCHS, EPOCHS = 5, 50
UNIFORM = 2.302585


def chosen(name: str, out: Path) -> float | None:
    """The rate with the lowest mean validation NLL, None until all its runs are there."""
    method = (METHODS | DERIVED)[name]
    if method.rate_of:
        return chosen(method.rate_of, out)
    means = {}
    for lr in method.rates:
        files = [file_of(out, name, lr, TUNING_EPOCHS, seed).with_suffix(".json") for seed in TUNING_SEEDS]
        if not all(f.exists() for f in files):
            return None
        found = [json.loads(f.read_text())["validation_nll"] for f in files]
        means[lr] = sum(UNIFORM if v is None else min(v, UNIFORM) for v in found) / len(found)
    return min(means, key=means.__getitem__)


def table(out: Path, root: Path | None = None) -> str:
    """The rows that are there, a run each; with ``root``, where the images lie, also on the closed half."""
    shown = ("validation_nll", "open_test_nll", "open_test_accuracy", "open_test_ece", "seconds")
    closed = ("closed_test_nll", "closed_test_accuracy", "closed_test_ece") if root else ()
    keys = ("method", "lr", "epochs", "seed", *shown, *closed)
    lines = [f"| {' | '.join(keys)} |", "|---" * len(keys) + "|"]
    for name in METHODS | DERIVED:
        for path in sorted(out.glob("*.json")):
            run = json.loads(path.read_text())
            if run["method"] == name:
                found = run | (closed_scores(path.with_suffix(""), data(root)) if root else {})
                cells = [found[key] for key in keys]
                lines.append("| " + " | ".join(f"{x:.4g}" if isinstance(x, float) else str(x) for x in cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("tune", "runs", "table"))
    parser.add_argument("--data", type=Path, required=True, help="folder with cifar10.npz and cifar100.webp")
    parser.add_argument("--out", type=Path, default=Path("runs/cifar32"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--open", action="store_true", help="table: open the closed half of the test images, once")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.command == "tune":
        for seed in TUNING_SEEDS:
            for place in range(3):
                for name, method in METHODS.items():
                    found = run(name, method.rates[place], TUNING_EPOCHS, seed, options.data, options.out)
                    print(found, flush=True)
    elif options.command == "runs":
        for seed in SEEDS:
            for name in METHODS | DERIVED:
                lr = chosen(name, options.out)
                if lr is not None:
                    print(run(name, lr, EPOCHS, seed, options.data, options.out), flush=True)
    else:
        print(table(options.out, options.data if options.open else None))


if __name__ == "__main__":
    main()
