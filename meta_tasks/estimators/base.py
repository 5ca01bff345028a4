"""`Estimator`, the work that it hands out (`Job`), what runs that (`Evaluator`) and gives back (`JobResult`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from meta_tasks.inner_loop.batching import Run, unrolls_of
from meta_tasks.inner_loop.schedule import Horizon, Schedule
from meta_tasks.inner_loop.unroll import Unroll
from meta_tasks.objectives import objective_named
from meta_tasks.random_streams import derive_seed, generator
from meta_tasks.rules.base import SamplerRule
from meta_tasks.tasks.family import TaskFamily
from meta_tasks.tasks.stack import tasks_of_groups

__all__ = ["Episodes", "Estimator", "Evaluator", "Job", "JobResult", "antithetic_members", "perturbation"]


@dataclass(frozen=True)
class Job:
    """A unit of work for one process: pairs of samplers on some tasks, over some steps of their inner loop.

    Args:
        tasks: for each task the keys that draw it, after the seed.
        pairs: for each pair its name, an episode and a number, which draws its perturbation and random numbers. Each
            task has as many: those of the first task come first.
        schedule: of the whole inner loop.
        steps: how many of its steps to take now.
        slot: number of the unrolls that are kept between iterations and continued; None for some that run once.
        start: whether the slot's unrolls begin with this job.
        skip: steps to take before those, without reading a loss.
    """

    tasks: tuple[tuple[int | str, ...], ...]
    pairs: tuple[tuple[int, int], ...]
    schedule: Schedule
    steps: int
    slot: int | None = None
    start: bool = True
    skip: int = 0


@dataclass
class JobResult:
    """Losses of a job for the estimator, and numbers for the log.

    Attributes:
        losses: meta-losses, (pairs, 2) at φ + η and φ − η, or (1, 1) at φ itself; only finite ones count.
        kinds: of the job's tasks, under which the log files their losses: as many rows for each.
        failed: number of members that became non-finite.
        member_steps: steps taken, times members.
        seconds: of computing.
        scales: root mean square of each of the learned network's outputs, mean over the members, by name.
        curves: mean minibatch loss of the members along the inner loop, by the kind of their task.
        gradient: meta-gradient (n,), of a job that computes one itself.
    """

    losses: Tensor
    kinds: list[str]
    failed: int
    member_steps: int
    seconds: float
    scales: dict[str, float] = field(default_factory=dict)
    curves: dict[str, list[float]] = field(default_factory=dict)
    gradient: Tensor | None = None

    def tensors(self, convert: Callable[[Any], Any]) -> JobResult:
        """Convert every tensor, to or from the form that is sent between processes."""
        gradient = None if self.gradient is None else convert(self.gradient)
        return replace(self, losses=convert(self.losses), gradient=gradient)


class Episodes:
    """Cuts inner loops ("episodes") into windows of W steps; a slot runs one window an iteration, episode by episode.

    Slots start out of step, so that an iteration sees all parts of an episode.

    Args:
        horizon: of an episode, rounded up to whole windows.
        window: W.
        slots: how many.
        schedule: (steps of the episode) → its schedule.
        tasks: in a slot.
    """

    def __init__(
        self, horizon: Horizon, window: int, slots: int, schedule: Callable[[int], Schedule], tasks: int = 1
    ) -> None:
        self.horizon, self.window, self.slots, self.schedule, self.tasks = horizon, window, slots, schedule, tasks
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
        tasks = tuple(("episode", episode, slot * self.tasks + i) for i in range(self.tasks))
        skip = skipped * self.window if done == 0 else 0
        return Job(tasks, names, schedule, self.window, slot, done == 0, skip)

    def _drawn(self, seed: int, slot: int, episode: int) -> Schedule:
        drawn = self.horizon.schedule(generator(seed, "episode", episode, slot, "horizon"))
        return self.schedule(-(-drawn.steps // self.window) * self.window)


def perturbation(seed: int, pair: tuple[int, int], sigma: float, size: int) -> Tensor:
    """η ~ N(0, σ²I) of a pair, (size,), made from its name wherever it is needed."""
    return sigma * torch.randn(size, generator=generator(seed, *pair, "perturbation"))


def antithetic_members(weights: Tensor, seed: int, pairs: Sequence[tuple[int, int]], sigma: float) -> Tensor:
    """φ + η and φ − η of each pair in turn, (2·pairs, n)."""
    steps = [perturbation(seed, pair, sigma, len(weights)) for pair in pairs]
    return torch.stack([member for step in steps for member in (weights + step, weights - step)])


Unrolls = list[tuple[list[int], Unroll]]


@dataclass
class Evaluator:
    """Runs jobs and returns their losses; picklable, so that every worker process has one.

    Args:
        family, rule: of the meta-training.
        objective: name of the meta-objective.
        sigma: of the estimator.
        seed: of the run.
        curve_points: points of the inner training curves.
    """

    family: TaskFamily
    rule: SamplerRule
    objective: str
    sigma: float
    seed: int
    curve_points: int = 20
    #: slot → its unrolls, each with the numbers of its tasks in their job.
    slots: dict[int, Unrolls] = field(default_factory=dict)

    def run(self, job: Job, weights: Tensor) -> JobResult:
        """Evaluate one job at meta-parameters (n,)."""
        started = time.perf_counter()
        unrolls = self._unrolls(job)
        failed = sum(unroll.num_failed for _, unroll in unrolls)
        losses, gradient = self._advanced(unrolls, job, weights)
        if job.slot is not None and all(unroll.finished for _, unroll in unrolls):
            del self.slots[job.slot]
        return JobResult(
            losses,
            _kinds(unrolls),
            sum(unroll.num_failed for _, unroll in unrolls) - failed,
            sum(len(unroll.parameter) for _, unroll in unrolls) * (job.skip + job.steps),
            time.perf_counter() - started,
            _mean_scales(unrolls),
            _mean_curves(unrolls),
            gradient,
        )

    def _advanced(self, unrolls: Unrolls, job: Job, weights: Tensor) -> tuple[Tensor, Tensor | None]:
        """Take the job's steps; its losses, and the meta-gradient (n,) where that is what it computes."""
        losses = torch.empty(len(job.pairs), 2, dtype=torch.float64)
        of_task = torch.arange(len(job.pairs)).view(len(job.tasks), -1)
        for tasks, unroll in unrolls:
            numbers = of_task[tasks].flatten()
            members = antithetic_members(weights, self.seed, [job.pairs[i] for i in numbers], self.sigma)
            unroll.advance(members, job.skip)
            unroll.advance(members, job.steps)
            losses[numbers] = unroll.losses().view(-1, 2)
        return losses, None

    def _unrolls(self, job: Job) -> Unrolls:
        if job.slot is not None and not job.start:
            if job.slot not in self.slots:
                raise ValueError(f"slot {job.slot} has no unroll to continue; its state was not restored")
            return self.slots[job.slot]
        unrolls = self.make(job)
        if job.slot is not None:
            self.slots[job.slot] = unrolls
        return unrolls

    def make(self, job: Job) -> Unrolls:
        """The unrolls of a job, at their first step."""
        seeds = [derive_seed(self.seed, *pair, "unroll") for pair in job.pairs]
        groups = len(seeds) // len(job.tasks)
        runs = [
            Run(
                self.family.task(self.seed, *keys),
                self.rule.for_run(job.schedule.steps, self.seed, *keys),
                tuple(seeds[number * groups : (number + 1) * groups]),
            )
            for number, keys in enumerate(job.tasks)
        ]
        curve_every = max(1, job.schedule.steps // self.curve_points)
        return unrolls_of(runs, objective_named(self.objective), job.schedule, curve_every=curve_every)

    def state_dict(self) -> dict[int, Any]:
        """The kept unrolls, by slot."""
        return {slot: [unroll.state_dict() for _, unroll in unrolls] for slot, unrolls in self.slots.items()}

    def load_state_dict(self, state: dict[int, Any], jobs: Sequence[Job]) -> None:
        """Restore kept unrolls for the jobs that continue them."""
        self.slots = {}
        for job in jobs:
            if job.slot is not None and not job.start and job.slot in state:
                self.slots[job.slot] = self.make(job)
                for (_, unroll), its_state in zip(self.slots[job.slot], state[job.slot], strict=True):
                    unroll.load_state_dict(its_state)


def _kinds(unrolls: Unrolls) -> list[str]:
    """Kinds of the job's tasks, in their order."""
    kinds = {n: t.kind for tasks, u in unrolls for n, t in zip(tasks, tasks_of_groups(u.task, len(tasks)), strict=True)}
    return [kinds[number] for number in sorted(kinds)]


def _mean_scales(unrolls: Unrolls) -> dict[str, float]:
    """Root mean squares of the network's outputs, mean over the members."""
    names = unrolls[0][1].output_scales
    return {name: torch.cat([u.output_scales[name] for _, u in unrolls]).nanmean().item() for name in names}


def _mean_curves(unrolls: Unrolls) -> dict[str, list[float]]:
    """Training curves, mean over the members of each kind of task."""
    curves: dict[str, list[Tensor]] = {}
    for _, unroll in unrolls:
        for task, curve in zip(tasks_of_groups(unroll.task, len(unroll.parameter)), unroll.curves(), strict=True):
            curves.setdefault(task.kind, []).append(curve)
    return {kind: torch.stack(rows).nanmean(0).tolist() for kind, rows in curves.items()}


class Estimator:
    """Estimates the gradient of a meta-loss in the meta-parameters: base class.

    In each iteration `jobs` lists the work, an `Evaluator` (made by `evaluator`) does each job in some process, and
    `estimate` makes a gradient of the results.

    Attributes:
        horizon: how long inner loops are.
    """

    name: str
    horizon: Horizon

    def specification(self) -> dict[str, Any]:
        """Plain values for checkpoints and weight cards."""
        raise NotImplementedError

    def jobs(self, seed: int, iteration: int) -> list[Job]:
        """The jobs of iteration 0, 1, …"""
        raise NotImplementedError

    def evaluator(self, family: TaskFamily, rule: SamplerRule, objective: str, seed: int) -> Evaluator:
        """The object that runs the jobs, in this process or in workers.

        Raises:
            ValueError: the estimator cannot use that objective or rule.
        """
        raise NotImplementedError

    def estimate(self, seed: int, jobs: Sequence[Job], results: Sequence[JobResult], size: int) -> Tensor:
        """The gradient (n,), in double precision, that the jobs' results give; zero if none counts."""
        raise NotImplementedError
