"""Tensors of a parameter group laid end to end in one flat buffer, and which of them share one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base.segments import Segments


def gather(tensors: Sequence[Tensor], lead: Sequence[int] = ()) -> Tensor:
    """Tensors laid end to end, (*lead, d), where all of them have the leading axes ``lead``."""
    return torch.cat([tensor.reshape(*lead, -1) for tensor in tensors], -1)


def scatter(flat: Tensor, tensors: Sequence[Tensor], segments: Segments | Sequence[int]) -> None:
    """Write a flat buffer (..., d) back into the tensors it was gathered from; ``segments`` may be their lengths."""
    lengths = list(segments.lengths if isinstance(segments, Segments) else segments)
    for tensor, piece in zip(tensors, flat.split(lengths, -1), strict=True):
        tensor.copy_(piece.reshape(tensor.shape))


# Small tensors are updated together, up to so many coordinates: their noise, and copies of their state where the update
# is torch's, are all that a step in place needs besides the state. Compiled code copies nothing, and every call costs.
_AT_ONCE_ON_CPU = 1 << 17
_AT_ONCE_COMPILED = 1 << 19
_AT_ONCE_ON_GPU = 1 << 22


def coordinates_at_once(params: Sequence[Tensor], compiled: bool) -> int:
    """How many coordinates of these tensors a step in place takes at a time."""
    if compiled:
        return _AT_ONCE_COMPILED
    return _AT_ONCE_ON_CPU if all(p.device.type == "cpu" for p in params) else _AT_ONCE_ON_GPU


def together(params: Sequence[Tensor]) -> list[list[int]]:
    """Groups of tensors that can share a buffer, by position: one dtype, one device; empty tensors are left out."""
    by_kind: dict[Any, list[int]] = {}
    for i, p in enumerate(params):
        if p.numel():
            by_kind.setdefault((p.dtype, p.device), []).append(i)
    return list(by_kind.values())
