"""R̂ and effective samples of many coordinates at once, in NumPy alone, for verdicts on chains."""

from __future__ import annotations

import numpy as np


def rhat(chains: np.ndarray) -> np.ndarray:
    """R̂ of every coordinate of (chain, draw, ...): √(((n−1)/n·W + B/n)/W); 1 where nothing moves."""
    count = chains.shape[1]
    inner, between = chains.var(1, ddof=1).mean(0), chains.mean(1).var(0, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(inner > 0, np.sqrt((count - 1) / count + between / inner), np.where(between > 0, np.inf, 1.0))


def effective_size(draws: np.ndarray) -> np.ndarray:
    """n/(1 + 2Σρ) of every coordinate of one chain (draw, ...), by Geyer's initial positive sequence of pairs.

    n where nothing moves.
    """
    count = len(draws)
    centred = draws - draws.mean(0)
    spectrum = np.abs(np.fft.rfft(centred, 2 * count, axis=0)) ** 2
    covariance = np.fft.irfft(spectrum, axis=0)[:count]
    with np.errstate(divide="ignore", invalid="ignore"):
        rho = covariance / covariance[0]
    pairs = rho[0 : count - 1 : 2] + rho[1:count:2]
    positive = np.cumprod(pairs > 0, 0)
    effective = count / np.maximum(2 * (pairs * positive).sum(0) - 1, 1 / count)
    return np.where(covariance[0] > 0, effective, count)
