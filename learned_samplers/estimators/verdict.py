"""Verdict on chains side by side, by what they predict: one line that says whether to trust it, and what to do."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from learned_samplers.posterior.settling import effective_size
from learned_samplers.posterior.verdict import Numbers

#: Largest error of a prediction, in its spreads. It costs ½·0.25² = 0.03 nats a row.
ERROR = 0.25
#: Largest change of the log-density between the halves of the draws, in nats a row.
DRIFT = 0.05
#: Temperatures of chains that have been at their posterior.
TEMPERATURES = (0.9, 1.1)
#: Below and above these temperatures chains are far from it: they have hardly left where they began, or run too hot.
COLD, HOT = 0.75, 1.25


class Verdict(NamedTuple):
    """Numbers about the chains, and two judgements.

    Attributes:
        settled: whether predictions can be expected to stay: ``error`` and ``drift`` are small, and the temperature is
            not far from 1.
        sampled: whether, beyond that, the weights have been sampled at the temperature that was asked for. Until then
            the predictions are averages over trajectories.
        error: standard error of the predictions, by the scatter of the chains, over the spread of what is predicted;
            the root of the mean square over rows. The predictions of another run differ by √2 times that.
        drift: log-density of the rows under the second half of the draws less that under the first, nats a row.
        within: R̂ between the halves of a chain, the 0.9 quantile over rows of the mean over chains: has each settled?
        across: split R̂ over the chains: do they agree? Networks that settle in different modes do not, and the average
            over them is the better for it.
        effective: effective samples of a prediction, all chains together; the median over rows.
        draws: samples of all chains.
        temperature: mean of θ·∇U over the number of weights; 1 at equilibrium, below it as long as chains still spread.
        advice: what to do, "" if nothing.
        text: one line of all of it.
    """

    settled: bool
    sampled: bool
    error: float
    drift: float
    within: float
    across: float
    effective: float
    draws: int
    temperature: float
    advice: str
    text: str


def verdict(predictions: np.ndarray, variances: np.ndarray, log_densities: np.ndarray, temperature: float) -> Verdict:
    """Judge the chains.

    Args:
        predictions: (chain, draw, row, output): means, or probabilities of the classes.
        variances: (row, output) of what is predicted: predictive variances, or the classes' probabilities.
        log_densities: (chain, draw, row), of the rows' targets.
        temperature: of the kept states.
    """
    chains, draws, rows, _ = predictions.shape
    error = drift = float("nan")
    numbers_of_chains = Numbers()
    if draws >= 4:
        half = draws // 2
        top = predictions.mean((0, 1)).argmax(-1)
        judged = np.take_along_axis(predictions, np.broadcast_to(top[:, None], (chains, draws, rows, 1)), 3)[..., 0]
        numbers_of_chains = Numbers.of(judged)
        error = float(np.sqrt((_squared_errors(predictions) / variances).sum(-1).mean()))
        first, second = (
            np.logaddexp.reduce(part.reshape(-1, rows), 0)
            for part in (log_densities[:, :half], log_densities[:, -half:])
        )
        drift = float((second - first).mean())
    within, across, effective = numbers_of_chains
    reasons = []
    if draws < 4:
        reasons.append("a chain has too few samples to judge it: raise n_samples")
    else:
        if not temperature <= HOT:
            reasons.append("chains are hotter than their posterior: raise tuning_steps, or prior_precision")
        if temperature < COLD:
            reasons.append("chains have hardly left where they began: raise n_steps")
        if not abs(drift) <= DRIFT:
            reasons.append("predictions still change: raise n_steps")
        if not error <= ERROR:
            reasons.append("chains differ in what they predict: raise n_chains, or n_steps")
    settled = not reasons
    low, high = TEMPERATURES
    sampled = settled and low <= temperature <= high and within <= 1.2 and effective >= 10 * chains
    if not settled:
        head = "not settled"
    elif not sampled:
        head = "predictions settled, weights not sampled yet (an average over trajectories; raise n_steps for more)"
    else:
        head = "settled, in modes that differ" if across > 1.2 else "settled"
    numbers = (
        f"another run would change predictions by {1.4 * error:.2f} of their spread, drift {drift:+.3f} nats, R-hat "
        f"{within:.2f} within chains and {across:.2f} across them, {effective:.0f} effective of {chains * draws} "
        f"samples, temperature {temperature:.2f}"
    )
    advice = "; ".join(dict.fromkeys(reasons))
    return Verdict(
        *(settled, sampled, error, drift, within, across, effective, chains * draws, temperature, advice),
        "; ".join(filter(None, (f"{head}: {numbers}", advice))),
    )


def _squared_errors(predictions: np.ndarray) -> np.ndarray:
    """Variance (row, output) of the mean over all draws: by the scatter of the chains, of one chain by its draws."""
    if len(predictions) > 1:
        return predictions.mean(1).var(0, ddof=1) / len(predictions)
    return predictions[0].var(0, ddof=1) / effective_size(predictions[0])
