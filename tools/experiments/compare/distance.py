"""How many gradients does a sampler take to HMC's predictions? Protocol:

*Posteriors*: ``distance_digits`` (808 training images, an MLP with 50 hidden units, T = 1, prior N(0, 1/3), minibatches
of 64) and ``distance_fashion`` (2,000 images of Fashion-MNIST at 14×14, two convolutions of 8 channels, T = 1, prior
N(0, 1/20), minibatches of 64).

*The truth*: the average over four chains of HMC, from weights of their own, each of 100 evenly spaced states after the
first fifth, in which its step size adapts. *Distance*: total variation between predictive distributions, the mean over
test images. *The target*: 1.1 times the distance of a chain of HMC from the other three.

*Methods* each have three learning rates and two shares of burn-in, a quarter and a half of the gradients; at each
budget the pair with the smallest mean distance over three seeds is shown: what a sampler can reach, not what a user
finds without HMC. Predictions are averaged over 150 states after burn-in. *The number*: gradients to the target,
by a line between the logarithms of the two budgets around it. The goal is half of what the better of `SGHMC` and `BAOA`
takes.

The tables of the reports were made with commit 3bd4aa08, which averages every fifth state of one long run for all
budgets, and has a regression, too. To be deleted when a faster reference makes it pointless.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

from experiments.harness.runs.methods import Row
from experiments.harness.runs.settings import Settings

_POSTERIOR: dict[str, Any] = dict(temperature=1.0, num_samples=150, burn_in=0.25)
DIGITS = Settings(model="mlp", hidden=(50,), prior_precision=3.0, leapfrog_steps=30, **_POSTERIOR)
_IMAGES: dict[str, Any] = dict(dataset="fashion_mnist", size=14, limit=2000, model="cnn", channels=8, depth=2)
FASHION = Settings(prior_precision=20.0, leapfrog_steps=15, **_IMAGES, **_POSTERIOR)
BUDGETS = (300, 1000, 3000, 10_000, 30_000)


def rows(hmc_rate: float, hmc_gradients: int) -> dict[str, Row]:
    """Rows of a posterior, HMC first: its chains have so many minibatch gradients whatever the budget."""
    hmc = {"steps": hmc_gradients, "num_samples": 100, "burn_in": 0.2}
    return {
        "HMC": Row("HMC", hmc_rate, changes=hmc, seeds=4),
        "SGHMC": Row("SGHMC"),
        "BAOA": Row("BAOA"),
        "AdaptedSGHMC(warmup=L2E)": Row("AdaptedL2E"),
        "AdaptedSGHMC(total_steps=, warmup=L2E), as it comes": Row("AdaptedL2EAsItComes"),
        "AdaptedSGHMC": Row("AdaptedWhitenedSGHMC"),
    }


# 1,200 trajectories of 31 gradients of all 808 images, which count as 12 each; 600 of 16, which count as 31.
DIGITS_ROWS, FASHION_ROWS = rows(0.03, 1200 * 31 * 12), rows(0.03, 600 * 16 * 31)
#: Rates and burn-in alone are tuned, by the distance from HMC.
OPTIONS: dict[str, Any] = dict(
    tune_by="distance",
    values=("temperature=1", "burn_in=0.25,0.5", "momentum_decay=0.1", "weight_decay=0", "final_lr=1"),
    **dict(tries=6, grid=3, extensions=0, keep=2, seeds=3),
)


def gradients_to(target: float, curve: Mapping[int, float]) -> float | None:
    """Gradients at which a curve, budget → distance, is first at the target; None if it never is.

    Between two budgets the logarithm of the distance is linear in that of the gradients; a curve that begins below the
    target is there at its first budget.
    """
    before: tuple[int, float] | None = None
    for budget, distance in sorted(curve.items()):
        if distance <= target:
            if before is None:
                return float(budget)
            share = math.log(before[1] / target) / math.log(before[1] / distance)
            return before[0] * (budget / before[0]) ** share
        before = budget, distance
    return None


def criterion(by_budget: Mapping[int, Mapping[str, Mapping[str, float]]]) -> str:
    """Gradients of each row to the target."""
    hmc = [means["HMC"]["total_variation"] for means in by_budget.values() if "HMC" in means]
    if not hmc:
        return ""
    target, lines = 1.1 * statistics.fmean(hmc), []
    names = dict.fromkeys(name for means in by_budget.values() for name in means if name != "HMC")
    for name in names:
        curve = {b: means[name]["total_variation"] for b, means in by_budget.items() if name in means}
        gradients = gradients_to(target, curve)
        lines.append(f"- {name}: {'not reached' if gradients is None else f'{gradients:,.0f} gradients'}")
    return "\n".join([f"Gradients to the target, a distance of {target:.4f} from HMC:", *lines])
