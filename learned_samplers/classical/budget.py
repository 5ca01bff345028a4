"""How long to warm up and to settle, and at which rate, where a budget and a prior alone are given: chosen defaults."""

from __future__ import annotations

from typing import Any

from learned_samplers.base import validation
from learned_samplers.classical.mass import MASSES

#: The smallest budget: a mass of fewer than ten gradients says nothing, and is frozen for good.
LEAST_BUDGET, LEAST_WARMUP = 13, 10
#: Share of the warm-up in which the chain settles, by its mass: a diagonal one that was measured at a mode is too bold.
SETTLING_SHARE = {"diagonal": 0.25, "matrix": 0.1}


def warmup_of(run: int, num_data: float) -> int:
    """W of a budget, or of a cycle: most of it where data are seen a few times, half of it where they are seen often.

    A run of few epochs predicts by how well it fits, one of many by how many different samples it averages. How large
    minibatches are is not known here; N/8 steps are eight epochs of 64.
    """
    validation.number_of_data(num_data)
    return int(min(0.8 * run, max(0.5 * run, float(num_data) / 8, LEAST_WARMUP)))


def rate_of(run: int | None, num_data: float | None, temperature: float) -> float:
    """The chain's lr for a budget, or for a cycle; None is an unknown one.

    Minibatches heat a chain in proportion to its rate. A short run gains by moving far, and one at T = 1 by mixing; a
    cold one that sees the data four times and more shows the heat as doubt that is not there (N/16 steps are four
    epochs of 64).
    """
    if run is None:
        return 0.003
    validation.number_of_data(num_data)
    cold = validation.number("temperature", temperature) < 1
    return 0.002 if cold and run > float(num_data) / 16 else 0.003  # type: ignore[arg-type]  # None is refused


def thinning_of(phases: list[int], num_samples: int) -> int:
    """The largest number of steps between samples of which phases of so many steps give at least ``num_samples``."""
    thinning = max(1, sum(phases) // num_samples)
    while sum(steps // thinning for steps in phases) < num_samples:
        thinning -= 1
    return thinning


def settling_of(given: dict[str, Any]) -> float:
    """S of a chain's settings: twice the steps that a weight without gradients takes to the prior's width."""
    lr, temperature, prior = (validation.number(name, given[name]) for name in ("lr", "temperature", "prior_precision"))
    validation.one_of("mass", given["mass"], MASSES)
    validation.integer("warmup_steps", given["warmup_steps"])
    validation.positive("lr", lr)
    validation.non_negative("temperature", temperature)
    validation.non_negative("prior_precision", prior)
    steps = 2 * (temperature / prior) ** 0.5 / lr if prior else 0.0
    return max(SETTLING_SHARE[given["mass"]], min(0.5, steps / given["warmup_steps"]))
