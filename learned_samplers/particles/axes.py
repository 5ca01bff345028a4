"""Validation of the particle axis, the leading axis of every parameter of a particle sampler."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from learned_samplers.base import validation


def validate_axes(listed: list[Any], first: Tensor | None) -> None:
    """Raise unless new parameters have the particle axis, dtype and device of ``first``, one that is there already."""
    seen: set[Tensor] = set()
    for i, entry in enumerate(listed):
        name, p = entry if isinstance(entry, tuple) else (f"params[{i}]", entry)
        validation.parameter(f"parameter {name!r}", p)
        if p in seen:
            raise ValueError(f"parameter {name!r} is listed twice in a parameter group")
        seen.add(p)
        if p.dtype in (torch.float16, torch.bfloat16):
            raise TypeError(
                f"parameter {name!r} is {p.dtype}, which rounds the particles' steps away: keep them in float32, and "
                "compute the losses inside torch.autocast"
            )
        if p.dim() < 1 or p.shape[0] == 0:
            raise ValueError(f"parameter {name!r} needs a leading particle axis, got shape {tuple(p.shape)}")
        first = p if first is None else first
        if p.shape[0] != first.shape[0]:
            raise ValueError(
                f"parameter {name!r} has {p.shape[0]} particles (shape {tuple(p.shape)}), others have "
                f"{first.shape[0]}: every parameter's leading axis must be the particles"
            )
        if (p.dtype, p.device) != (first.dtype, first.device):
            raise ValueError(
                f"parameter {name!r} is {p.dtype} on {p.device}, others are {first.dtype} on {first.device}"
            )
