"""The plan of an `AdaptedSGHMC`'s run, where a budget and a prior alone are given: chosen by a person."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from learned_samplers.base import validation
from learned_samplers.base.guards.side_by_side import is_stacked, of_one_network
from learned_samplers.base.prior import groups_of
from learned_samplers.classical.mass import MASSES

#: The smallest budget: a mass of fewer than ten gradients says nothing, and is frozen for good.
LEAST_BUDGET, LEAST_WARMUP = 13, 10
#: Share of the warm-up in which the chain settles, by its mass: a diagonal one that was measured at a mode is too bold.
SETTLING_SHARE = {"diagonal": 0.25, "matrix": 0.1}
#: lr·N/T at which minibatches heat a chain by a tenth of T, and the largest learning rate.
HEATING, LARGEST_RATE = 10.0, 0.1


def warmup_of(run: int, num_data: float) -> int:
    """W of a budget, or of a cycle: most of it where data are seen a few times, half of it where they are seen often.

    A run of few epochs predicts by how well it fits, one of many by how many different samples it averages. How large
    minibatches are is not known here; N/8 steps are eight epochs of 64.
    """
    validation.number_of_data(num_data)
    return int(min(0.8 * run, max(0.5 * run, float(num_data) / 8, LEAST_WARMUP)))


def rate_of(run: int | None, num_data: float, temperature: float, *, shallow: bool) -> float:
    """Learning rate of the chain for a budget of ``run`` steps, or a cycle of them; None is an unknown one.

    Minibatches heat a chain in proportion to its rate: by some 0.01·lr·N on small networks. A short run gains by moving
    far, and one at T = 1 by mixing; a cold one that sees the data four times and more shows the heat as doubt that is
    not there (N/16 steps are four epochs of 64). Where data are few, the rate of a ``shallow`` network, of one hidden
    layer, is the one that heats by a tenth of T where minibatches of 32 or more have a loss of order one: on tables of
    100 to 1,200 rows that comes twice as near to HMC as 0.003. Smaller minibatches, and regressions with little noise,
    heat more; `PosteriorSamples.verdict` says so. A run of less than 300 steps measures too rough a mass for the
    largest rates, and under a wide prior deeper MLPs diverge at them.
    """
    validation.number_of_data(num_data)
    temperature = validation.number("temperature", temperature)
    if run is None:
        return 0.003
    usual = 0.002 if temperature < 1 and run > float(num_data) / 16 else 0.003
    return max(usual, min(LARGEST_RATE, run / 3000, HEATING * temperature / float(num_data))) if shallow else usual


def is_shallow(params: Any) -> bool:
    """Return whether an optimizer's first argument trains the one or two matrices of a network of one hidden layer."""
    listed = [entry for group in groups_of(params) for entry in validation.listed_parameters(group)]
    tensors = [entry[1] if isinstance(entry, tuple) else entry for entry in listed]
    trained = [p for p in tensors if isinstance(p, Tensor) and p.requires_grad]
    return round(of_one_network([p for p in trained if p.dim() - is_stacked(p) > 1])) in (1, 2)


def thinning_of(total_steps: int, warmup_steps: int, cycle_length: int | None, num_samples: int) -> int:
    """Return the most steps between samples with which the steps after each warm-up give ``num_samples`` or more."""
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


def planned(settings: dict[str, Any], params: Any, *, explores: bool) -> dict[str, Any]:
    """Return ``warmup_steps``, ``lr``, ``mass`` and ``settling_share``, with defaults for those that are None.

    Args:
        settings: those of the sampler; ``total_steps`` is the budget, or None.
        params: the optimizer's first argument, whose groups may have settings of their own.
        explores: whether another optimizer warms up.
    """
    cycle, steps, num_data = settings["cycle_length"], settings["warmup_steps"], settings["num_data"]
    total_steps = settings["total_steps"]
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
        run = None if total_steps is None else run
        temperatures = [group.get("temperature", settings["temperature"]) for group in groups_of(params)]
        coldest = min(validation.number("temperature", temperature) for temperature in temperatures)
        lr = rate_of(run, num_data, coldest, shallow=is_shallow(params))
    if mass is None:
        mass = "matrix" if explores else "diagonal"
    plan = {"warmup_steps": steps, "lr": lr, "mass": mass}
    if share is None:
        groups = [group for group in params if isinstance(group, dict)]
        chains = [{**settings, **plan, **group, "mass": mass} for group in groups] or [{**settings, **plan}]
        share = max(map(settling_of, chains)) if explores else 0.0
    return {**plan, "settling_share": share}
