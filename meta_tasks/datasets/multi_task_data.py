"""Images with several labels each, one a task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

SPLITS = ("train", "val", "test")


@dataclass(frozen=True, eq=False)
class MultiTaskData:
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
        for split in SPLITS:
            x, y = getattr(self, f"{split}_x"), getattr(self, f"{split}_y")
            if x.dtype != torch.uint8 or y.dtype != torch.int64:
                raise TypeError(f"{split}_x must be uint8 and {split}_y int64, got {x.dtype} and {y.dtype}")
            if x.ndim != 4 or y.shape != (len(x), len(self.tasks)) or x.shape[1:] != self.test_x.shape[1:]:
                raise ValueError(
                    f"{split}_x must be (n, C, H, W) as test_x {tuple(self.test_x.shape)} and {split}_y "
                    f"(n, {len(self.tasks)}), got {tuple(x.shape)} and {tuple(y.shape)}"
                )
            if len(y) and not 0 <= int(y.min()) <= int(y.max()) < self.num_classes:
                raise ValueError(
                    f"{split}_y must lie in [0, num_classes={self.num_classes}), "
                    f"got labels from {int(y.min())} to {int(y.max())}"
                )

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of one image."""
        channels, height, width = self.test_x.shape[1:]
        return channels, height, width

    @property
    def num_data(self) -> int:
        """N, the number of training images."""
        return len(self.train_y)

    def to(self, device: torch.device | str) -> MultiTaskData:
        """The same data with every tensor on `device`."""
        moved = {f.name: getattr(self, f.name).to(device) for f in fields(self) if f.name[-2:] in ("_x", "_y")}
        return replace(self, **moved)


def scaled(x: Tensor) -> Tensor:
    """Pixels 0 to 255 as float32 in [0, 1]."""
    return x.float() / 255


def check_choice(argument: str, value: object, choices: Sequence[object]) -> None:
    if value not in choices:
        raise ValueError(f"{argument} must be one of {', '.join(map(str, choices))}, got {value!r}")


def check_count(argument: str, value: int | None, *, least: int = 1, optional: bool = False) -> None:
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{argument} must be an integer{' or None' if optional else ''}, got {value!r}")
    if value < least:
        raise ValueError(f"{argument} must be at least {least}, got {value}")
