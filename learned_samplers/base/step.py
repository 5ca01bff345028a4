"""The inputs of a step: the loss and, for each parameter group, its parameters, gradients and what else it needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base.operations import is_finite

# Parameters are updated in blocks of about this many coordinates, so that a block's noise is still in the processor's
# cache when it is added and never takes as much memory as the parameters do.
BLOCK_ON_CPU = 1 << 18
BLOCK_ON_GPU = 1 << 26


@dataclass
class GroupInputs:
    """What one parameter group needs for a step."""

    #: The parameters that are sampled; those with ``requires_grad=False`` are left out.
    params: list[Tensor]
    #: Their gradients of the mean loss.
    gradients: list[Tensor]
    #: Further inputs of the rule by keyword, one tensor a parameter (pSGLD's curvature).
    per_parameter: dict[str, list[Tensor]] = field(default_factory=dict)
    #: Whatever else a sampler's `evaluate` worked out for its `advance`.
    prepared: Any = None


@dataclass
class Evaluation:
    """What `Sampler.evaluate` returns: all that a step needs, checked before any parameter moves."""

    #: What the closure returned, or None without one.
    loss: Any
    #: One entry a parameter group.
    groups: list[GroupInputs]


def all_finite(tensors: list[Tensor]) -> bool:
    """Whether the norm of every tensor is finite: False for any NaN or infinity, and if a norm overflows."""
    if not tensors:
        return True
    by_kind: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for norm in torch._foreach_norm(tensors):
        by_kind.setdefault((norm.device, norm.dtype), []).append(norm)
    return all(is_finite(torch.stack(same)) for same in by_kind.values())


def blocks(params: list[Tensor], limit: int | None = None) -> Iterator[slice]:
    """Consecutive runs of parameters of about one block's size each: one parameter, or up to ``limit`` coordinates."""
    start = size = 0
    for i, p in enumerate(params):
        most = limit or (BLOCK_ON_CPU if p.device.type == "cpu" else BLOCK_ON_GPU)
        if size and size + p.numel() > most:
            yield slice(start, i)
            start, size = i, 0
        size += p.numel()
    if start < len(params):
        yield slice(start, len(params))


def chains_of(loss: Tensor, params: list[Tensor]) -> int:
    """Number of chains that a closure's losses (M,) and the parameters' leading axes have; 0 for a scalar loss."""
    if loss.dim() == 0:
        return 0
    if loss.dim() == 1 and all(p.dim() and p.shape[0] == loss.shape[0] for p in params):
        return loss.shape[0]
    shapes = sorted({tuple(p.shape) for p in params})
    raise ValueError(
        f"closure returned losses of shape {tuple(loss.shape)}; expected () or the leading axis of the parameters, "
        f"whose shapes are {shapes}"
    )
