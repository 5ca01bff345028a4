"""Has it settled? R̂, effective samples and temperature of chains side by side, and one line that says what to do."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from learned_samplers.posterior.settling import effective_size, rhat


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
        found = float(np.nanmedian(np.sum([effective_size(chain) for chain in predictions], 0)))
        effective = min(found, float(chains * draws))  # of a few draws the estimate may be anything
    reasons = []
    if draws < 4:
        reasons.append(f"{draws} samples of a chain are too few to judge it: raise n_samples")
    elif not within <= 1.2:
        reasons.append("chains still drift: raise n_steps")
    if draws >= 4 and not abs(temperature - 1) <= 0.1:
        reasons.append(f"temperature {temperature:.2f} is not 1: raise n_steps, or prior_precision")
    if draws >= 4 and not effective >= 10 * chains:
        reasons.append(f"few effective samples: raise {'n_steps' if draws >= 20 else 'n_samples and n_steps'}")
    settled = "not settled" if reasons else "settled" if across <= 1.2 else "settled, in modes that differ"
    text = (
        f"{settled}: R-hat {within:.2f} within chains and {across:.2f} across them, "
        f"{effective:.0f} effective of {chains * draws} samples, temperature {temperature:.2f}"
    )
    return Verdict(
        not reasons, within, across, effective, chains * draws, temperature, "; ".join([text, *dict.fromkeys(reasons)])
    )
