"""What evaluates a job, in whichever process, and what comes of it.

Whoever evaluates a job makes its task, initial weights, minibatches, noise and perturbations from the job's name, so
the losses are the same wherever it runs, and nothing but the losses and a few numbers for the log travel.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from meta_tasks.estimators.evolution import Job, antithetic_members
from meta_tasks.inner_loop.unroll import Unroll
from meta_tasks.objectives.objectives import objective_named
from meta_tasks.random_streams import derive_seed
from meta_tasks.rules.base import SamplerRule
from meta_tasks.tasks.task import Task

if TYPE_CHECKING:  # its data sets' libraries are slow to import
    from meta_tasks.tasks.family import TaskFamily

__all__ = ["Evaluator", "JobResult"]


@dataclass
class JobResult:
    """What comes back of a job.

    ``losses``, of which those that are not finite do not count: (pairs, 2) of φ + η and φ − η, or (1, 1) of φ itself;
    ``gradient`` (n,) of a job that computes one itself; ``kind`` of the task; ``failed`` members;
    ``member_steps`` and ``seconds`` of computing; ``scales``, mean root mean square of the network's outputs;
    ``curve``, mean minibatch loss over the members along the inner loop.
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
        """The same with every tensor converted, to and from what travels between processes."""
        gradient = None if self.gradient is None else convert(self.gradient)
        return replace(self, losses=convert(self.losses), gradient=gradient)


@dataclass
class Evaluator:
    """Everything that a process needs to evaluate jobs; can be sent to another process.

    Args:
        family, rule: of the meta-training.
        objective: name of the meta-objective.
        sigma: of the estimator.
        seed: of the run.
        curve_points: points of the inner training curves.
        stepping: of the unrolls, see `meta_tasks.inner_loop.unroll.Unroll`; changes the losses by rounding at most.
        learned: of the estimator.
    """

    family: TaskFamily
    rule: SamplerRule
    objective: str
    sigma: float
    seed: int
    curve_points: int = 20
    stepping: str | None = None
    learned: int | None = None
    slots: dict[int, Unroll] = field(default_factory=dict)

    def run(self, job: Job, weights: Tensor) -> JobResult:
        """Evaluate one job at meta-parameters (n,)."""
        started = time.perf_counter()
        members = antithetic_members(weights, self.seed, job.pairs, self.sigma, self.learned)
        unroll = self._unroll(job)
        failed_before = sum(step >= 0 for step in unroll.failed_at)
        unroll.advance(members, job.skip)
        unroll.advance(members, job.steps)
        if job.slot is not None and unroll.finished:
            del self.slots[job.slot]
        scales = {name: value.nanmean().item() for name, value in unroll.output_scales.items()}
        return JobResult(
            unroll.losses().view(-1, 2),
            unroll.task.kind,
            sum(step >= 0 for step in unroll.failed_at) - failed_before,
            len(unroll.parameter) * (job.skip + job.steps),
            time.perf_counter() - started,
            scales,
            unroll.curves().nanmean(0).tolist(),
        )

    def _unroll(self, job: Job) -> Unroll:
        if job.slot is not None and not job.start:
            if job.slot not in self.slots:
                raise ValueError(f"slot {job.slot} has no unroll to continue; its state was not restored")
            return self.slots[job.slot]
        unroll = self.make(job)
        if job.slot is not None:
            self.slots[job.slot] = unroll
        return unroll

    def make(self, job: Job) -> Unroll:
        """The unroll of a job, at its first step."""
        task: Task = self.family.task(self.seed, *job.task)
        seeds = [derive_seed(self.seed, *pair, "unroll") for pair in job.pairs]
        return Unroll(
            task, self.rule, objective_named(self.objective), job.schedule, seeds,
            curve_every=max(1, job.schedule.steps // self.curve_points), stepping=self.stepping,
        )  # fmt: skip

    def state_dict(self) -> dict[int, Any]:
        """The kept unrolls, by slot."""
        return {slot: unroll.state_dict() for slot, unroll in self.slots.items()}

    def load_state_dict(self, state: dict[int, Any], jobs: Sequence[Job]) -> None:
        """Restore kept unrolls for the jobs that continue them."""
        self.slots = {}
        for job in jobs:
            if job.slot is not None and not job.start and job.slot in state:
                self.slots[job.slot] = self.make(job)
                self.slots[job.slot].load_state_dict(state[job.slot])
