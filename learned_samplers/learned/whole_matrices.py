"""The one row of features that is made of whole matrices, of whichever kind a feature set has."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from learned_samplers.base.segments import Segments
from learned_samplers.learned import orthogonal, whitening
from learned_samplers.learned.feature_sets import FeatureSet

# Above this many operations a step on a CPU, some .2 to .4 s of a core, users are told.
_MANY_OPERATIONS = 2e10


def averaged(average: Tensor, gradient: Tensor, decay: float) -> Tensor:
    """d·m + (1−d)·g in the gradient's precision: the average after this gradient, or of that one a step ahead of it."""
    return torch.lerp(average.to(gradient.dtype), gradient, 1 - decay)


def unrounded(named: FeatureSet, averages: Tensor, gradient: Tensor) -> Tensor | None:
    """Of averages (..., K, d) in bfloat16, not yet updated: that of the row after this gradient, before it is rounded.

    None where the updated average is that one itself, or the feature set has no such row.
    """
    if named.whole is None or averages.dtype == gradient.dtype:
        return None
    return averaged(averages[..., named.whole_average, :], gradient, named.whole_decay)


def whole_rows(named: FeatureSet, ahead: Sequence[Tensor], states: Sequence[Tensor] | None) -> list[Tensor]:
    """Of each matrix (..., rows, columns), the average looked ahead of, what the feature set makes of it."""
    if named.whitens:
        assert states is not None
        ahead = whitening.whitened(ahead, states, normalise=named.whole == "whitened")
    return list(ahead) if named.whole == "whitened" else orthogonal.orthogonal(ahead)


def whole_direction(
    named: FeatureSet, average: Tensor, gradient: Tensor, segments: Segments, covariances: Tensor | None
) -> Tensor:
    """The row that a feature set has of whole matrices, (..., d): root mean square about 1 over each tensor.

    A tensor of shape (n, ...) is taken as a matrix with n rows, one without a second axis as a single row, and the row
    is `orthogonal` or `whitened` of d·m + (1−d)·g, which looks a step ahead, or the one of the other.

    Args:
        named: the feature set, with d = ``whole_decay``.
        average: m, already updated with the gradient, (..., d).
        gradient: (..., d).
        segments: the tensors in the flat axis, with their shapes.
        covariances: (..., w), already updated with the gradient, of a set that whitens.

    Raises:
        ValueError: ``segments`` do not know the shapes.
    """
    ahead = segments.as_matrices(averaged(average, gradient, named.whole_decay))
    states = None if covariances is None else whitening.flat_states(covariances, segments)
    flat = [matrix.flatten(-2) for matrix in whole_rows(named, ahead, states)]
    return flat[0] if len(flat) == 1 else torch.cat(flat, -1)


def warn_if_slow(params: Sequence[Tensor], name: str, named: FeatureSet) -> None:
    """Say so where the row of whole matrices takes long at every step; on CPUs alone."""
    here = [p for p in params if p.device.type == "cpu" and p.numel()]
    if named.whole is None or not here:
        return
    segments = Segments.of(here)
    what = "momentum whitened" if named.whitens else "orthogonal factor"
    needed = whitening.operations(segments) if named.whitens else 0.0
    needed += orthogonal.operations(segments) if named.whole != "whitened" else 0.0
    if needed > _MANY_OPERATIONS:
        largest = max(segments.matrices, key=min)
        warnings.warn(
            f"{name}'s network sees each matrix's {what}, {needed / 1e9:.0f} billion operations a step here "
            f"(the largest is {largest[0]}×{largest[1]}): slow on a CPU. Weights without it: network='l2e' of L2E, "
            "'scale-adapted-l2e' of ScaleAdaptedL2E",
            stacklevel=5,
        )
