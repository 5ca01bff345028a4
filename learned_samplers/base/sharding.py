"""Tensors that are sharded over the processes of a device mesh: which they are, how they lie, and what is exchanged."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def is_sharded(x: Any) -> bool:
    """Return whether a tensor is a `DTensor` (without importing what defines it)."""
    return type(x).__name__ == "DTensor"


def local(x: Tensor) -> Tensor:
    """This process's part of a DTensor, sharing its memory; any other tensor as it is."""
    with torch.no_grad():
        return x.to_local() if is_sharded(x) else x  # type: ignore[attr-defined]


def gathered(x: Tensor) -> Tensor:
    """All of a DTensor, gathered in every process; any other tensor as it is."""
    return x.full_tensor() if is_sharded(x) else x  # type: ignore[attr-defined]


def placed_like(x: Tensor, p: Tensor) -> Tensor:
    """A full tensor, the same in all processes, laid out as the parameter ``p`` of its shape."""
    if not is_sharded(p) or is_sharded(x):
        return x
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(x, p.device_mesh, p.placements)  # type: ignore[attr-defined]


def same_layout(x: Tensor, p: Tensor) -> bool:
    """Return whether a state tensor is laid out as its parameter's would be."""
    if not is_sharded(p):
        return not is_sharded(x)
    return is_sharded(x) and (x.device_mesh, x.placements) == (p.device_mesh, placements(p, x.dim()))  # type: ignore


def placements(p: Any, dims: int) -> tuple[Any, ...]:
    """The layout of a state of ``dims`` axes whose last ones are those of ``p``."""
    lead = dims - p.dim()
    if not lead:
        return tuple(p.placements)
    from torch.distributed.tensor import Shard

    return tuple(Shard(placement.dim + lead) if placement.is_shard() else placement for placement in p.placements)


def summed(x: Tensor, p: Any) -> Tensor:
    """The sum of each process's ``x`` over the parts of ``p``, in place."""
    for axis, placement in enumerate(p.placements):
        if not placement.is_replicate():
            dist.all_reduce(x, group=p.device_mesh.get_group(axis))
    return x


def all_finite(x: Tensor) -> bool:
    """Return whether a tensor is finite, in all processes."""
    return not anywhere(not local(x).isfinite().all(), x.device_mesh if is_sharded(x) else None)  # type: ignore


def anywhere(value: Any, mesh: Any) -> bool:
    """Return whether ``value`` is true in at least one process of the mesh."""
    if mesh is None:
        return bool(value)
    flag = torch.tensor(float(bool(value)), device=mesh.device_type)
    for axis in range(mesh.ndim):
        dist.all_reduce(flag, dist.ReduceOp.MAX, group=mesh.get_group(axis))
    return bool(flag)


def total(x: Tensor) -> float:
    """The sum of a tensor's elements over all processes."""
    total = local(x).sum()
    return (summed(total, x) if is_sharded(x) else total).item()
