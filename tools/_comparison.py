"""What the comparing tools share: where to compute, and choosing by validation scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import torch
from _runner import Result

Choice = TypeVar("Choice")


def prepare_torch(device: str, threads: int) -> str:
    """Set torch's number of threads; the device that ``auto`` means, others as they are."""
    torch.set_num_threads(threads)
    if device != "auto":
        return device
    return "cuda" if torch.cuda.is_available() else "cpu"


def validation_nll(runs: Sequence[Result]) -> float | None:
    """Mean validation NLL of some runs; None if one of them diverged."""
    values = [result.validation_nll for result in runs if result.validation_nll is not None]
    return sum(values) / len(values) if len(values) == len(runs) else None


def ranked(scores: Mapping[Choice, float | None]) -> list[Choice]:
    """The choices from the lowest score to the highest, without those that have none."""
    finished = {choice: score for choice, score in scores.items() if score is not None}
    return sorted(finished, key=finished.__getitem__)


def best(scores: Mapping[Choice, float | None]) -> Choice | None:
    """The choice with the lowest score; None if none has one."""
    order = ranked(scores)
    return order[0] if order else None


def text(nll: float | None) -> str:
    return "diverged" if nll is None else f"{nll:.4f}"
