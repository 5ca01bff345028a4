"""Running averages of the gradient and of its square, which the network of `L2E` sees: also rounded to bfloat16."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base.segments import Segments, constant
from learned_samplers.learned.feature_sets import AVERAGE_DECAYS, FeatureSet, feature_set_named

#: Averages or covariances of a chain: one flat buffer with leading axes, or in place a tensor for each parameter.
Kept = Tensor | Sequence[Tensor]


def update_averages(
    averages: Tensor,
    gradient: Tensor,
    feature_set: str | FeatureSet = "paper",
    *,
    in_place: bool = False,
    step: Any = 0,
    segments: Segments | None = None,
) -> Tensor:
    """m_d ← d·m_d + (1−d)·g, and v_d ← d·v_d + (1−d)·g² where the set keeps any; no bias correction.

    ``averages`` is (..., K, d) with the m first, ``gradient`` (..., d). New averages, or with ``in_place`` the same.
    Averages in bfloat16 stay so, and are rounded by step and tensor as `_rounded` says.

    Raises:
        ValueError: averages in bfloat16 and a gradient that is differentiated, which rounding does not allow.
    """
    feature_set = feature_set_named(feature_set)
    k = len(AVERAGE_DECAYS)
    decays = AVERAGE_DECAYS + feature_set.second_moment_decays
    if averages.dtype == torch.bfloat16 and gradient.dtype != torch.bfloat16:
        if torch.is_grad_enabled() and (averages.requires_grad or gradient.requires_grad):
            raise ValueError("averages in bfloat16 cannot be differentiated through: keep them in float32")
        averages = averages if in_place else averages.clone()
        tensors = segments or Segments((gradient.shape[-1],))
        for i, (row, decay) in enumerate(zip(averages.unbind(-2), decays, strict=True)):
            _update_rounded_(row, gradient, 1 - decay, square=i >= k, number=i, step=step, segments=tensors)
        return averages
    if in_place:
        # Average by average, for the gradient as many times as there are averages is as large as they are.
        shares = (1 - torch.tensor(decays, dtype=gradient.dtype)).tolist()
        for row, share in zip(averages[..., :k, :].unbind(-2), shares[:k], strict=True):
            row.lerp_(gradient, share)
        for row, share in zip(averages[..., k:, :].unbind(-2), shares[k:], strict=True):
            row.mul_(1 - share).addcmul_(gradient, gradient, value=share)
        return averages
    weights = 1 - constant(decays, gradient).unsqueeze(-1)
    gradient = gradient.unsqueeze(-2)
    first = torch.lerp(averages[..., :k, :], gradient, weights[:k])
    if not feature_set.second_moment_decays:
        return first
    return torch.cat([first, torch.lerp(averages[..., k:, :], gradient.square(), weights[k:])], -2)


def update_each_(
    averages: Sequence[Tensor], gradient: Tensor, feature_set: str | FeatureSet, *, step: Any, segments: Segments
) -> Tensor:
    """`update_averages` in place of averages (K, *shape) for each tensor; gives them as one buffer (K, d)."""
    rows = [x.reshape(len(x), -1) for x in averages]
    flat = rows[0] if len(rows) == 1 else torch.cat(rows, -1)  # of a huge tensor no copy
    fresh = not torch.compiler.is_compiling()  # which does not follow a change in place
    flat = update_averages(flat, gradient, feature_set, in_place=fresh, step=step, segments=segments)
    if torch.compiler.is_compiling() or flat.data_ptr() != averages[0].data_ptr():
        pieces = flat.split([x[0].numel() for x in averages], -1)
        torch._foreach_copy_(
            list(averages), [piece.reshape(x.shape) for x, piece in zip(averages, pieces, strict=True)]
        )
    return flat


def begin_late_(averages: Tensor, mean_square: Tensor, feature_set: str | FeatureSet, step: int) -> None:
    """Let the second moments of a tensor that joins after ``step`` updates begin as if all had had this gradient.

    v_d ← (1 − dᵗ)·mean(g²): the correction by 1/(1 − dᵗ) is the chain's, and from zeros the tensor would be taken for
    one of tiny gradients, and move too far. Means of gradients may begin at zero.

    Args:
        averages: of the tensor, (K, *shape), all zero.
        mean_square: of its first gradient, one number.
    """
    feature_set = feature_set_named(feature_set)
    seconds = averages[len(AVERAGE_DECAYS) :]
    for row, decay in zip(seconds, feature_set.second_moment_decays, strict=True):
        row.add_(mean_square, alpha=1 - decay**step)


# Odd numbers far from any ratio of small ones, for coordinates, averages and steps; coordinates rounded at a time.
_COORDINATE, _AVERAGE, _STEP, _ROUNDED_AT_ONCE = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 1 << 16


def _update_rounded_(
    row: Tensor, gradient: Tensor, share: float, *, square: bool, number: int, step: Any, segments: Segments
) -> None:
    """row ← row + share·(g − row), or of g², rounded to bfloat16, in place; ``row`` is the average of that number."""
    for start, stop in pairwise(segments.edges):
        for first in range(0, stop - start, _ROUNDED_AT_ONCE):
            part = slice(start + first, min(start + first + _ROUNDED_AT_ONCE, stop))
            g = gradient[..., part]
            new = torch.lerp(row[..., part].to(g.dtype), g * g if square else g, share)
            row[..., part] = _rounded(new.float(), first, number, step)


def _rounded(x: Tensor, first: int, number: int, step: Any) -> Tensor:
    """Float32 to bfloat16, for coordinates from ``first`` on of a tensor, so that roundings add up to nothing.

    A slow average moves by less than bfloat16 resolves: rounding to the nearest number would stop it. What is rounded
    away is compared with a number that takes all values in turn as the steps go by: up as often as the remainder is
    large, and right in the mean.
    """
    at = torch.arange(first, first + x.shape[-1], device=x.device) * _COORDINATE
    threshold = ((at + (number * _AVERAGE + step * _STEP % (1 << 32))) % (1 << 32)) >> 16
    bits = x.contiguous().view(torch.int32) + threshold.to(torch.int32)
    return (bits & -65536).view(torch.float32).to(torch.bfloat16)
