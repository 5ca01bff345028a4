"""How long to warm up, and to settle, where a budget and a prior alone are given: defaults that a person chose."""

from __future__ import annotations

from typing import Any

from learned_samplers.base import validation
from learned_samplers.classical.mass import MASSES

#: The smallest budget: a mass of fewer than ten gradients says nothing, and is frozen for good.
LEAST_BUDGET, LEAST_WARMUP = 13, 10
#: Share of the warm-up in which the chain settles, by its mass: a diagonal one that was measured at a mode is too bold.
SETTLING_SHARE = {"diagonal": 0.25, "matrix": 0.1}


def warmup_of(run: int, num_data: float | None) -> int:
    """W of a budget, or of a cycle: most of it where data are seen a few times, half of it where they are seen often.

    A run of few epochs predicts by how well it fits, one of many by how many different samples it averages.

    Args:
        num_data: None where it is not known yet.
    """
    if num_data is not None:
        validation.number_of_data(num_data)
    seen = float("inf") if num_data is None else float(num_data) / 8
    return int(min(0.8 * run, max(0.5 * run, seen, LEAST_WARMUP)))


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
