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
        loss: mean of the finite meta-losses.
        median_loss: their median.
        gradient_norm: Euclidean norm of the meta-gradient before it is clipped.
        mean_difference: mean of L(φ + η) − L(φ − η); NaN without pairs.
        rms_difference: root mean square of the same.
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
