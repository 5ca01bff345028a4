"""Times of several things side by side, in interleaved rounds: what else the machine does meets all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from experiments.harness.devices import synchronize
from learned_samplers.base.files import write_atomically
from meta_tasks.progress import progress

Clock = Literal["wall", "processor"]


def now(clock: Clock = "wall") -> float:
    """Seconds on the clock, or of the processors, of all threads together."""
    return time.process_time() if clock == "processor" else time.perf_counter()


def seconds(step: Callable[[], object], device: str, clock: Clock = "wall") -> float:
    """What one call takes until its work is finished."""
    synchronize(device)
    start = now(clock)
    step()
    synchronize(device)
    return now(clock) - start


def interleaved(
    steps: Mapping[str, Callable[[], object]],
    rounds: int,
    title: str,
    *,
    warm_up: int,
    device: str = "cpu",
    clock: Clock = "wall",
) -> dict[str, list[float]]:
    """Milliseconds of each step in each round; the first ``warm_up`` rounds are not counted."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in progress(range(rounds + warm_up), desc=title):
        for name, step in steps.items():
            taken = seconds(step, device, clock)
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
