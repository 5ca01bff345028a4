"""Times of several things side by side, in interleaved rounds: what else the machine does meets all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from experiments.harness.devices import synchronize
from experiments.harness.options import at_least
from learned_samplers.base.files import write_atomically
from meta_tasks.progress import progress

Step = Callable[[], object]


@dataclass(frozen=True)
class TimingOptions:
    """How things are timed."""

    # Rounds: in each, every contestant takes one timed step in turn.
    rounds: int = 60
    # CPU threads; by default torch's own choice.
    threads: int | None = None
    # What is timed: time on the clock, or processor time of all threads together, which other programs disturb less.
    clock: Literal["wall", "processor"] = "wall"
    # Device, such as cpu or cuda.
    device: str = "cpu"
    # File for the Markdown table, besides the terminal.
    out: Path | None = None

    def __post_init__(self) -> None:
        at_least(2, self, "rounds")  # of which a percentile is taken
        at_least(1, self, "threads")
        if self.clock == "processor" and self.device != "cpu":
            raise ValueError(f"clock='processor' does not see what device={self.device!r} does")

    def prepare(self) -> str:
        """Set torch's threads and seed; returns the head of a table."""
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        torch.manual_seed(0)
        clock = "processor time, " * (self.clock == "processor")
        return (
            f"torch {torch.__version__}, {self.device}, {torch.get_num_threads()} threads, {clock}{self.rounds} rounds"
        )


def seconds(step: Step, options: TimingOptions) -> float:
    """What one call takes until its work is finished, on the clock or of the processors."""
    now = time.process_time if options.clock == "processor" else time.perf_counter
    synchronize(options.device)
    start = now()
    step()
    synchronize(options.device)
    return now() - start


def interleaved(
    steps: Mapping[str, Step], options: TimingOptions, title: str, *, rounds: int | None = None, warm_up: int = 3
) -> dict[str, list[float]]:
    """Milliseconds of each step in each round; the first ``warm_up`` rounds are not counted."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in progress(range((rounds or options.rounds) + warm_up), desc=title):
        for name, step in steps.items():
            taken = seconds(step, options)
            if number >= warm_up:
                times[name].append(1e3 * taken)
    return times


def lower_decile(times: Sequence[float]) -> float:
    """The tenth percentile of times, to which other processes add little; never below the shortest of them."""
    return statistics.quantiles(times, n=10, method="inclusive")[0]


def write_table(out: Path | None, command: str, text: str) -> None:
    """Print a benchmark's table, and put it in a file where one is named, under its command."""
    print(text)
    if out is not None:
        write_atomically(out, f"`{command}`: {text}\n".encode())
