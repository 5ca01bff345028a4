"""The update of microcanonical Langevin Monte Carlo, a pure function of all tensors of a chain at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

Tensors = Sequence[Tensor]


def inner_product(x: Tensors, y: Tensors, batch_axes: int) -> Tensor:
    """Σ x·y over a list of tensors and all but their leading ``batch_axes`` axes, in double precision."""
    products = (a.double() * b.double() for a, b in zip(x, y, strict=True))
    return torch.stack([p.reshape(*p.shape[:batch_axes], -1).sum(-1) for p in products]).sum(0)


def _wide(scalar: Tensor, like: Tensor) -> Tensor:
    """One number a chain, in the shape and dtype in which it multiplies a tensor of the chains."""
    return scalar.to(like.dtype).reshape(scalar.shape + (1,) * (like.dim() - scalar.dim()))


def _normalise(x: Tensors, batch_axes: int) -> list[Tensor]:
    norm = inner_product(x, x, batch_axes).sqrt()
    return [a / _wide(norm, a) for a in x]


def turn(direction: Tensors, force: Tensors, share: float, size: int, batch_axes: int) -> tuple[list[Tensor], Tensor]:
    """Turn the unit vector u towards the force f for a time τ: the exact flow of u' = (I − uuᵀ)f/(d−1).

    With e = f/‖f‖, δ = τ‖f‖/(d−1) and ζ = exp(−δ): u ← normalise[e·(1−ζ)·(1+ζ+(u·e)(1−ζ)) + 2ζu].

    Returns:
        The new direction, and (d−1)·log(cosh δ + (u·e)·sinh δ), by which the kinetic energy has grown in units of T.
    """
    norm = inner_product(force, force, batch_axes).sqrt()
    unit = [f / _wide(norm.clamp(min=1e-300), f) if f.dtype == torch.float64 else
            (f.double() / _wide(norm.clamp(min=1e-300), f.double())).to(f.dtype) for f in force]  # fmt: skip
    cosine = inner_product(direction, unit, batch_axes).clamp(-1, 1)
    delta = share * norm / (size - 1)
    zeta = (-delta).exp()
    along, across = (1 - zeta) * (1 + zeta + cosine * (1 - zeta)), 2 * zeta
    turned = [_wide(along, e) * e + _wide(across, u) * u for e, u in zip(unit, direction, strict=True)]
    growth = delta - math.log(2) + torch.log(1 + cosine + (1 - cosine) * zeta**2)
    return _normalise(turned, batch_axes), (size - 1) * growth
