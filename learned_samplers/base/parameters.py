"""Validation of the tensors of a parameter group: what can be sampled, once, and in memory of its own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base import validation


def listed_parameters(param_group: Any) -> list[Any]:
    """The tensors, or (name, tensor) pairs, of a new parameter group as it is given to an optimizer.

    Raises:
        TypeError: the group is no dict, or its tensors are in no order.
        ValueError: it has none.
    """
    if not isinstance(param_group, dict):
        raise TypeError(f"param_group must be a dict, got {type(param_group).__name__}")
    if "params" not in param_group:
        raise ValueError("param_group must have 'params'")
    params = param_group["params"]
    if isinstance(params, set):
        raise TypeError("params must be in an order, got a set, in which a resumed chain could not find them again")
    listed = [params] if isinstance(params, Tensor) else list(params)
    if not listed:
        raise ValueError("params of a parameter group must not be empty")
    return listed


def validate_parameters(listed: Sequence[Any], others: Sequence[Tensor]) -> None:
    """Raise TypeError or ValueError unless every entry is a tensor that a sampler can move on its own.

    Args:
        listed: tensors or (name, tensor) pairs of a new group.
        others: the tensors of the groups before.
    """
    named = [entry if isinstance(entry, tuple) else (f"params[{i}]", entry) for i, entry in enumerate(listed)]
    for name, tensor in named:
        validation.parameter(f"parameter {name!r}", tensor)
    seen: dict[int, str] = {id(tensor): "in more than one parameter group" for tensor in others}
    for name, tensor in named:
        if id(tensor) in seen:
            raise ValueError(f"parameter {name!r} is given twice, {seen[id(tensor)]}: it would be moved twice")
        seen[id(tensor)] = f"also as {name!r}"
    _refuse_overlap([*named, *(("of another group", tensor) for tensor in others)])


def _refuse_overlap(named: list[tuple[str, Tensor]]) -> None:
    """Raise ValueError where two tensors, or two elements of one, lie in the same memory."""
    by_storage: dict[tuple[torch.device, int], list[tuple[str, Tensor]]] = {}
    for name, tensor in named:
        # Subclasses (distributed, quantised, fake tensors) have no memory of their own to compare.
        if type(tensor) not in (Tensor, torch.nn.Parameter) or tensor.is_meta or not tensor.numel():
            continue
        if any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
            raise ValueError(f"parameter {name!r} overlaps itself (it was expanded): give a copy of its own")
        by_storage.setdefault((tensor.device, tensor.untyped_storage().data_ptr()), []).append((name, tensor))
    for shared in by_storage.values():
        spans = sorted((*_span(tensor), name, i) for i, (name, tensor) in enumerate(shared))
        for (_, end, one, i), (start, _, other, j) in pairwise(spans):
            if start < end and _share_memory(shared[i][1], shared[j][1]):
                raise ValueError(f"parameters {one!r} and {other!r} overlap in memory: each would be moved twice")


def _span(tensor: Tensor) -> tuple[int, int]:
    """First byte of a tensor in its storage, and the first one after it."""
    last = sum(int((size - 1) * stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    start = int(tensor.storage_offset()) * tensor.element_size()
    return start, start + (last + 1) * tensor.element_size()


def _share_memory(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one storage have an element in common (their spans may interleave without one)."""
    if one.element_size() != other.element_size():
        return True
    taken = torch.zeros(one.untyped_storage().nbytes() // one.element_size(), dtype=torch.bool)
    taken.as_strided(one.shape, one.stride(), one.storage_offset()).fill_(True)
    return bool(taken.as_strided(other.shape, other.stride(), other.storage_offset()).any())
