"""The units of work that an estimator hands out (`Job`) and gets back (`JobResult`), and inner loops in windows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from meta_tasks.inner_loop.schedule import Horizon, Schedule
from meta_tasks.random_streams import generator

__all__ = ["Episodes", "Job", "JobResult"]


@dataclass(frozen=True)
class Job:
    """A unit of work for one process: pairs of samplers on one task, over some steps of their inner loop.

    Args:
        task: keys that draw the task, after the seed.
        pairs: for each pair its name, an episode and a number, which draws its perturbation and random numbers.
        schedule: of the whole inner loop.
        steps: how many of its steps to take now.
        slot: number of the unroll that is kept between iterations and continued; None for one that runs once.
        start: whether the slot's unroll begins with this job.
        skip: steps to take before those, without reading a loss.
    """

    task: tuple[int | str, ...]
    pairs: tuple[tuple[int, int], ...]
    schedule: Schedule
    steps: int
    slot: int | None = None
    start: bool = True
    skip: int = 0


@dataclass
class JobResult:
    """What a job found: losses for the estimator, and numbers for the log.

    Attributes:
        losses: meta-losses, (pairs, 2) at φ + η and φ − η, or (1, 1) at φ itself; only finite ones count.
        kind: of the task, under which the log files the losses.
        failed: number of members that became non-finite.
        member_steps: steps taken, times members.
        seconds: of computing.
        scales: root mean square of each of the learned network's outputs, mean over the members, by name.
        curve: mean minibatch loss of the members along the inner loop.
        gradient: meta-gradient (n,), of a job that computes one itself.
    """

    losses: Tensor
    kind: str
    failed: int
    member_steps: int
    seconds: float
    scales: dict[str, float] = field(default_factory=dict)
    curve: list[float] = field(default_factory=list)
    gradient: Tensor | None = None

    def tensors(self, convert: Callable[[Any], Any]) -> JobResult:
        """Convert every tensor, to or from the form that is sent between processes."""
        gradient = None if self.gradient is None else convert(self.gradient)
        return replace(self, losses=convert(self.losses), gradient=gradient)


def check_one_cycle(horizon: Horizon) -> None:
    """Raise ValueError if the horizon has cycles, which windows would cut."""
    if horizon.cycles > 1:
        raise ValueError(f"cycles={horizon.cycles} need an estimator of whole inner loops, antithetic ES")


class Episodes:
    """Cuts inner loops ("episodes") into windows of W steps; a slot runs one window an iteration, episode by episode.

    Slots start out of step, so that an iteration sees all parts of an episode.

    Args:
        horizon: of an episode, rounded up to whole windows.
        window: W.
        slots: how many.
        schedule: (steps of the episode) → its schedule.
    """

    def __init__(self, horizon: Horizon, window: int, slots: int, schedule: Callable[[int], Schedule]) -> None:
        self.horizon, self.window, self.slots, self.schedule = horizon, window, slots, schedule
        self._place: dict[tuple[int, int], tuple[int, int]] = {}

    def job(self, seed: int, iteration: int, slot: int, names_in_slot: int) -> Job:
        """The job of ``slot`` in an iteration, with so many names of perturbations, (episode, number) each."""
        # The place in the sequence of episodes follows from the iteration alone; `_place` only saves counting again.
        episode, first = self._place.get((seed, slot), (0, 0))
        if iteration < first:
            episode, first = 0, 0
        done = iteration - first
        while True:
            schedule = self._drawn(seed, slot, episode)
            windows = schedule.steps // self.window
            skipped = slot * windows // self.slots if episode == 0 else 0
            if done < windows - skipped:
                break
            done -= windows - skipped
            episode += 1
        self._place[seed, slot] = (episode, iteration - done)
        names = tuple((episode, slot * names_in_slot + i) for i in range(names_in_slot))
        skip = skipped * self.window if done == 0 else 0
        return Job(("episode", episode, slot), names, schedule, self.window, slot, done == 0, skip)

    def _drawn(self, seed: int, slot: int, episode: int) -> Schedule:
        drawn = self.horizon.schedule(generator(seed, "episode", episode, slot, "horizon"))
        return self.schedule(-(-drawn.steps // self.window) * self.window)
