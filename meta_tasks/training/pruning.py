"""How few features of a learned direction are enough: its largest components alone, against all, on fresh tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from meta_tasks.inner_loop.schedule import Horizon
from meta_tasks.inner_loop.unroll import Unroll
from meta_tasks.objectives import objective_named
from meta_tasks.random_streams import derive_seed, generator
from meta_tasks.rules.base import SamplerRule
from meta_tasks.tasks.family import TaskFamily

__all__ = ["Candidate", "compared", "losses_on_fresh_tasks", "sparsest"]


def losses_on_fresh_tasks(
    family: TaskFamily,
    rule: SamplerRule,
    candidates: Tensor,
    horizon: Horizon,
    *,
    tasks: int,
    first: int = 0,
    seed: int = 0,
    objective: str = "bma",
) -> Iterator[Tensor]:
    """Of one task after the other, which no meta-training draws, the meta-losses (k,) of k vectors of meta-parameters.

    The candidates run side by side on the same task, from the same initial weights, with the same minibatches,
    validation images and noise, so that their differences come from the meta-parameters alone. A run that became
    non-finite has NaN.

    Args:
        family: the tasks are its own under names that no iteration has.
        rule: of the candidates.
        candidates: (k, n).
        horizon: of a run; each task draws its number of steps.
        tasks: how many.
        first: number of the first one; those before it are left out.
        seed: of all.
        objective: the meta-objective, "bma" or "ce".

    Raises:
        ValueError: there is no candidate, or the objective has no value.
    """
    if candidates.dim() != 2 or not len(candidates):
        raise ValueError(f"candidates must be (k, n), k vectors of meta-parameters, got {tuple(candidates.shape)}")
    if objective_named(objective).reads_states:
        raise ValueError(f"objective={objective!r} has no value, only a gradient; values are compared here")
    for number in range(first, tasks):
        keys = (seed, "fresh", number)
        schedule = horizon.schedule(generator(*keys, "horizon"))
        unroll = Unroll(
            family.task(*keys),
            rule.for_run(schedule.steps, *keys),
            objective_named(objective),
            schedule,
            [derive_seed(*keys, "unroll")],
            members_per_group=len(candidates),
        )
        unroll.advance(candidates)
        yield unroll.losses()


@dataclass(frozen=True)
class Candidate:
    """How a vector of meta-parameters did on fresh tasks.

    Attributes:
        loss: mean meta-loss over the tasks that no candidate failed on.
        difference, error: of its loss to that of the candidate with the lowest mean, the mean over the same tasks and
            its standard error.
        failed: tasks on which its run became non-finite.
    """

    loss: float
    difference: float
    error: float
    failed: int


def compared(losses: Tensor) -> list[Candidate]:
    """What the meta-losses (tasks, k) say of the k candidates; the lowest mean is looked for among those that failed
    least often.

    Raises:
        ValueError: fewer than two tasks have a loss of every candidate, so that there is no standard error.
    """
    losses = losses.double()
    failures = losses.isfinite().logical_not().sum(0)
    paired = losses[losses.isfinite().all(1)]
    if len(paired) < 2:
        raise ValueError(f"of {len(losses)} tasks only {len(paired)} had a finite loss of every candidate")
    means = paired.mean(0)
    best = int(torch.where(failures == failures.min(), means, torch.inf).argmin())
    differences = paired - paired[:, best : best + 1]
    errors = differences.std(0) / len(paired) ** 0.5
    rows = zip(means.tolist(), differences.mean(0).tolist(), errors.tolist(), failures.tolist(), strict=True)
    return [Candidate(*row) for row in rows]


def sparsest(candidates: Sequence[Candidate]) -> int:
    """The number of the first candidate that is within one standard error of the best, and failed no more often.

    The one-standard-error rule of the lasso (Hastie, Tibshirani and Friedman, *The Elements of Statistical Learning*,
    §7.10), with the error of the paired difference in the place of the mean's, which is many times larger.

    Args:
        candidates: from the simplest on.
    """
    fewest = min(each.failed for each in candidates)
    return next(i for i, each in enumerate(candidates) if each.failed == fewest and each.difference <= each.error)
