"""`TaskStack`: several image tasks of one network, whose members run as one batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from meta_tasks.rules.base import Hyperparameters
from meta_tasks.tasks.task import ImageTask, NetworkTask, Task

__all__ = ["TaskStack", "tasks_of_groups"]


class TaskStack(NetworkTask):
    """T image tasks of equal `ImageTask.signature` as one `Task`: the members of the first come first.

    The minibatches, the validation images and the initial states of a member are those of its own task: indices count
    its own images. Settings that differ are tensors with a row for each member.

    Args:
        tasks: of one signature; data that tasks share is kept once.
        members: members of each task.

    Raises:
        ValueError: the tasks have other signatures.
    """

    def __init__(self, tasks: Sequence[ImageTask], members: int) -> None:
        first = tasks[0]
        if len({task.signature for task in tasks}) > 1:
            raise ValueError(f"tasks must have one signature, got {[task.signature for task in tasks]}")
        self.tasks, self.network, self.signature = list(tasks), first.network, first.signature
        self.kind, self.device, self.segments = first.kind, first.device, first.segments
        self.batch_size, self.num_validation = first.batch_size, first.num_validation
        self.num_held_out = min(task.num_held_out for task in tasks)
        self.hyperparameters = Hyperparameters.side_by_side([task.hyperparameters for task in tasks], members)
        self.train, self.held_out = (
            _joined([getattr(task, split) for task in tasks], self.device) for split in ("train", "held_out")
        )
        if any(task.scale is not None for task in tasks):
            ones = torch.ones(self.segments.total, device=self.device)
            scales = torch.stack([ones if task.scale is None else task.scale for task in tasks])
            self.scale = scales.repeat_interleave(members, 0)

    def initial(self, seed: int) -> Tensor:
        """Initial parameter vector (d,) of the first task; `tasks_of_groups` says which task has which members."""
        return self.tasks[0].initial(seed)

    def examples(self, split: str, indices: Tensor) -> tuple[Tensor, Tensor]:
        x, y, begin = getattr(self, split)
        rows = indices + begin.repeat_interleave(len(indices) // len(begin), 0)  # each into its own task's data
        return x[rows], y[rows]


def tasks_of_groups(task: Task, groups: int) -> list[Task]:
    """The task of each group of members, in order."""
    tasks: list[Task] = list(task.tasks) if isinstance(task, TaskStack) else [task]
    return [part for part in tasks for _ in range(groups // len(tasks))]


Examples = tuple[Tensor, Tensor, Tensor]


def _joined(parts: Sequence[tuple[Tensor, ...]], device: torch.device) -> Examples:
    """Inputs and labels of all tasks one after the other, each data set once; and where each task's begin, (T, 1)."""
    inputs: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
    starts: dict[tuple[int, int], int] = {}
    begin = []
    for x, y in parts:
        key = (x.data_ptr(), len(x))
        if key not in inputs:
            starts[key] = sum(len(labels) for _, labels in inputs.values())
            inputs[key] = x, y
        begin.append(starts[key])
    x, y = (torch.cat(tensors) if len(inputs) > 1 else tensors[0] for tensors in zip(*inputs.values()))
    return x, y, torch.tensor(begin, device=device)[:, None]
