"""Validation of arguments: each function raises TypeError or ValueError naming the argument and its value."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base.protocol import Chain


def number(name: str, value: Any) -> float:
    """``value`` as a finite float; a zero-dimensional tensor counts as a number.

    Raises ``TypeError`` if it is not a real number and ``ValueError`` if it is not finite.
    """
    if isinstance(value, Tensor):
        if value.dim() != 0 or value.is_complex() or value.dtype == torch.bool:
            raise TypeError(f"{name} must be a number or a zero-dimensional real tensor, got {value!r}")
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {value!r} of type {type(value).__name__}")
    if isinstance(value, Integral):
        _below_2_63(name, value)
    value = float(value)
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}")
    return value


def positive(name: str, value: Any) -> None:
    """``value`` is a number greater than 0."""
    if number(name, value) <= 0:
        raise ValueError(f"{name} must be greater than 0, got {value}")


def number_of_data(value: Any) -> None:
    """``num_data``: a number, 1 or greater, and neither the data themselves nor their loader."""
    dataset = getattr(value, "dataset", value)
    if not isinstance(value, Tensor | str) and hasattr(dataset, "__len__"):
        of = "len(loader.dataset)" if dataset is not value else "len() of it"
        raise TypeError(
            f"num_data must be the number of training examples, {of}, got an object of type {type(value).__name__}"
        )
    if value is None:
        raise TypeError("num_data must be the number of training examples, such as len(train_set), got None")
    positive("num_data", value)
    if value < 1:
        raise ValueError(f"num_data must be the number of training examples, 1 at least, got {value}")


def non_negative(name: str, value: Any) -> None:
    """``value`` is a number, 0 or greater."""
    if number(name, value) < 0:
        raise ValueError(f"{name} must not be negative, got {value}")


def fraction(name: str, value: Any, *, open_left: bool = False, open_right: bool = False) -> None:
    """``value`` in the unit interval, without 0 (``open_left``) or 1 (``open_right``)."""
    x = number(name, value)
    if x < 0 or x > 1 or (open_left and x == 0) or (open_right and x == 1):
        interval = f"{'(' if open_left else '['}0, 1{')' if open_right else ']'}"
        raise ValueError(f"{name} must lie in {interval}, got {value}")


def integer(name: str, value: Any, *, least: int = 1) -> None:
    """``value`` is an integer of at least ``least``; one of NumPy's will do."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an integer, got {value!r} of type {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    _below_2_63(name, value)


def seed(name: str, value: Any) -> int:
    """``value``, an integer from 0 on, as a Python integer: torch's generators take no other."""
    integer(name, value, least=0)
    return int(value)


def _below_2_63(name: str, value: Any) -> None:
    """Raise ValueError for an integer that torch, which has 64 bits for it, cannot hold."""
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"{name} must be an integer of at most 64 bits, got one of {int(value).bit_length()}")


def truth(name: str, value: Any) -> None:
    """``value`` is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r} of type {type(value).__name__}")


def module(name: str, value: Any) -> None:
    """``value`` is a network, and no class of networks."""
    if not isinstance(value, torch.nn.Module):
        what = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
        raise TypeError(f"{name} must be a torch.nn.Module, got {what}")


def tensor(name: str, value: Any) -> None:
    """``value`` is a tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {value!r:.60} of type {type(value).__name__}")


def function(name: str, value: Any, example: str) -> None:
    """``value`` can be called, as ``example`` can."""
    if not callable(value):
        raise TypeError(f"{name} must be a function, as {example} is, got {value!r:.60} of type {type(value).__name__}")


def generator(name: str, value: Any) -> None:
    """``value`` is a generator of torch, or None."""
    if value is not None and not isinstance(value, torch.Generator):
        raise TypeError(f"{name} must be a torch.Generator, got {value!r:.60} of type {type(value).__name__}")


def one_of(name: str, value: Any, choices: Iterable[Any]) -> None:
    """``value`` is one of ``choices``; 0 and 1 are not False and True."""
    choices = list(choices)
    if not any(isinstance(value, bool) is isinstance(one, bool) and value == one for one in choices):
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def parameter(name: str, value: Any) -> None:
    """``value`` is a tensor that a sampler can move, real floating-point and dense, or one that is frozen.

    A frozen one is left alone whatever it holds, such as the 4-bit weights of a quantised model under LoRA.
    """
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
    if not (value.requires_grad or value.is_floating_point()):
        return
    if torch.nn.parameter.is_lazy(value):
        raise ValueError(f"{name} is not initialised (a lazy module): run the network on one batch before")
    if not value.is_floating_point():
        raise TypeError(f"{name} must be a real floating-point tensor, got dtype {value.dtype}")
    if value.layout != torch.strided:
        raise TypeError(f"{name} must be a dense tensor, got layout {value.layout}")


def same_in_all_groups(sampler: Chain, group: dict[str, Any], names: Iterable[str]) -> None:
    """Raise ValueError unless a group has the first group's values of what belongs to the whole chain."""
    groups = getattr(sampler, "param_groups", None)
    first = groups[0] if groups else group
    for name in names:
        if group[name] != first[name]:
            raise ValueError(
                f"{name} must be the same in every group of {type(sampler).__name__}, got {group[name]} beside "
                f"{first[name]}"
            )


def inputs_and_targets(data: Any) -> tuple[Tensor, Tensor]:
    """Two tensors, as many inputs as targets; TypeError or ValueError otherwise."""
    if not isinstance(data, tuple | list) or len(data) != 2 or not all(isinstance(part, Tensor) for part in data):
        raise TypeError(f"data must be a tensor of inputs and one of targets, got {type(data).__name__}")
    if not len(data[0]) or len(data[0]) != len(data[1]):
        raise ValueError(f"data must hold as many inputs as targets, got {len(data[0])} and {len(data[1])}")
    return data[0], data[1]


# ------------------------------------------------------------------- the tensors of a parameter group


def in_order(params: Any) -> Any:
    """The first argument of an optimizer, generators as lists; TypeError for a set, and for what holds no tensors."""
    if isinstance(params, Tensor | dict):
        return params
    listed = [
        (entry, _listed(entry["params"])) if isinstance(entry, dict) and "params" in entry else (entry, None)
        for entry in _listed(params)
    ]
    return [{**e, "params": own} if own and isinstance(e["params"], Iterator) else e for e, own in listed]


def _listed(params: Any) -> list[Any]:
    if isinstance(params, set | frozenset):
        raise TypeError("params must be in an order, got a set, in which a resumed chain could not find them again")
    if not isinstance(params, Iterable):
        raise TypeError(f"params must be tensors, (name, tensor) pairs or groups, got {type(params).__name__}")
    listed = [params] if isinstance(params, Tensor) else list(params)
    for i, entry in enumerate(listed):
        if isinstance(entry, tuple) and len(entry) != 2:
            raise TypeError(f"params[{i}] must be a tensor or a (name, tensor) pair, got a tuple of {len(entry)}")
    return listed


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
    if not (listed := _listed(param_group["params"])):
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
        parameter(f"parameter {name!r}", tensor)
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
        for (_, end, first, i), (start, _, second, j) in pairwise(spans):
            if start < end and _share_memory(shared[i][1], shared[j][1]):
                raise ValueError(f"parameters {first!r} and {second!r} overlap in memory: each would be moved twice")


def _span(tensor: Tensor) -> tuple[int, int]:
    """First byte of a tensor in its storage, and the first one after it."""
    last = sum(int((size - 1) * stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    start = int(tensor.storage_offset()) * tensor.element_size()
    return start, start + (last + 1) * tensor.element_size()


def _share_memory(first: Tensor, second: Tensor) -> bool:
    """Return whether two tensors of one storage have an element in common (their spans may interleave without one)."""
    if first.element_size() != second.element_size():
        return True
    taken = torch.zeros(first.untyped_storage().nbytes() // first.element_size(), dtype=torch.bool)
    taken.as_strided(first.shape, first.stride(), first.storage_offset()).fill_(True)
    return bool(taken.as_strided(second.shape, second.stride(), second.storage_offset()).any())
