"""How long to warm up and to settle, and at which rate, where a budget and a prior alone are given: chosen defaults;
and where in that plan a chain is."""

from __future__ import annotations

from typing import Any

from learned_samplers.base import validation
from learned_samplers.classical.cycles import done_in_cycle, position_in_cycle
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


def thinning_of(total_steps: int, warmup_steps: int, cycle_length: int | None, num_samples: int) -> int:
    """The largest number of steps between samples of which those after each warm-up give at least ``num_samples``."""
    length = cycle_length or total_steps
    cycles, remainder = divmod(total_steps, length)
    phases = [length - warmup_steps] * cycles + [max(0, remainder - warmup_steps)]
    if sum(phases) < num_samples:
        raise ValueError(f"num_samples={num_samples} exceeds the {sum(phases)} steps in which it samples")
    thinning = max(1, sum(phases) // num_samples)
    while sum(steps // thinning for steps in phases) < num_samples:
        thinning -= 1
    return thinning


def settling_of(settings: dict[str, Any]) -> float:
    """S of a chain's settings: twice the steps that a weight without gradients takes to the prior's width."""
    lr, temperature, prior = (
        validation.number(name, settings[name]) for name in ("lr", "temperature", "prior_precision")
    )
    validation.one_of("mass", settings["mass"], MASSES)
    validation.integer("warmup_steps", settings["warmup_steps"])
    validation.positive("lr", lr)
    validation.non_negative("temperature", temperature)
    validation.non_negative("prior_precision", prior)
    steps = 2 * (temperature / prior) ** 0.5 / lr if prior else 0.0
    return max(SETTLING_SHARE[settings["mass"]], min(0.5, steps / settings["warmup_steps"]))


def planned(
    settings: dict[str, Any], total_steps: int | None, groups: list[dict[str, Any]], *, explores: bool
) -> dict[str, Any]:
    """What ``warmup_steps``, ``lr``, ``mass`` and ``settling_share`` are, those that are None by the budget.

    Args:
        settings: those of the sampler.
        total_steps: the budget, or None.
        groups: parameter groups with settings of their own.
        explores: whether another optimizer warms up.
    """
    cycle, steps, num_data = settings["cycle_length"], settings["warmup_steps"], settings["num_data"]
    name, run = ("total_steps", total_steps) if cycle is None else ("cycle_length", cycle)
    if total_steps is not None:
        validation.integer("total_steps", total_steps)
    if steps is None:
        if run is None:
            raise ValueError("warmup_steps or total_steps must be given, got neither")
        validation.integer(name, run, least=LEAST_BUDGET)
        steps = warmup_of(run, num_data)
    elif total_steps is not None:
        validation.integer("warmup_steps", steps)
        validation.integer(name, run)
    if total_steps is not None and steps >= total_steps:
        of = "" if cycle is None else f" of a cycle_length of {cycle}"
        raise ValueError(f"total_steps must be more than warmup_steps={steps}{of}, got {total_steps}")
    lr, mass, share = (settings[key] for key in ("lr", "mass", "settling_share"))
    if lr is None:
        lr = rate_of(None if total_steps is None else run, num_data, settings["temperature"])
    if mass is None:
        mass = "matrix" if explores else "diagonal"
    plan = {"warmup_steps": steps, "lr": lr, "mass": mass}
    if share is None:
        chains = [{**settings, **plan, **group, "mass": mass} for group in groups] or [{**settings, **plan}]
        share = max(map(settling_of, chains)) if explores else 0.0
    return {**plan, "settling_share": share}


# ------------------------------------------------------------------- where in its warm-up, or cycle, a group is


def position(group: dict[str, Any]) -> Any:
    """Steps done since the chain, or its cycle, began."""
    return position_in_cycle(group["step"], group.get("cycle_length"))


def done(group: dict[str, Any]) -> int:
    """Steps taken in the cycle that the last step belonged to."""
    return done_in_cycle(group["step"], group.get("cycle_length"))


def exploration(group: dict[str, Any]) -> int:
    """The first of the ``warmup_steps``, in which the warm-up's own optimizer moves."""
    steps = group["warmup_steps"]
    return max(min(steps, 1), steps - int(group["settling_share"] * steps))
