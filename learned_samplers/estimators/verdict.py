"""Has it settled? R̂, effective samples and temperature of chains side by side, and one line that says what to do."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Verdict(NamedTuple):
    """What is known of the chains.

    Attributes:
        settled: whether every number is where it has to be.
        within: R̂ between the halves of a chain, the 0.9 quantile over rows of the mean over chains: has each settled?
        across: split R̂ over the chains: do they agree? Networks that settle in different modes do not, and the average
            over them is the better for it.
        effective: effective samples of a prediction, all chains together; the median over rows.
        draws: samples of all chains.
        temperature: mean of θ·∇U over the number of weights; 1 at equilibrium.
        text: one line of it, with what to do.
    """

    settled: bool
    within: float
    across: float
    effective: float
    draws: int
    temperature: float
    text: str


def verdict(predictions: np.ndarray, temperature: float) -> Verdict:
    """Judge the chains by their predictions (chain, draw, row)."""
    chains, draws, _ = predictions.shape
    within = across = effective = float("nan")
    if draws >= 4:
        half = draws // 2
        halves = np.stack([predictions[:, :half], predictions[:, draws - half :]], 1)  # (chain, 2, half, row)
        within = float(np.nanquantile(np.mean([rhat(chain) for chain in halves], 0), 0.9))
        across = float(np.nanquantile(rhat(halves.reshape(2 * chains, half, -1)), 0.9))
        effective = float(np.nanmedian(np.sum([effective_size(chain) for chain in predictions], 0)))
    reasons = []
    if not within <= 1.2:
        reasons.append("chains still drift: raise n_steps")
    if not abs(temperature - 1) <= 0.1:
        reasons.append(f"temperature {temperature:.2f} is not 1: raise n_steps, or prior_precision")
    if not effective >= 10 * chains:
        reasons.append("few effective samples: raise n_steps")
    text = (
        f"{'not settled' if reasons else 'settled'}: R-hat {within:.2f} within chains and {across:.2f} across them, "
        f"{effective:.0f} effective of {chains * draws} samples, temperature {temperature:.2f}"
    )
    return Verdict(
        not reasons, within, across, effective, chains * draws, temperature, "; ".join([text, *dict.fromkeys(reasons)])
    )


def rhat(chains: np.ndarray) -> np.ndarray:
    """R̂ of every coordinate of (chain, draw, ...): √(((n−1)/n·W + B/n)/W); 1 where nothing moves."""
    count = chains.shape[1]
    inner, between = chains.var(1, ddof=1).mean(0), chains.mean(1).var(0, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(inner > 0, np.sqrt((count - 1) / count + between / inner), np.where(between > 0, np.inf, 1.0))


def effective_size(draws: np.ndarray) -> np.ndarray:
    """n/(1 + 2Σρ) of every coordinate of one chain (draw, ...), by Geyer's initial positive sequence of pairs."""
    count = len(draws)
    centred = draws - draws.mean(0)
    spectrum = np.abs(np.fft.rfft(centred, 2 * count, axis=0)) ** 2
    covariance = np.fft.irfft(spectrum, axis=0)[:count]
    with np.errstate(divide="ignore", invalid="ignore"):
        rho = covariance / covariance[0]
    pairs = rho[0 : count - 1 : 2] + rho[1:count:2]
    positive = np.cumprod(pairs > 0, 0)
    return count / np.maximum(2 * (pairs * positive).sum(0) - 1, 1 / count)
