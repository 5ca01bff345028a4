"""The one row of features that is made of whole matrices, of whichever kind a feature set has."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base.segments import Segments
from learned_samplers.learned import orthogonal, whitening
from learned_samplers.learned.feature_sets import FeatureSet

# In `damping`: 1 without a pull, whatever the gradient, and differentiable where both are zero.
_TINY = 1e-30
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


def damping(ahead: Tensor, parameter: Tensor, decay: Any) -> Tensor:
    """‖m‖/√(‖m‖² + ‖w·θ‖²): near 1, or small where m is small beside the prior's pull.

    A direction is as long for a small gradient as for a large one. Where few data are fitted, what is left of the
    likelihood's gradient is below the prior's, and a chain that went on at the same pace would only memorise.

    Args:
        ahead: ‖m‖², m an average of gradients of the mean loss, not corrected for its start at zero.
        parameter: ‖θ‖², of θ less the prior's mean, over as many numbers.
        decay: w = λ/N, by which θ is pulled.
    """
    return ((ahead + _TINY) / (ahead + parameter * (decay * decay) + _TINY)).sqrt()


def _dampings(ahead: Sequence[Tensor], parameters: Sequence[Tensor], decay: Any) -> Sequence[Tensor]:
    """`damping` of each matrix (..., rows, columns), in shapes that multiply it."""
    if ahead[0].dim() == 2:  # all tensors together: one by one it takes a tenth of a step
        m, theta = (torch.stack(list(torch._foreach_norm(list(x)))).square() for x in (ahead, parameters))
        return damping(m, theta, decay).unbind()
    sizes = ([each.square().sum((-2, -1), keepdim=True) for each in x] for x in (ahead, parameters))
    return [damping(each, theta, decay) for each, theta in zip(*sizes, strict=True)]


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

    ``parameters`` and ``decay``, that of `prior_decay`, are for `damping`.
    """
    factors = _dampings(ahead, parameters, decay) if named.damped and ahead else ()
    if named.whitens:
        assert states is not None
        ahead = whitening.whitened(ahead, states, normalise=named.whole == "whitened")
    rows = list(ahead) if named.whole == "whitened" else orthogonal.orthogonal(ahead)
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
    damped times `damping`.

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
