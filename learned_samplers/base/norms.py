"""Norms of many tensors at once, of whole ones also where processes hold parts of them."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from learned_samplers.base import sharding

# Tensors of this many coordinates are multiplied with themselves on a CPU, which is faster there than their norm.
_LARGE = 1 << 14
_PLAIN = {Tensor, torch.nn.Parameter}
_WIDE = ({torch.float32}, {torch.float64})
_on_cpu, _dtype = operator.attrgetter("is_cpu"), operator.attrgetter("dtype")


def norms(tensors: Sequence[Tensor]) -> list[float]:
    """The norm of each tensor, not finite for one with a NaN or an infinity, or (rarely) where its square overflows.

    One transfer from each device.
    """
    result = [0.0] * len(tensors)
    members_of: dict[tuple[torch.device, torch.dtype, bool], list[int]] = {}
    for i, tensor in enumerate(tensors):
        product = tensor.numel() >= _LARGE and tensor.is_cpu and tensor.is_contiguous()
        product = product and type(tensor) in _PLAIN and tensor.dtype in (torch.float32, torch.float64)
        members_of.setdefault((tensor.device, tensor.dtype, product), []).append(i)
    for (_, dtype, product), members in members_of.items():
        chosen = [tensors[i] for i in members]
        if product:
            values = [math.sqrt(x) if x >= 0 else x for x in map(_sum_of_squares, chosen)]
        elif dtype in (torch.float16, torch.bfloat16):
            values = torch.stack(torch._foreach_norm(chosen, dtype=torch.float32)).tolist()
        else:
            values = torch.stack(torch._foreach_norm(chosen)).tolist()
        for i, value in zip(members, values, strict=True):
            result[i] = value
    return result


def joint_norms(*lists: Sequence[Tensor], mesh: Any = None) -> list[list[tuple[torch.dtype, float]]]:
    """Norm of each tensor of each list, but of small ones on a CPU that of all together; with the dtype, in no order.

    A joint norm that is finite and small says so of every tensor in it. For twenty tensors of ten numbers it takes a
    third of the time of `norms`. Tensors on a device ``mesh`` have their own each, of all processes. One transfer from
    each device.
    """
    if mesh is not None:
        return [
            list(zip([x.dtype for x in tensors], _norms_of_shards(tensors, mesh), strict=True)) for tensors in lists
        ]
    joint = [_joint(tensors) for tensors in lists]
    if None not in joint:
        return joint  # type: ignore[return-value]
    results: list[list[tuple[torch.dtype, float]]] = []
    single: list[tuple[int, Tensor]] = []
    for i, tensors in enumerate(lists):
        pools: dict[torch.dtype, list[Tensor]] = {}
        for x in tensors:
            pools.setdefault(x.dtype, []).append(x)
        found = [(pool, _joint(pool)) for pool in pools.values()]
        results.append([pair for _, pairs in found for pair in pairs or ()])
        single += [(i, x) for pool, pairs in found if pairs is None for x in pool]
    for (i, x), value in zip(single, norms([x for _, x in single]), strict=True):
        results[i].append((x.dtype, value))
    return results


def _joint(tensors: Sequence[Tensor]) -> list[tuple[torch.dtype, float]] | None:
    """The norm of all small tensors and of each large one; None unless these are of one dtype on a CPU."""
    # Sets at the speed of C, for there may be hundreds.
    if not tensors:
        return []
    if not (all(map(_on_cpu, tensors)) and {*map(type, tensors)} <= _PLAIN and {*map(_dtype, tensors)} in _WIDE):
        return None
    sized = [*zip(tensors, map(Tensor.numel, tensors), strict=True)]
    small, large = [x for x, size in sized if size < _LARGE], [x.reshape(-1) for x, size in sized if size >= _LARGE]
    flat = [torch._C._nn.flatten_dense_tensors(small), *large] if small else large
    squares = [torch.dot(x, x) for x in flat]
    values = [squares[0].item()] if len(squares) == 1 else torch.stack(squares).tolist()
    return [(tensors[0].dtype, math.sqrt(value) if value >= 0 else value) for value in values]


def _sum_of_squares(x: Tensor) -> float:
    flat = x.view(-1)
    return torch.dot(flat, flat).item()


def _norms_of_shards(tensors: Sequence[Tensor], mesh: Any) -> list[float]:
    """The norm of each whole tensor, not finite in any process if it is not finite in one."""
    values = norms([sharding.local(x) for x in tensors])
    # Copies count as their mean, so that one that is not finite is seen everywhere.
    squares = torch.tensor(values, dtype=torch.float64).square()
    squares = squares.to(mesh.device_type) if mesh.device_type != "cpu" else squares
    for axis in range(mesh.ndim):
        copied = [not sharding.is_sharded(x) or x.placements[axis].is_replicate() for x in tensors]  # type: ignore
        squares = torch.where(torch.tensor(copied, device=squares.device), squares / mesh.size(axis), squares)
        dist.all_reduce(squares, group=mesh.get_group(axis))
    return squares.sqrt().tolist()
