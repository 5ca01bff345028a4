"""``python -m learned_samplers.benchmark MySampler``: one row of the table, and one JSON file.

python -m learned_samplers.benchmark SGHMC                      # a name of learned_samplers.table
python -m learned_samplers.benchmark mine:MySampler             # a class, or a function that makes one, called as
                                                                # MySampler(params, lr=, num_data=, prior_precision=)
python -m learned_samplers.benchmark --table FOLDER             # the table of the files in a folder
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

import learned_samplers
from learned_samplers.base.files import write_atomically
from learned_samplers.benchmark.run import benchmark, row
from learned_samplers.benchmark.targets import TARGETS
from learned_samplers.table import SAMPLERS

_CELLS = """0 is best: errors of means (in standard deviations) and of standard deviations (|log ratio|), or of
classifiers the total variation; in brackets effective samples in 1,000 gradients"""
#: Settings that depend on the length of a run, of samplers whose line of the table has those of a short one.
PLANS: dict[str, Callable[[int], dict[str, Any]]] = {
    "AdaptedSGHMC": lambda gradients: {"total_steps": gradients},
    "CyclicalSGMCMC": lambda gradients: {"cycle_length": gradients // 20},
}


def named(name: str, gradients: int) -> Callable[..., Any]:
    """A sampler of the table, for a run of so many gradients, or the class or function at a dotted path."""
    if name in SAMPLERS:
        return partial(SAMPLERS[name].sampler, **PLANS[name](gradients)) if name in PLANS else SAMPLERS[name]
    module, _, attribute = name.replace(":", ".").rpartition(".")
    if not module:
        raise ValueError(f"sampler must be among {sorted(SAMPLERS)}, or module.Class, got {name!r}")
    try:
        sampler = getattr(importlib.import_module(module), attribute)
    except (ModuleNotFoundError, AttributeError) as error:
        raise ValueError(f"sampler must be module.Class, importable from here, got {name!r}: {error}") from error
    if not (issubclass(sampler, torch.optim.Optimizer) if isinstance(sampler, type) else callable(sampler)):
        raise TypeError(f"sampler must be a class of optimizers, or a function that makes one, got {sampler!r:.60}")
    return sampler


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; `arguments` None takes those of the process."""
    parser = argparse.ArgumentParser(
        prog="python -m learned_samplers.benchmark", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("sampler", nargs="?", help="a name of the table, module.Class or module.function")
    parser.add_argument("--table", type=Path, help="print the table of the files in this folder instead")
    parser.add_argument("--gradients", type=int, default=2000, help="of a run, at least 800; 2,000, as in the table")
    kept = "some of the five; a file of the same settings keeps its others"
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS), help=kept)
    parser.add_argument("--out", type=Path, default=Path("."), help="folder of the JSON file")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if options.table is None and options.sampler is None:
        parser.error("a sampler is missing, or --table")
    torch.set_num_threads(1)  # for so small networks several threads only wait for each other
    try:
        if options.table is not None:
            print(table(options.table))
        else:
            measure(options)
    except (TypeError, ValueError) as error:
        parser.error(str(error))


def measure(options: argparse.Namespace) -> None:
    """Run a sampler on the targets, write its file after each of them, and print its row."""
    sampler = named(options.sampler, options.gradients)
    name = options.sampler.replace(":", ".").rpartition(".")[2]
    content: dict[str, Any] = {
        "sampler": options.sampler,
        "versions": {"learned-samplers": learned_samplers.__version__, "torch": torch.__version__},
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "budget": options.gradients,
        "seed": options.seed,
    }
    path = options.out / f"{name}.json"
    earlier = read(path) if path.exists() else {}
    results = earlier.pop("targets", {}) if earlier else {}
    if earlier != content:
        results = {}
    options.out.mkdir(parents=True, exist_ok=True)
    for target in options.targets:
        begun = time.process_time()
        results[target] = benchmark(sampler, TARGETS[target](), options.gradients, options.seed)
        results = {key: results[key] for key in TARGETS if key in results}
        write_atomically(path, (json.dumps({**content, "targets": results}, indent=1) + "\n").encode())
        print(f"{target}: {time.process_time() - begun:.0f} CPU-seconds", file=sys.stderr, flush=True)
    print(_CELLS, file=sys.stderr)
    print(" | ".join(f"{key}: {value}" for key, value in row(name, results).items()))


def read(path: Path) -> dict[str, Any]:
    """The content of a sampler's file; ValueError, with its name, where it is damaged."""
    try:
        content = json.loads(path.read_text())
        return {**content, "budget": content["budget"], "targets": content["targets"]}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no file of this command ({type(error).__name__}: {error})") from error


def table(folder: Path) -> str:
    """Markdown table of the files in a folder, a sampler a row; ValueError where they are of several budgets."""
    files = sorted(folder.glob("*.json"))
    if not files:
        raise ValueError(f"table must be a folder with JSON files, got {folder}")
    contents = {path.stem: read(path) for path in files}
    budgets = {name: content["budget"] for name, content in contents.items()}
    if len(set(budgets.values())) > 1:
        raise ValueError(f"table must be of files of one budget of gradients, got {budgets}")
    rows = [row(name, content["targets"]) for name, content in contents.items()]
    headings = ["sampler", *(target for target in TARGETS if any(target in r for r in rows))]
    lines = ["| " + " | ".join(headings) + " |", "|---" * len(headings) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(r.get(h, "–") for h in headings) + " |" for r in rows)])


if __name__ == "__main__":
    main()
