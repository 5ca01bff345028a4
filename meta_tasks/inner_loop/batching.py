"""Runs on several tasks, in as few unrolls as their networks allow: `unrolls_of`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from meta_tasks.inner_loop.schedule import Schedule
from meta_tasks.inner_loop.unroll import Unroll
from meta_tasks.objectives import Objective
from meta_tasks.rules.base import SamplerRule
from meta_tasks.tasks.stack import TaskStack
from meta_tasks.tasks.task import Task

__all__ = ["Run", "unrolls_of"]

# Numbers (members × parameters) in one unroll: beyond them the state of its members leaves the processor's cache.
_MOST_NUMBERS = 1 << 19


@dataclass(frozen=True)
class Run:
    """Groups of members on one task.

    Args:
        task: of the members.
        rule: the sampler, as `SamplerRule.for_run` gives it for the task.
        seeds: one a group.
    """

    task: Task
    rule: SamplerRule
    seeds: tuple[int, ...]


def unrolls_of(
    runs: Sequence[Run],
    objective: Callable[[], Objective],
    schedule: Schedule,
    *,
    members_per_group: int = 2,
    curve_every: int = 0,
) -> list[tuple[list[int], Unroll]]:
    """Unrolls that take all runs, and which runs each has, in the order of its members.

    Runs share an unroll where their tasks have one signature, the rule is the same and takes hyperparameters by member
    (or the hyperparameters are the same, too). A member does what it does alone, up to rounding.
    """
    unrolls = []
    for numbers in _batches(runs, members_per_group):
        batch = [runs[number] for number in numbers]
        first, members = batch[0], members_per_group * len(batch[0].seeds)
        task = first.task if len(batch) == 1 else TaskStack([run.task for run in batch], members)  # type: ignore[misc]
        seeds = [seed for run in batch for seed in run.seeds]
        options = dict(members_per_group=members_per_group, curve_every=curve_every)
        unrolls.append((numbers, Unroll(task, first.rule, objective, schedule, seeds, **options)))
    return unrolls


def _batches(runs: Sequence[Run], members_per_group: int) -> list[list[int]]:
    batches: dict[Hashable, list[list[int]]] = {}
    for number, run in enumerate(runs):
        alike = batches.setdefault(_key(run, number), [[]])
        members = members_per_group * len(run.seeds)
        if alike[-1] and (len(alike[-1]) + 1) * members * run.task.segments.total > _MOST_NUMBERS:
            alike.append([])
        alike[-1].append(number)
    return [numbers for alike in batches.values() for numbers in alike]


def _key(run: Run, number: int) -> Hashable:
    """Equal for runs that may share an unroll."""
    signature, hyper = getattr(run.task, "signature", None), run.task.hyperparameters
    if signature is None:
        return number
    # Whether noise is drawn is one decision for all members.
    alike = hyper.temperature > 0 if run.rule.by_member else hyper
    return signature, id(run.rule), len(run.seeds), alike
