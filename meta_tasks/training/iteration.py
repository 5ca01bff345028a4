"""`Iteration`: the numbers of one iteration of the outer loop."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

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

    @classmethod
    def of(
        cls, results: list[JobResult], losses: Tensor, *, number: int, gradient_norm: float, seconds: float
    ) -> Iteration:
        """From the jobs' results, their meta-losses side by side, and the seconds that they took."""
        # Only perturbations come in pairs.
        differences = losses[losses.isfinite().all(1)].diff(dim=1).neg().flatten()
        return cls(
            number=number,
            loss=losses.nanmean().item(),
            median_loss=losses.nanmedian().item(),
            gradient_norm=gradient_norm,
            mean_difference=differences.mean().item() if len(differences) else math.nan,
            rms_difference=differences.square().mean().sqrt().item() if len(differences) else math.nan,
            failed=sum(result.failed for result in results),
            member_steps_per_second=sum(result.member_steps for result in results) / seconds,
            results=results,
        )
