"""The one row of features that is made of whole matrices, of whichever kind a feature set has."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from torch import Tensor

from learned_samplers.base.segments import Segments
from learned_samplers.learned import orthogonal, whitening
from learned_samplers.learned.feature_sets import FeatureSet

# Above this many operations a step on a CPU, some .2 to .4 s of a core, users are told.
_MANY_OPERATIONS = 2e10


def whole_direction(
    named: FeatureSet, averages: Tensor, gradient: Tensor, segments: Segments, covariances: Tensor | None
) -> Tensor | None:
    """The row that a feature set has of whole matrices, (..., d); None if it has none.

    Averages (..., K, d) and covariances (..., w) are already updated with the gradient.

    Raises:
        ValueError: ``segments`` do not know the shapes.
    """
    if named.whole is None:
        return None
    average = averages[..., named.average_decays.index(named.whole_decay), :]
    if not named.whitens:
        return orthogonal.orthogonal_direction(average, gradient, named.whole_decay, segments)
    assert covariances is not None
    return whitening.whitened_direction(average, gradient, named.whole_decay, segments, covariances)


def warn_if_slow(params: Sequence[Tensor], name: str, named: FeatureSet) -> None:
    """Say so where the row of whole matrices takes long at every step; on CPUs alone."""
    here = [p for p in params if p.device.type == "cpu" and p.numel()]
    if named.whole is None or not here:
        return
    segments = Segments.of(here)
    what, module = ("momentum whitened", whitening) if named.whitens else ("orthogonal factor", orthogonal)
    needed = module.operations(segments)
    if needed > _MANY_OPERATIONS:
        largest = max(segments.matrices, key=min)
        warnings.warn(
            f"{name}'s network sees each matrix's {what}, {needed / 1e9:.0f} billion operations a step here "
            f"(the largest is {largest[0]}×{largest[1]}): slow on a CPU. Weights without it: network='l2e' of L2E, "
            "'scale-adapted-l2e' of ScaleAdaptedL2E",
            stacklevel=5,
        )
