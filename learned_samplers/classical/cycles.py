"""Cycles of a chain: where in its cycle a step lies, and the cyclical schedule as a function of the step."""

from __future__ import annotations

import math
from typing import Any

import torch

from learned_samplers.base import validation


def position_in_cycle(step: Any, cycle_length: int | None) -> Any:
    """Steps done since the chain, or its cycle, began, before its next step; ``step`` are done in all."""
    return step % cycle_length if cycle_length else step


def done_in_cycle(step: int, cycle_length: int | None) -> int:
    """Steps done in the cycle that the last of ``step`` steps belonged to."""
    return (step - 1) % cycle_length + 1 if cycle_length and step else step


def cycle_of(step: int, cycle_length: int | None) -> int:
    """Index, from 0, of the cycle that the last of ``step`` steps belonged to."""
    return max(step - 1, 0) // cycle_length if cycle_length else 0


def cyclical_phase(step: Any, cycle_length: int, exploration_ratio: float) -> tuple[Any, Any]:
    """Factor on the peak learning rate, and whether to sample, in step k = 1, 2, … of the chain.

    lr_k/lr₀ = ½(cos(π·mod(k−1, K)/K) + 1); a cycle's first ``exploration_ratio`` runs without noise. The step is an
    integer, or a tensor (then so are the answers).
    """
    share = ((step - 1) % cycle_length) / cycle_length
    cosine = torch.cos(math.pi * share) if isinstance(share, torch.Tensor) else math.cos(math.pi * share)
    return 0.5 * (cosine + 1), share >= exploration_ratio


def in_sampling_phase(step: int, cycle_length: int, exploration_ratio: float) -> bool:
    """Tell whether the last of ``step`` steps was one of a sampling phase."""
    return step > 0 and cyclical_phase(step, cycle_length, exploration_ratio)[1]


def validate_schedule(cycle_length: Any, exploration_ratio: Any) -> None:
    """Raise ValueError or TypeError unless a schedule of these has a step that samples."""
    validation.integer("cycle_length", cycle_length)
    validation.fraction("exploration_ratio", exploration_ratio, open_right=True)
    if not cyclical_phase(cycle_length, cycle_length, exploration_ratio)[1]:
        raise ValueError(
            f"exploration_ratio {exploration_ratio} leaves no sampling step in a cycle_length of {cycle_length}"
        )
