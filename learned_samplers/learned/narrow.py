"""Running averages kept in bfloat16: half the memory, and a rounding that adds up to nothing.

A slow average moves by less than bfloat16 resolves, so that rounding to the nearest number would stop it (and a second
moment at d = .999 would only ever grow). Here what is rounded away is compared with a number that takes all values in
turn as the steps go by: up as often as the remainder is large, and right in the mean.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base.segments import Segments

# Odd numbers far from any ratio of small ones, for coordinates, averages and steps; settings.h has the first two.
_COORDINATE, _AVERAGE, STEP = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
_WHOLE = 1 << 32
# Coordinates that are rounded at a time.
_PIECE = 1 << 16


def narrow_update_(
    row: Tensor, gradient: Tensor, share: float, *, square: bool, number: int, step: Any, segments: Segments
) -> None:
    """row ← row + share·(g − row), or of g², rounded to bfloat16, in place; ``row`` is the average of that number."""
    for start, stop in pairwise(segments.edges):
        for first in range(0, stop - start, _PIECE):
            part = slice(start + first, min(start + first + _PIECE, stop))
            g = gradient[..., part]
            new = torch.lerp(row[..., part].to(g.dtype), g * g if square else g, share)
            row[..., part] = _rounded(new.float(), first, number, step)


def _rounded(x: Tensor, first: int, number: int, step: Any) -> Tensor:
    """Float32 to bfloat16, for coordinates from ``first`` on of a tensor."""
    at = torch.arange(first, first + x.shape[-1], device=x.device) * _COORDINATE
    threshold = ((at + (number * _AVERAGE + step * STEP % _WHOLE)) % _WHOLE) >> 16
    bits = x.contiguous().view(torch.int32) + threshold.to(torch.int32)
    return (bits & -65536).view(torch.float32).to(torch.bfloat16)
