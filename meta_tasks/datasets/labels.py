"""`renumber`: keep the images of some classes, and number these from 0."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["renumber"]


def renumber(x: Tensor, y: Tensor, classes: Sequence[int], num_classes: int, name: str) -> tuple[Tensor, Tensor]:
    """The images x (n, ...) whose labels y (n,) are among ``classes``, with their places there as labels.

    Raises:
        ValueError: fewer than two classes, one of them twice, or one that the data set ``name`` has not.
    """
    if len(classes) < 2 or len(set(classes)) < len(classes) or not set(classes) <= set(range(num_classes)):
        raise ValueError(
            f"classes must be two or more different labels of {name} in [0, {num_classes}), got {tuple(classes)}"
        )
    new = torch.full((num_classes,), -1, device=y.device)
    new[list(classes)] = torch.arange(len(classes), device=y.device)
    kept = new[y] >= 0
    return x[kept], new[y[kept]]
