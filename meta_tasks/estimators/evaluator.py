"""`Evaluator`: runs a job and returns its losses, in this process or in a worker.

Task, initial weights, minibatches, noise and perturbations follow from the job's name: the losses are the same wherever
the job runs, and only the losses and a few numbers for the log travel between processes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from meta_tasks.estimators.jobs import Job, JobResult
from meta_tasks.estimators.perturbations import antithetic_members
from meta_tasks.inner_loop.unroll import Unroll
from meta_tasks.objectives import objective_named
from meta_tasks.random_streams import derive_seed
from meta_tasks.rules.base import SamplerRule
from meta_tasks.tasks.family import TaskFamily

__all__ = ["Evaluator"]


@dataclass
class Evaluator:
    """Runs jobs and returns their losses; picklable, so that every worker process has one.

    Args:
        family, rule: of the meta-training.
        objective: name of the meta-objective.
        sigma: of the estimator.
        seed: of the run.
        curve_points: points of the inner training curves.
        stepping: of the unrolls, see `meta_tasks.inner_loop.Unroll`; changes the losses by rounding at most.
        learned: of the estimator.
    """

    family: TaskFamily
    rule: SamplerRule
    objective: str
    sigma: float
    seed: int
    curve_points: int = 20
    stepping: str = "loop"
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
        task = self.family.task(self.seed, *job.task)
        seeds = [derive_seed(self.seed, *pair, "unroll") for pair in job.pairs]
        return Unroll(
            task,
            job.schedule.rule_for(self.rule, self.seed, *job.task),
            objective_named(self.objective),
            job.schedule,
            seeds,
            curve_every=max(1, job.schedule.steps // self.curve_points),
            stepping=self.stepping,
        )

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
