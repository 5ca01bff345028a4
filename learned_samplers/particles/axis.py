"""The leading axis of particles, which every parameter of a particle sampler has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base import validation


def validate_parameters(named: Iterable[tuple[str, Any]], first: Tensor | None) -> None:
    """Raise unless new parameters have the particle axis, dtype and device of ``first``, one that is there already."""
    seen: set[Tensor] = set()
    for name, p in named:
        validation.parameter(f"parameter {name!r}", p)
        if p in seen:
            raise ValueError(f"parameter {name!r} is listed twice in a parameter group")
        seen.add(p)
        if not p.is_floating_point():  # frozen
            continue
        if p.dtype in (torch.float16, torch.bfloat16):
            raise TypeError(
                f"parameter {name!r} is {p.dtype}, which rounds the particles' steps away: keep them in float32, and "
                "compute the losses inside torch.autocast"
            )
        validate_axis(f"parameter {name!r}", p, None if first is None else len(first))
        first = p if first is None else first
        if (p.dtype, p.device) != (first.dtype, first.device):
            raise ValueError(
                f"parameter {name!r} is {p.dtype} on {p.device}, others are {first.dtype} on {first.device}"
            )


def validate_axis(name: str, p: Tensor, particles: int | None) -> None:
    """Raise ValueError unless a tensor has the particles as its leading axis, as many as others have (None: any)."""
    if p.dim() < 1 or len(p) == 0:
        raise ValueError(f"{name} needs a leading particle axis, got shape {tuple(p.shape)}")
    if particles is not None and len(p) != particles:
        raise ValueError(
            f"{name} has {len(p)} particles (shape {tuple(p.shape)}), others have {particles}: every tensor's leading "
            "axis must be the particles"
        )
