"""The one row of features that is made of whole matrices, of whichever kind a feature set has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base import matrices, whitening
from learned_samplers.base.matrices import attenuations, averaged, orthogonal
from learned_samplers.base.segments import Segments
from learned_samplers.learned.feature_sets import FeatureSet


def unrounded(named: FeatureSet, averages: Tensor, gradient: Tensor) -> Tensor | None:
    """Of averages (..., K, d) in bfloat16, not yet updated: that of the row after this gradient, before it is rounded.

    None where the updated average is that one itself, or the feature set has no such row.
    """
    if named.whole is None or averages.dtype == gradient.dtype:
        return None
    return averaged(averages[..., named.whole_average, :], gradient, named.whole_decay)


def prior_decay(named: FeatureSet, prior_precision: Any, num_data: Any) -> Any:
    """λ/N where the feature set is damped, else None.

    Raises:
        ValueError: a damped one is not told λ or N.
    """
    if not named.damped:
        return None
    if prior_precision is None or num_data is None:
        raise ValueError(f"prior_precision and num_data must be given for feature_set={named.name!r}, got None")
    return prior_precision / num_data


def whole_rows(
    named: FeatureSet,
    ahead: Sequence[Tensor],
    states: Sequence[Tensor] | None,
    parameters: Sequence[Tensor],
    decay: Any = None,
) -> list[Tensor]:
    """Of each matrix (..., rows, columns), the average looked ahead of, what the feature set makes of it.

    ``parameters`` and ``decay``, that of `prior_decay`, are for `attenuation`.
    """
    factors = attenuations(ahead, parameters, decay) if named.damped and ahead else ()
    if named.whitens:
        assert states is not None
        ahead = whitening.whitened(ahead, states, normalise=named.whole == "whitened")
    rows = list(ahead) if named.whole == "whitened" else orthogonal(ahead)
    return [row * factor for row, factor in zip(rows, factors, strict=True)] if factors else rows


def whole_direction(
    named: FeatureSet,
    average: Tensor,
    gradient: Tensor,
    segments: Segments,
    covariances: Tensor | None,
    parameter: Tensor,
    decay: Any = None,
) -> Tensor:
    """The row that a feature set has of whole matrices, (..., d): root mean square about 1 over each tensor.

    A tensor of shape (n, ...) is taken as a matrix with n rows, one without a second axis as a single row, and the row
    is `orthogonal` or `whitened` of d·m + (1−d)·g, which looks a step ahead, or the one of the other; of a set that is
    damped times `attenuation`.

    Args:
        named: the feature set, with d = ``whole_decay``.
        average: m, already updated with the gradient, (..., d).
        gradient: (..., d).
        segments: the tensors in the flat axis, with their shapes.
        covariances: (..., w), already updated with the gradient, of a set that whitens.
        parameter: (..., d), less the prior's mean.
        decay: λ/N, that of `prior_decay`.

    Raises:
        ValueError: ``segments`` do not know the shapes.
    """
    ahead = segments.as_matrices(averaged(average, gradient, named.whole_decay))
    states = None if covariances is None else whitening.flat_states(covariances, segments)
    rows = whole_rows(named, ahead, states, segments.as_matrices(parameter), decay)
    flat = [matrix.flatten(-2) for matrix in rows]
    return flat[0] if len(flat) == 1 else torch.cat(flat, -1)


def warn_if_slow(params: Sequence[Tensor], name: str, named: FeatureSet) -> None:
    """Say so where the row of whole matrices takes long at every step; on CPUs alone."""
    if named.whole is not None:
        matrices.warn_if_slow(
            params,
            f"{name}'s network sees",
            "Weights without it: network='l2e'",
            whitens=named.whitens,
            makes_orthogonal=named.whole != "whitened",
        )
