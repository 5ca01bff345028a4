"""Energy errors of microcanonical Langevin dynamics, and whether they are those of one function of the weights.

Everything is kept in one dict of plain numbers and lists, the first parameter group's ``tally``, so that it is saved
and resumed with the chain.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from learned_samplers.classical.full_data import MEMORY, unexplained

Tally = dict[str, Any]


def new_tally() -> Tally:
    """An empty record; ``ahead`` is U/T and kinetic growth of a step that is half done, a number a chain each."""
    return {"ahead": [], "error": [], "squares": [], "size": 1, "count": 0}


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


def is_random(tally: Tally) -> bool:
    """Tell whether the energies at both ends of the steps do not belong to one function of the weights."""
    return tally.get("compared", 0) >= MEMORY and tally["unexplained"] > 0.5
