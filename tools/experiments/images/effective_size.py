"""The effective sample size of a run's predictions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from learned_samplers import diagnostics


def median_ess(draws: Tensor, chains: Sequence[int]) -> float | None:
    """Median over coordinates of the effective sample size of draws (K, n), the k-th of chain ``chains[k]``.

    Of chains of different lengths the latest draws that all of them have; None where those are too few.
    """
    values, of = draws.cpu().numpy(), np.asarray(chains)
    each = [values[of == chain] for chain in dict.fromkeys(chains)]
    common = min(map(len, each))
    if common < diagnostics.MINIMUM_DRAWS:
        return None
    return float(np.median(diagnostics.ess(np.stack([chain[-common:] for chain in each]))))
