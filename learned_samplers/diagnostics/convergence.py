"""Convergence diagnostics: is a chain long enough?

The diagnostics take draws: an array or tensor (chain, draw, ...), a list of them (draw, ...), one per chain, an ArviZ
``InferenceData`` or ``DataTree`` (all variables of its group ``posterior``), one `PosteriorSamples` or a list of them,
one per chain; one that was merged counts as its chains (1,000 evenly spaced coordinates are taken; choose others by
calling ``to_arviz`` yourself; 10,000 coordinates take seconds). Of chains of unequal length as many draws are taken as
the shortest has, the last ones. Draws need not be weights: in function space, where the symmetries of networks do no
harm, they are ``posterior.predict_samples(x)[None]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import norm, rankdata
from torch import Tensor

from learned_samplers.base import validation
from learned_samplers.base.optional import import_arviz
from learned_samplers.posterior import SampleCollection

MINIMUM_DRAWS = 4


def _as_draws(draws: Any) -> np.ndarray:
    if isinstance(draws, SampleCollection):
        draws = [draws]
    if hasattr(draws, "posterior"):
        draws = _of_posterior(draws.posterior)
    if isinstance(draws, list | tuple) and draws:
        if all(isinstance(chain, SampleCollection) for chain in draws):
            draws = _weights(draws)
        if all(getattr(chain, "ndim", 0) for chain in draws):
            shortest = min(len(chain) for chain in draws)
            draws = [_numbers(chain)[len(chain) - shortest :] for chain in draws]
    draws = _numbers(draws)
    try:
        values = np.asarray(draws, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"draws must be an array (chain, draw, ...) or samples, got {type(draws).__name__}") from error
    if values.ndim < 2 or 0 in values.shape:
        raise ValueError(f"draws must have shape (chain, draw, ...), without an empty axis; got {values.shape}")
    if not np.isfinite(values).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
        raise ValueError(f"draws must be finite, got {values[where]} at {where}")
    return values


def _of_posterior(group: Any) -> np.ndarray:
    """Draws (chain, draw, ...) of a group of ArviZ: its variable, or all of them flat and side by side."""
    arrays = [group[name].transpose("chain", "draw", ...).values for name in group.data_vars]
    if len(arrays) == 1:
        return arrays[0]
    return np.concatenate([values.reshape(*values.shape[:2], -1) for values in arrays], 2)


def _numbers(draws: Any) -> Any:
    if (
        draws.is_complex()
        if isinstance(draws, Tensor)
        else getattr(draws, "dtype", None) in (np.complex64, np.complex128)
    ):
        raise TypeError(f"draws must hold real numbers, got {draws.dtype}")
    return draws.detach().double().cpu().numpy() if isinstance(draws, Tensor) else draws


def _weights(collections: Sequence[SampleCollection]) -> list[np.ndarray]:
    """Weights (draw, coordinate) of every chain; ValueError where two are of different networks."""
    chains = [chain for collection in collections for chain in (collection.split() or [collection])]
    if len({len(chain) for chain in chains}) == 1:
        return list(chains[0].to_arviz(*chains[1:]).posterior["weights"].values)
    groups = [chain.to_arviz().posterior for chain in chains]
    for position, group in enumerate(groups):
        if list(group["parameter"].values) != list(groups[0]["parameter"].values):
            raise ValueError(f"draws[{position}] has other parameters than draws[0]")
    return [group["weights"].values[0] for group in groups]


def _by_arviz(name: str, values: np.ndarray, method: str) -> np.ndarray:
    """An ArviZ statistic for every coordinate of (chain, draw, ...)."""
    arviz = import_arviz()
    # A coordinate that never moves divides zero by zero: NaN, as our docstrings say.
    with np.errstate(divide="ignore", invalid="ignore"):
        result = getattr(arviz, name)(arviz.convert_to_dataset({"draws": values}), method=method)
    return np.asarray(result["draws"].values)


def _require_draws(values: np.ndarray, minimum: int) -> None:
    if values.shape[1] < minimum:
        raise ValueError(f"draws must hold at least {minimum} draws a chain, got {values.shape[1]}")


def ess(draws: Any, method: str = "mean") -> np.ndarray:
    """Return how many independent draws the samples of each coordinate are worth, all chains together.

    The effective sample size is n / (1 + 2 Σ_t ρ_t), ρ_t the autocorrelations.

    Estimated by ArviZ with Geyer's initial monotone sequence (Vehtari et al., Bayesian Analysis 2021). An
    autoregressive chain with coefficient ρ has n(1−ρ)/(1+ρ). A coordinate that never moves counts as n.

    Args:
        draws: see the module; at least 4 a chain.
        method: "mean" for the sample size that the mean's error corresponds to, "bulk" for the rank-normalised one.

    Returns:
        An array over the coordinates, of the shape of ``draws`` without its first two axes.
    """
    validation.one_of("method", method, ("mean", "bulk"))
    values = _as_draws(draws)
    _require_draws(values, MINIMUM_DRAWS)
    return _by_arviz("ess", values, method)


def ess_per_second(draws: Any, seconds: float) -> float:
    """Mean effective sample size over the coordinates, divided by the seconds that all chains took together.

    L2E's Table 4 sums over the parameters instead, and takes one thinning interval as its unit of time.
    """
    validation.positive("seconds", seconds)
    return float(ess(draws).mean() / seconds)


def split_rhat(draws: Any, method: str = "rank") -> np.ndarray:
    """Split R̂ of every coordinate: near 1 if the chains agree with each other and with their own halves.

    R̂² = ((n−1)/n·W + B/n) / W, with W the mean variance within and B/n the variance between the means of the half
    chains of n draws. Above 1.01 is usually taken as not converged (above 1.1 in older work). NaN for a coordinate
    that never moves.

    Args:
        draws: see the module; at least 2 chains of 4 draws.
        method: "rank" for the larger of the rank-normalised R̂ of the draws and of their distances to the median
            (Vehtari et al., Bayesian Analysis 2021), "split" for the plain one (Gelman and Rubin, 1992).

    Returns:
        An array over the coordinates.
    """
    validation.one_of("method", method, ("rank", "split"))
    values = _as_draws(draws)
    _require_draws(values, MINIMUM_DRAWS)
    if len(values) < 2:
        raise ValueError("draws must hold at least two chains, got 1: see chainwise_rhat for a single one")
    return _by_arviz("rhat", values, method)


def chainwise_rhat(draws: Any, num_splits: int = 2) -> np.ndarray:
    """R̂ between κ consecutive pieces of one chain, cR̂^(κ): near 1 where that chain has settled.

    Chains of a network settle in different, equivalent modes, so that comparing them says nothing; each is compared
    with itself, by normal scores of the ranks of its draws (Sommer et al., ICML 2024; L2E, Appendix L, with κ = 2). NaN
    for a coordinate that never moves.

    Args:
        draws: see the module; at least 4·κ a chain. The first n mod κ draws of a chain are left out.
        num_splits: κ ≥ 2.

    Returns:
        An array (chain, ...).
    """
    validation.integer("num_splits", num_splits, least=2)
    values = _as_draws(draws)
    _require_draws(values, MINIMUM_DRAWS * num_splits)
    length = values.shape[1] // num_splits
    pieces = values[:, -length * num_splits :].reshape(len(values), num_splits, length, *values.shape[2:])
    # ArviZ's own "z_scale" would halve every piece once more.
    return np.stack([_by_arviz("rhat", _normal_scores(chain), "identity") for chain in pieces])


def _normal_scores(values: np.ndarray) -> np.ndarray:
    """Φ⁻¹((r − 3/8)/(n + 1/4)) in the place of each coordinate's draws (piece, draw, ...), r their ranks of all n."""
    flat = values.reshape(-1, *values.shape[2:])
    return norm.ppf((rankdata(flat, axis=0) - 0.375) / (len(flat) + 0.25)).reshape(values.shape)


def converged_share(draws: Any) -> float:
    """Share of the coordinates, over all chains, that have settled: cR̂⁽²⁾ < 1.1 (L2E's Table 4).

    A coordinate that never moves has not converged. For one layer: ``posterior.to_arviz(parameters=["fc.weight"])``.
    """
    return float((chainwise_rhat(draws) < 1.1).mean())  # NaN compares as false
