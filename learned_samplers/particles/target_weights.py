"""The argument ``target_weights``: its validation, and fixed weights as a tensor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base import validation


def check_weights(name: str, value: Any, choices: Iterable[str]) -> str | tuple[float, ...]:
    """Validate ``target_weights``: the name of a rule, or numbers on the simplex, returned as a tuple."""
    if isinstance(value, str):
        validation.one_of(name, value, choices)
        return value
    if not isinstance(value, Sequence | Tensor):
        raise TypeError(f"{name} must be a name or a sequence of numbers, got {value!r} of type {type(value).__name__}")
    numbers = tuple(validation.number(f"{name}[{i}]", w) for i, w in enumerate(value))
    if not numbers or min(numbers) < 0 or abs(sum(numbers) - 1) > 1e-6:
        raise ValueError(f"{name} must be non-negative numbers with sum 1, got {value}")
    return numbers


def fixed_weights(weights: tuple[float, ...], gradients: Tensor) -> Tensor:
    """The weights as a tensor (K,), for gradients (K, M, d)."""
    if len(weights) != len(gradients):
        raise ValueError(f"{len(weights)} weights were given for {len(gradients)} targets")
    return torch.tensor(weights, dtype=gradients.dtype, device=gradients.device)
