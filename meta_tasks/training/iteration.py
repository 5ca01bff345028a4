"""`Iteration`: what one iteration of the outer loop showed."""

from __future__ import annotations

from dataclasses import dataclass

from meta_tasks.estimators.jobs import JobResult

__all__ = ["Iteration"]


@dataclass
class Iteration:
    """What one iteration showed: ``number`` of iterations done, mean and median finite meta-loss, norm of the raw
    gradient, mean and root mean square of L₊ − L₋, failed members, member-steps a second, and the jobs' results."""

    number: int
    loss: float
    median_loss: float
    gradient_norm: float
    mean_difference: float
    rms_difference: float
    failed: int
    member_steps_per_second: float
    results: list[JobResult]
