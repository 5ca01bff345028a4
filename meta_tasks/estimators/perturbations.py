"""Perturbations of the meta-parameters, each made from its name wherever it is needed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from meta_tasks.random_streams import generator

__all__ = ["antithetic_members", "perturbation"]


def perturbation(seed: int, pair: tuple[int, int], sigma: float, size: int, learned: int | None = None) -> Tensor:
    """η ~ N(0, σ²I) of a pair, (size,); zero but for its last ``learned`` components if that is a number."""
    held = 0 if learned is None else size - learned
    drawn = sigma * torch.randn(size - held, generator=generator(seed, *pair, "perturbation"))
    return torch.nn.functional.pad(drawn, (held, 0))


def antithetic_members(
    weights: Tensor, seed: int, pairs: Sequence[tuple[int, int]], sigma: float, learned: int | None = None
) -> Tensor:
    """φ + η and φ − η of each pair in turn, (2·pairs, n)."""
    steps = [perturbation(seed, pair, sigma, len(weights), learned) for pair in pairs]
    return torch.stack([member for step in steps for member in (weights + step, weights - step)])
