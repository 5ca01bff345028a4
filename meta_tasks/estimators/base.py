"""`Estimator`: the base class of all estimators of the meta-gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from meta_tasks.estimators.evaluator import Evaluator
from meta_tasks.estimators.jobs import Job, JobResult
from meta_tasks.inner_loop.schedule import Horizon
from meta_tasks.rules.base import SamplerRule
from meta_tasks.tasks.family import TaskFamily

__all__ = ["Estimator"]


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

    def upgraded(self, saved: dict[str, Any]) -> dict[str, Any]:
        """The specification in an earlier version's checkpoint, as this version would have written it."""
        return saved

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
