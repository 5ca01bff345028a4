"""`Iteration`: the numbers of one iteration of the outer loop."""

from __future__ import annotations

from dataclasses import dataclass

from meta_tasks.estimators.jobs import JobResult

__all__ = ["Iteration"]


@dataclass
class Iteration:
    """Numbers of one iteration of the outer loop, for the log.

    Attributes:
        number: iterations done so far, this one included.
        loss, median_loss: mean and median of the finite meta-losses.
        gradient_norm: Euclidean norm of the meta-gradient before it is clipped.
        mean_difference, rms_difference: mean and root mean square of L(φ + η) − L(φ − η); NaN without pairs.
        failed: members that became non-finite.
        member_steps_per_second: speed of all processes together.
        results: of the jobs.
    """

    number: int
    loss: float
    median_loss: float
    gradient_norm: float
    mean_difference: float
    rms_difference: float
    failed: int
    member_steps_per_second: float
    results: list[JobResult]
