"""Images with several labels each, one a task."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from meta_tasks.datasets.image_data import ImageSplits


@dataclass(frozen=True, eq=False)
class MultiTaskData(ImageSplits):
    """Images and K labels of each, as tensors; K is the number of tasks.

    `train_x`, `val_x`, `test_x` are uint8 of shape (n, C, H, W), which is a quarter of their size as numbers: `scaled`
    makes float32 in [0, 1] of a minibatch. `train_y`, `val_y`, `test_y` are int64 of shape (n, K) in [0, num_classes).

    Raises:
        TypeError: a tensor has another dtype.
        ValueError: a tensor has another shape, or a label is outside [0, num_classes).
    """

    name: str
    tasks: tuple[str, ...]
    num_classes: int
    train_x: Tensor
    train_y: Tensor
    val_x: Tensor
    val_y: Tensor
    test_x: Tensor
    test_y: Tensor

    def __post_init__(self) -> None:
        self._validate(torch.uint8, (len(self.tasks),))


def scaled(x: Tensor) -> Tensor:
    """Pixels 0 to 255 as float32 in [0, 1]."""
    return x.float() / 255
