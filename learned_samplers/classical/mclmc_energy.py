"""Energy errors of microcanonical Langevin dynamics: their running moments, and step-size control by them.

Everything is kept in one dict of plain numbers and lists, the first parameter group's ``tally``, so that it is saved
and resumed with the chain.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from learned_samplers.classical.full_data import MEMORY, unexplained

#: Rate of the running moments of |ΔE| once 1/RATE steps are over.
RATE = 0.01
#: Steps whose |ΔE| exceeds this quantile of the steps before are undone.
QUANTILE = 0.98
#: That quantile of |x| for a standard normal x.
_NORMAL_QUANTILE = 2.3263
#: Steps without an opinion about the tail.
_WARM_UP = 10

Tally = dict[str, Any]


def new_tally() -> Tally:
    """An empty record; ``ahead`` is U/T and kinetic growth of a step that is half done, a number a chain each."""
    return {
        "ahead": [],
        "error": [],
        "squares": [],
        "size": 1,
        "count": 0,
        "undone": 0.0,
        "mean": 0.0,
        "square": 0.0,
        "lr_factor": 1.0,
    }


def record(tally: Tally, errors: Tensor, size: int) -> Tally:
    """A tally with one more step's ΔE, one a chain (or one of no axis)."""
    errors = errors.reshape(-1).cpu()
    squares = errors.square()
    if len(tally["squares"]) == len(errors):
        squares = squares + torch.tensor(tally["squares"], dtype=torch.float64)
    fresh = len(tally["squares"]) != len(errors)
    count = 1 if fresh else tally["count"] + 1
    return tally | {"error": errors.tolist(), "squares": squares.tolist(), "size": size, "count": count}


def complete(tally: Tally, potential: Tensor, growth: tuple[Tensor, Tensor], size: int) -> Tally:
    """The tally after the first half turn of a step, which completes the step before, whose energy error is then known.

    Args:
        potential: U/T where the chain is, one a chain.
        growth: kinetic growth of this step's first half turn, and of its second, which belongs to the step to come.
    """
    if tally["ahead"] and len(tally["ahead"][0]) == potential.numel():
        old, pending = (torch.tensor(x, dtype=torch.float64) for x in tally["ahead"])
        change, gain = potential.reshape(-1).cpu() - old, pending + growth[0].reshape(-1).cpu()
        tally = _explain(record(tally, change + gain, size), change, gain, potential.reshape(-1).cpu())
    return tally | {"ahead": [x.reshape(-1).cpu().tolist() for x in (potential, growth[1])]}


def _explain(tally: Tally, change: Tensor, gain: Tensor, potential: Tensor) -> Tally:
    """The tally with its ``unexplained``, the running mean of that share, and ``compared`` steps."""
    share = unexplained(change, gain, potential).mean().item()
    count, before = tally.get("compared", 0) + 1, tally.get("unexplained", 0.0)
    return tally | {"compared": count, "unexplained": before + (share - before) / min(count, MEMORY)}


def is_random(tally: Tally, limit: float) -> bool:
    """Whether the energies at both ends of the steps do not belong to one function of the weights."""
    return tally.get("compared", 0) >= MEMORY and tally["unexplained"] > limit


def tail(tally: Tally) -> float:
    """Quantile of |ΔE| at the present step size, by a Gamma law with the running moments; infinite while unknown."""
    spread = tally["square"] - tally["mean"] ** 2
    if tally["count"] < _WARM_UP or spread <= 0:
        return math.inf
    from scipy.stats import gamma  # slow to import

    quantile = gamma.ppf(QUANTILE, tally["mean"] ** 2 / spread, scale=spread / tally["mean"])
    return float(quantile) * tally["lr_factor"] ** 1.5


def control(
    tally: Tally, change: Tensor, gain: Tensor, potential: Tensor, size: int, target: float
) -> tuple[Tally, Tensor]:
    """Decide about a step: the new tally, with its factor on lr, and which chains undo the step.

    ``potential`` is U/T at the step's end, ``change`` what it has grown by, ``gain`` the growth of the kinetic energy.

    ΔE grows as lr^(3/2); the running moments are those of |ΔE| divided by that, so that they outlive a change of lr.
    The factor moves towards that at which the tail of |ΔE| is the one of a normal law of variance ``target`` · d.
    """
    errors = change + gain
    undone = ~errors.isfinite() | (errors.abs() > tail(tally))
    tally = _explain(tally, change, gain, potential)
    tally = record(tally, torch.where(errors.isfinite(), errors, 0.0), size)
    tally["undone"] += undone.double().mean().item()
    sane = errors[errors.isfinite()].abs() / tally["lr_factor"] ** 1.5
    if not sane.numel():  # all chains left the numbers: a smaller step is all that is known to help
        return tally | {"lr_factor": 0.5 * tally["lr_factor"]}, undone
    rate = max(RATE, 1 / tally["count"])
    for name, value in (("mean", sane.mean().item()), ("square", sane.square().mean().item())):
        tally[name] += rate * (value - tally[name])
    limit = tail(tally)
    if math.isinf(limit):
        limit = _NORMAL_QUANTILE * math.sqrt(tally["square"]) * tally["lr_factor"] ** 1.5
    ratio = _NORMAL_QUANTILE * math.sqrt(target * size) / max(limit, 1e-30)
    tally["lr_factor"] *= min(2.0, max(0.5, ratio ** (2 / 3))) ** min(1.0, 10 * rate)
    return tally, undone
