"""Samplers of the one table on gradients that are there, and their times side by side, in interleaved rounds."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from experiments.harness.devices import synchronize
from experiments.harness.options import at_least
from learned_samplers import Sampler, table
from learned_samplers.base.files import write_atomically
from learned_samplers.base.matrices import ROOT_EVERY
from learned_samplers.learned.native.kernel import ENVIRONMENT_VARIABLE
from meta_tasks.progress import progress

NUM_DATA, LR = 50_000, 1e-9
Step = Callable[[], object]
#: Name → the sampler of some parameters. (Masses are frozen before they are timed; cycles sample all the time.)
SAMPLERS: dict[str, Callable[[Any], Sampler]] = {
    name: partial(entry, lr=LR, num_data=NUM_DATA) for name, entry in table.SAMPLERS.items()
}
_TIMED: dict[str, Any] = {"lr": LR, "num_data": NUM_DATA}
SAMPLERS["CyclicalSGMCMC"] = partial(
    table.SAMPLERS["CyclicalSGMCMC"], cycle_length=100, exploration_ratio=0.0, **_TIMED
)
SAMPLERS["L2E, network l2e"] = partial(table.SAMPLERS["L2E"], network="l2e", **_TIMED)
#: Those that have compiled code.
COMPILED = ("L2E, network l2e", *(name for name, entry in table.SAMPLERS.items() if entry.is_learned))


def step_of(sampler: Sampler) -> Step:
    """A step on the gradients that are there; the closure of a sampler that needs one computes nothing."""
    if not (sampler.needs_closure or hasattr(sampler, "sampled_params")):
        return sampler.step
    loss = torch.tensor(1.0)
    gradients = [(p, p.grad) for group in sampler.param_groups for p in group["params"]]

    def closure() -> Tensor:
        for p, gradient in gradients:  # IVON's are to be those of the weights that it has drawn
            p.grad = gradient
        return loss

    return lambda: sampler.step(closure)


def uncompiled(step: Step) -> Step:
    """The step with the compiled code turned off."""

    def slow() -> object:
        before = os.environ.get(ENVIRONMENT_VARIABLE)
        os.environ[ENVIRONMENT_VARIABLE] = "0"
        try:
            return step()
        finally:
            del os.environ[ENVIRONMENT_VARIABLE]
            if before is not None:
                os.environ[ENVIRONMENT_VARIABLE] = before

    return slow


@dataclass(frozen=True)
class TimingOptions:
    """Clock, rounds and device."""

    rounds: int = 60  # Rounds: in each, every contestant takes one timed step in turn.
    threads: int | None = None  # CPU threads; by default torch's own choice.
    # What is timed: time on the clock, or processor time of all threads together, which other programs disturb less.
    clock: Literal["wall", "processor"] = "wall"
    device: str = "cpu"  # Device, such as cpu or cuda.
    out: Path | None = None  # File for the Markdown table, besides the terminal.

    def __post_init__(self) -> None:
        at_least(2, self, "rounds")  # of which a percentile is taken
        at_least(1, self, "threads")
        if self.clock == "processor" and self.device != "cpu":
            raise ValueError(f"clock='processor' does not see what device={self.device!r} does")

    def prepare(self) -> str:
        """Set torch's threads and seed; the head of a table."""
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        torch.manual_seed(0)
        clock = "processor time, " * (self.clock == "processor")
        return (
            f"torch {torch.__version__}, {self.device}, {torch.get_num_threads()} threads, {clock}{self.rounds} rounds"
        )


def seconds(step: Step, options: TimingOptions, number: int = 1) -> float:
    """Seconds of so many calls until their work is finished, on the clock or of the processors."""
    now = time.process_time if options.clock == "processor" else time.perf_counter
    synchronize(options.device)
    start = now()
    for _ in range(number):
        step()
    synchronize(options.device)
    return now() - start


def milliseconds(
    steps: Mapping[str, Step], options: TimingOptions, title: str, *, rounds: int | None = None, warm_up: int = 1
) -> dict[str, float]:
    """Milliseconds of each, the tenth percentile of interleaved rounds: what else the machine does meets all alike.

    A round of each is the `ROOT_EVERY` steps in which a sampler that decomposes covariances now and then has done all
    that it does. The first ``warm_up`` rounds are not counted; after the first it is said how long the others take.
    """
    times: dict[str, list[float]] = {name: [] for name in steps}
    total = max(2, (rounds or options.rounds) // ROOT_EVERY) + warm_up
    bar = progress(range(total), desc=title)
    for number in bar:
        start = time.perf_counter()
        for name, step in steps.items():
            taken = seconds(step, options, ROOT_EVERY)
            if number >= warm_up:
                times[name].append(1e3 * taken / ROOT_EVERY)
        if number == 0:
            bar.write(f"{title}: {len(steps)} contestants, some {(total - 1) * (time.perf_counter() - start):.0f} s")
    return {name: lower_decile(values) for name, values in times.items()}


def lower_decile(times: Sequence[float]) -> float:
    """The tenth percentile of times, to which other processes add little; never below the shortest of them."""
    return statistics.quantiles(times, n=10, method="inclusive")[0]


def write_table(out: Path | None, command: str, text: str) -> None:
    """Print a benchmark's table, and put it in a file if one is named, under its command."""
    print(text)
    if out is not None:
        write_atomically(out, f"`{command}`: {text}\n".encode())
