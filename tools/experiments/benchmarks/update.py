"""What the learned update costs in the inner loop: compiled and as the pure rule, shipped and lean, beside SGHMC."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from experiments.benchmarks import member_steps
from experiments.benchmarks.contestants import uncompiled
from experiments.benchmarks.member_steps import BATCH, make_advance, processor_seconds
from experiments.benchmarks.timing import write_table
from meta_tasks.progress import progress
from meta_tasks.rules.classical import SGHMCRule
from meta_tasks.rules.learned import L2ERule
from meta_tasks.training.process import one_core

#: Column of the table → network, its options, side of the images.
TASKS: dict[str, tuple[str, dict[str, Any], int]] = {
    "8×8, 4 channels": ("cnn", {"channels": 4, "depth": 1}, 8),
    "8×8, MLP of 20": ("mlp", {"hidden": [20]}, 8),
    "14×14, 4 channels": ("cnn", {"channels": 4, "depth": 1}, 14),
    "14×14, 8 channels, 2 layers": ("cnn", {"channels": 8, "depth": 2}, 14),
    "28×28, 8 channels, 2 layers": ("cnn", {"channels": 8, "depth": 2}, 28),
}
#: Those of the shipped `l2e` and of the lean network, which has the settings of docs/candidates, as `L2ERule` has them.
SHIPPED: dict[str, Any] = {
    "form": "residual",
    "feature_set": "adaptive_data",
    "hidden": [16, 16],
    "beta_scale": 10.0,
    "friction_scale": 0.0,
    "reference_data": 50_000.0,
}
LEAN: dict[str, Any] = {**SHIPPED, "feature_set": "lean", "hidden": [8, 8], "gated": True}


@dataclass(frozen=True)
class UpdateBenchmark:
    """Member-steps per second of the inner loop on one core, by processor time, with L2E compiled and as the pure rule.

    On random images, batch 64; rows are shipped and lean networks beside SGHMC, whose update is nearly free.
    """

    # Members of the task.
    members: int = 16
    # Steps timed in a round, on images of 8×8; fewer on larger ones.
    steps: int = 100
    # Rounds; in each, every row takes its steps once.
    rounds: int = 5
    # Root of another checkout: the shipped network is timed there too, in as many processes of its own.
    checkout: Path | None = None
    # File for the Markdown table, besides the terminal.
    out: Path | None = None

    def __post_init__(self) -> None:
        for name in ("members", "steps", "rounds"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        if self.members % 2:
            raise ValueError(f"members must be even, for they come in pairs, got {self.members}")
        if self.checkout is not None and not (self.checkout / "meta_tasks").is_dir():
            raise ValueError(f"checkout must be the root of another checkout, got {self.checkout}")


def rows(task: tuple[str, dict[str, Any], int], members: int) -> dict[str, Callable[[int], None]]:
    """Name → so many steps of all members on the task, each in an unroll of its own."""
    network, options, size = task

    def advance(rule: Any) -> Callable[[int], None]:
        return make_advance(network, options, size, members, rule)

    def by_rule(steps: int, take: Callable[[int], None]) -> None:
        uncompiled(lambda: take(steps))()

    shipped, lean = L2ERule(**SHIPPED), L2ERule(**LEAN)
    slow_shipped, slow_lean = advance(shipped), advance(lean)
    return {
        "SGHMC": advance(SGHMCRule()),
        "l2e": advance(shipped),
        "l2e, pure rule": lambda steps: by_rule(steps, slow_shipped),
        "lean network": advance(lean),
        "lean network, pure rule": lambda steps: by_rule(steps, slow_lean),
    }


def speed_elsewhere(checkout: Path, task: tuple[str, dict[str, Any], int], members: int, steps: int) -> float:
    """Member-steps/s of the shipped network in another checkout, which times itself.

    Raises:
        SystemExit: it fails.
    """
    network, options, size = task
    command = [
        sys.executable,
        member_steps.__file__,
        *("--network", network, "--options", json.dumps(options), "--rule", json.dumps(SHIPPED)),
        *("--size", str(size), "--members", str(members), "--steps", str(steps)),
    ]
    # Python would look beside the script first.
    environment = {**os.environ, "PYTHONPATH": f"{checkout}{os.pathsep}{checkout / 'tools'}", "PYTHONSAFEPATH": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    key, _, number = done.stdout.strip().rpartition("member-steps/s=")
    if done.returncode or not number:
        raise SystemExit(f"error: the checkout {checkout} gave no member-steps/s: {key}{done.stdout}{done.stderr}")
    return float(number)


def benchmark_update(options: UpdateBenchmark, command: str = "python tools/benchmark.py update") -> None:
    one_core()
    speeds: dict[tuple[str, str], float] = {}
    for column, task in TASKS.items():
        steps = max(options.steps * 64 // task[2] ** 2, 5)
        with torch.no_grad():
            runs, times = rows(task, options.members), dict[str, list[float]]()
            for take in runs.values():
                take(3)
            for _ in progress(range(options.rounds), desc=column):
                for name, take in runs.items():
                    spent = processor_seconds(partial(take, steps))
                    times.setdefault(name, []).append(options.members * steps / spent)
                if options.checkout is not None:
                    there = speed_elsewhere(options.checkout, task, options.members, steps)
                    times.setdefault(_ELSEWHERE, []).append(there)
        speeds |= {(name, column): statistics.median(values) for name, values in times.items()}
    head = (
        f"torch {torch.__version__}, one core, {options.members} members, batch {BATCH}, median of {options.rounds} "
        "rounds, processor time"
    )
    write_table(options.out, command, f"{head}\n\n{_table(speeds)}")


_ELSEWHERE = "l2e, other checkout"


def _table(speeds: dict[tuple[str, str], float]) -> str:
    """Member-steps/s, and the ratio to the other checkout, else to the pure rule with the same network."""
    names = list(dict.fromkeys(name for name, _ in speeds))
    other = _ELSEWHERE in names
    lines = [f"| member-steps/s (× of {'the other checkout' if other else 'the pure rule'}) | {' | '.join(TASKS)} |"]
    lines.append("|---|" + "---:|" * len(TASKS))
    for name in names:
        base = _ELSEWHERE if other else f"{name}, pure rule"
        cells = []
        for column in TASKS:
            ratio = speeds[name, column] / speeds[base, column] if (base, column) in speeds else None
            cells.append(f"{speeds[name, column]:,.0f}" + (f" ({ratio:.2f}×)" if ratio is not None else ""))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)
