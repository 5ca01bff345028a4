"""Speed of meta-training's inner loop, and what takes the time, with one task and with many in a batch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from experiments.benchmarks.timing import write_table
from experiments.harness.options import at_least
from experiments.harness.tables import markdown
from meta_tasks.datasets import ImageData
from meta_tasks.inner_loop import Run, Schedule, unrolls_of
from meta_tasks.inner_loop.timing import Timing, time_unroll
from meta_tasks.objectives import BMALoss
from meta_tasks.rules.classical import SGHMCRule
from meta_tasks.rules.learned import L2ERule
from meta_tasks.tasks import ImageTask, TaskConfig
from meta_tasks.training.process import one_core

BATCH, PAIRS = 32, 4
#: Name → shape of the inputs, classes, architecture and its options.
NETWORKS: dict[str, tuple[tuple[int, int, int], int, str, dict[str, Any]]] = {
    "table, MLP 10-16-3": ((1, 1, 10), 3, "mlp", {"hidden": (16,)}),
    "8×8, MLP 64-20-10": ((1, 8, 8), 10, "mlp", {"hidden": (20,)}),
    "14×14, MLP 196-32-16-10": ((1, 14, 14), 10, "mlp", {"hidden": (32, 16)}),
    "8×8, CNN of 4 channels": ((1, 8, 8), 10, "cnn", {"channels": 4, "depth": 1}),
    "8×8, CNN of 8 channels, 2 layers": ((1, 8, 8), 10, "cnn", {"channels": 8, "depth": 2}),
    "14×14, CNN of 4 channels": ((1, 14, 14), 10, "cnn", {"channels": 4, "depth": 1}),
}
RULES: dict[str, Any] = {
    "SGHMC": lambda: SGHMCRule(),
    "L2E, linear": lambda: L2ERule("residual", "paper", (), beta_scale=1.0),
    "L2E, 32-32": lambda: L2ERule("paper", "paper", start=("momentum", -1.0), alpha_scale=1.0, beta_scale=1.0),
}


@dataclass(frozen=True)
class InnerLoopBenchmark:
    """Member-steps a second of one core's processor time, batches of 32, four members a task: minutes."""

    tasks: tuple[int, ...] = (1, 32)  # Tasks in one batch.
    steps: int = 40  # Steps of a measurement.
    out: Path | None = None  # File for the Markdown table, besides the terminal.

    def __post_init__(self) -> None:
        at_least(4, self, "steps")


def blobs(shape: tuple[int, int, int], classes: int, rows: int = 1500) -> ImageData:
    """Noisy copies of one image a class: how fast a step is does not hang on what it sees."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.rand(classes, *shape, generator=generator)
    y = torch.randint(classes, (rows,), generator=generator)
    x = (centres[y] + 0.5 * torch.randn(rows, *shape, generator=generator)).clamp(0, 1)
    split = rows * 2 // 3
    held_out = x[split:], y[split:]
    return ImageData("blobs", classes, x[:split], y[:split], *held_out, *held_out)


def measured(network: str, rule_name: str, tasks: int, steps: int) -> Timing:
    """Time of the first batch of members that tasks of one network make."""
    shape, classes, architecture, options = NETWORKS[network]
    data, rule = blobs(shape, classes), RULES[rule_name]()
    runs = []
    for i in range(tasks):
        numbers: dict[str, Any] = {
            "num_data": 300 + 100 * (i % 8),
            "lr": (0.005, 0.01, 0.02)[i % 3],
            "prior_precision": 1.0 + i,
        }
        config = TaskConfig("blobs", architecture, options, batch_size=BATCH, validation_size=256, **numbers)
        runs.append(Run(ImageTask(config, data, i), rule, tuple(range(PAIRS * i, PAIRS * (i + 1)))))
    unroll = unrolls_of(runs, BMALoss, Schedule(4 * steps + 8, 3 * steps, steps // 4), curve_every=20)[0][1]
    weights = rule.initial_weights(0) + 0.01 * torch.randn(len(unroll.parameter), rule.num_weights)
    unroll.advance(weights, 5)
    return max((time_unroll(unroll, weights, steps) for _ in range(2)), key=lambda t: t.member_steps_per_second)


def benchmark_inner_loop(options: InnerLoopBenchmark, command: str = "python tools/benchmark.py inner-loop") -> None:
    """Measure, and write the table."""
    one_core()
    cases = [(network, rule, tasks) for network in NETWORKS for rule in RULES for tasks in options.tasks]
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for network, rule, tasks in tqdm(cases, unit="case"):
        timing = measured(network, rule, tasks, options.steps)
        cells = rows.setdefault((network, rule), {"network": network, "rule": rule})
        cells[f"{tasks} tasks a batch"] = f"{timing.member_steps_per_second:,.0f}"
        shares = [f"{part} {100 * share:.0f} %" for part, share in timing.shares.items()]
        cells[f"time, {tasks} tasks"] = ", ".join(shares)
    note = "Member-steps a second of one core's processor time"
    write_table(options.out, command, f"{note}, torch {torch.__version__}\n\n{markdown(list(rows.values()))}")
