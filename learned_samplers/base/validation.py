"""Validation of arguments: each function raises TypeError or ValueError naming the argument and its value."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from numbers import Real
from typing import Any

import torch
from torch import Tensor


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
    value = float(value)
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}")
    return value


def positive(name: str, value: Any) -> None:
    """``value`` is a number greater than 0."""
    if number(name, value) <= 0:
        raise ValueError(f"{name} must be greater than 0, got {value}")


def number_of_data(value: Any) -> None:
    """``num_data``: a number greater than 0, and neither the data themselves nor their loader."""
    dataset = getattr(value, "dataset", value)
    if not isinstance(value, Tensor | str) and hasattr(dataset, "__len__"):
        of = "len(loader.dataset)" if dataset is not value else "len() of it"
        raise TypeError(
            f"num_data must be the number of training examples, {of}, got an object of type {type(value).__name__}"
        )
    if value is None:
        raise TypeError("num_data must be the number of training examples, such as len(train_set), got None")
    positive("num_data", value)


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


def whole(name: str, value: Any, *, least: int = 1) -> None:
    """``value`` is an integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, got {value!r} of type {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def truth(name: str, value: Any) -> None:
    """``value`` is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r} of type {type(value).__name__}")


def one_of(name: str, value: Any, choices: Iterable[Any]) -> None:
    """``value`` is one of ``choices``; 0 and 1 are not False and True."""
    choices = list(choices)
    if not any(isinstance(value, bool) is isinstance(one, bool) and value == one for one in choices):
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def momentum(group: dict[str, Any]) -> None:
    """The group's ``momentum_decay`` lies in (0, 1] and its ``momentum_init`` is known."""
    fraction("momentum_decay", group["momentum_decay"], open_left=True)
    one_of("momentum_init", group["momentum_init"], ("zero", "normal"))


def parameter(name: str, value: Any) -> None:
    """``value`` is a tensor that a sampler can move: real floating-point and dense."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
    if torch.nn.parameter.is_lazy(value):
        raise ValueError(f"{name} is not initialised (a lazy module): run the network on one batch before")
    if not value.is_floating_point():
        raise TypeError(f"{name} must be a real floating-point tensor, got dtype {value.dtype}")
    if value.layout != torch.strided:
        raise TypeError(f"{name} must be a dense tensor, got layout {value.layout}")


def comparable(value: Any) -> Any:
    """What to compare a hyperparameter by later: the number in a tensor, which may be changed in place meanwhile.

    A tensor of more numbers than one equals nothing; a list of tensors equals a list of the same objects.
    """
    if isinstance(value, Tensor):
        return value.item() if value.dim() == 0 else object()
    if isinstance(value, list | tuple) and any(isinstance(one, Tensor) for one in value):
        return [id(one) for one in value]
    return value


def same_in_all_groups(sampler: Any, group: dict[str, Any], names: Iterable[str]) -> None:
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


class LastValues:
    """Hyperparameters as they were at the last validation."""

    _FIXED = frozenset({int, float, bool, str, type(None)})

    def __init__(self) -> None:
        self._objects: list[Any] = []
        self._values: list[Any] | None = None

    def differ_from(self, values: list[Any]) -> bool:
        """Whether one of these values is another. The same objects, of kinds that cannot change, are a quick no."""
        if len(self._objects) == len(values) and all(map(operator.is_, values, self._objects)):
            return False
        return self._values != [*map(comparable, values)]

    def keep(self, values: list[Any]) -> None:
        """Remember these values."""
        self._objects = values if {*map(type, values)} <= self._FIXED else []
        self._values = [*map(comparable, values)]
