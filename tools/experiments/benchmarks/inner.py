"""Member-steps per second of the meta-trainer's inner loop on the paper's networks, one process a core."""

from __future__ import annotations

import multiprocessing
import os
import re
import shlex
import statistics
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from experiments.benchmarks.samplers import uncompiled
from experiments.benchmarks.timing import TimingOptions, seconds, write_table
from experiments.harness.devices import device_name
from experiments.harness.options import at_least_one
from experiments.harness.tables import markdown
from meta_tasks.datasets import ImageData
from meta_tasks.inner_loop.schedule import Schedule
from meta_tasks.inner_loop.unroll import Unroll
from meta_tasks.objectives import BMALoss
from meta_tasks.rules.classical import SGHMCRule
from meta_tasks.rules.learned import L2ERule
from meta_tasks.tasks.task import ImageTask, TaskConfig
from meta_tasks.training.process import one_core

#: Channels, depth, side of the images, batch.
CONFIGURATIONS = ((4, 1, 8, 64), (4, 1, 28, 128), (8, 3, 14, 64), (8, 3, 28, 128), (16, 5, 28, 128))
CLASSES = 10
#: Rows of the table; SGHMC's update is nearly free.
ROWS = ("L2E", "L2E, without compiled code", "SGHMC")
Configuration = tuple[int, int, int, int]
_together: Any = None  # barrier of a benchmark's processes


@dataclass(frozen=True)
class InnerBenchmark:
    """Member-steps per second of L2E's inner loop for (channels, depth, size, batch), one process a core."""

    # Device, such as cpu or cuda.
    device: str = "cpu"
    # Processes, each on one core; by default as many as there are cores, or one for a GPU.
    processes: int | None = None
    # Members of one task in each process.
    members: int = 4
    # Steps timed in a round.
    steps: int = 20
    # Rounds; in each, every configuration runs once, here and in the peer.
    rounds: int = 3
    # Features that L2E sees; "paper" are the nine of the published sampler.
    feature_set: str = "paper"
    # Command of a peer program, started as one process: it gets --members --channels --depth --size --batch and prints
    # member-steps/s=NUMBER.
    peer: str | None = None
    # File for the Markdown table, besides the terminal.
    out: Path | None = None

    def __post_init__(self) -> None:
        at_least_one(self, "processes", "members", "steps", "rounds")
        if self.device != "cpu" and not torch.cuda.is_available():
            raise ValueError(f"device={self.device!r}: torch finds no GPU")

    @property
    def num_processes(self) -> int:
        return self.processes or ((os.cpu_count() or 1) if self.device == "cpu" else 1)


def make_unroll(configuration: Configuration, row: str, options: InnerBenchmark) -> tuple[Unroll, torch.Tensor]:
    """Members on random images, at their first step, and their meta-parameters."""
    channels, depth, size, batch = configuration
    torch.manual_seed(0)
    x, y = torch.rand(4 * batch, 1, size, size), torch.randint(CLASSES, (4 * batch,))
    data = ImageData("random", CLASSES, x, y, x, y, x, y)
    settings = TaskConfig("random", "cnn", {"channels": channels, "depth": depth}, batch_size=batch, lr=0.1)
    rule = SGHMCRule() if row == "SGHMC" else L2ERule("residual", options.feature_set)
    own = torch.zeros(0) if isinstance(rule, SGHMCRule) else rule.initial_weights(0)
    group = 2 if options.members % 2 == 0 else 1
    schedule = Schedule(10**6, 10**6 - 1, 1)  # nothing is collected: the peer does not evaluate either
    task, groups = ImageTask(settings, data, 0, options.device), range(options.members // group)
    unroll = Unroll(task, rule, BMALoss, schedule, groups, members_per_group=group)
    return unroll, own.expand(options.members, -1)


def _start(barrier: Any) -> None:
    global _together
    _together = barrier
    one_core()


def _speed(configuration: Configuration, row: str, options: InnerBenchmark) -> float:
    """Member-steps/s of this process, which starts when all are ready."""
    try:
        unroll, weights = make_unroll(configuration, row, options)
        advance: Callable[[], object] = lambda: unroll.advance(weights, options.steps)  # noqa: E731
        if row.endswith("without compiled code"):
            advance = uncompiled(advance)
        with torch.no_grad():
            advance()
            _together.wait()
            taken = seconds(advance, TimingOptions(device=options.device))
    except BaseException:
        _together.abort()  # the others would wait for it
        raise
    return options.members * options.steps / taken


def peer_speed(command: str, members: int, configuration: Configuration) -> float:
    """Member-steps/s that the peer program prints.

    Raises:
        ValueError: it fails or prints no such number.
    """
    names = ("--members", "--channels", "--depth", "--size", "--batch")
    arguments = [text for pair in zip(names, map(str, (members, *configuration)), strict=True) for text in pair]
    done = subprocess.run([*shlex.split(command), *arguments], capture_output=True, text=True, check=False)
    found = re.search(r"member-steps/s=([0-9.]+)", done.stdout)
    if done.returncode or found is None:
        raise ValueError(f"peer={command!r} gave no member-steps/s=…: {done.stdout}{done.stderr}")
    return float(found.group(1))


def benchmark_inner(options: InnerBenchmark, command: str = "python tools/benchmark.py inner") -> None:
    L2ERule("residual", options.feature_set)  # refused here, not in each process
    context, count = multiprocessing.get_context("spawn"), options.num_processes
    speeds: dict[tuple[str, Configuration], list[float]] = {}
    with context.Pool(count, _start, (context.Barrier(count),)) as pool:
        for _ in range(options.rounds):
            for configuration in CONFIGURATIONS:
                for row in ROWS:
                    found = sum(pool.starmap(_speed, [(configuration, row, options)] * count, chunksize=1))
                    speeds.setdefault((row, configuration), []).append(found)
                if options.peer is not None:
                    found = peer_speed(options.peer, options.members, configuration)
                    speeds.setdefault(("peer, one process", configuration), []).append(found)
    table: dict[str, dict[str, str]] = {}
    for (row, configuration), values in speeds.items():
        cells = table.setdefault(row, {"member-steps/s (channels, depth, size, batch)": row})
        cells[", ".join(map(str, configuration))] = f"{statistics.median(values):,.0f}"
    head = (
        f"torch {torch.__version__}, {device_name(options.device)}, {count} processes of {options.members} members, "
        f"{options.feature_set} features, median of {options.rounds} rounds"
    )
    write_table(options.out, command, f"{head}\n\n{markdown(list(table.values()))}")
