"""Hyperparameters that a scheduler, a hand or a loaded state has changed are validated before a step reads them."""

from __future__ import annotations

import operator
import warnings
from typing import Any

from torch import Tensor

from learned_samplers.base import prior_mean, validation
from learned_samplers.base.group_keys import refuse_late
from learned_samplers.base.operations import as_number


class ChangedHyperparameters:
    """Validates each group whose hyperparameters differ from those that were validated last."""

    def __init__(self) -> None:
        self.last: list[tuple[LastValues, LastValues]] = []
        self.warned = False

    def __call__(self, sampler: Any) -> None:
        changed = False
        for position, group in enumerate(sampler.param_groups):
            if position == len(self.last):
                self.last.append((LastValues(), LastValues()))
            last, mean = self.last[position]
            found = [*map(group.get, sampler.defaults), len(group)]
            if last.differ_from(found):
                refuse_late(type(sampler).__name__, group, {*sampler.defaults, *sampler.group_keys})
                sampler._validate(group)
                if mean.differ_from([group.get("prior_mean")]):  # a schedule changes lr in every step, and no mean
                    prior_mean.validate(sampler, "prior_mean", group.get("prior_mean"), group["params"])
                    mean.keep([group.get("prior_mean")])
                last.keep(found)
                changed = True
        if changed:  # parts of a network that have other numbers of data have no posterior together
            for group in sampler.param_groups:
                validation.same_in_all_groups(sampler, group, ("num_data",))
            self._warn_of_several_temperatures(sampler)

    def _warn_of_several_temperatures(self, sampler: Any) -> None:
        """Once, where groups of a sampler with a law have different temperatures above 0: heat flows between them."""
        groups = sampler.param_groups
        asked = {as_number(group.get("sampling_temperature", group["temperature"])) for group in groups} - {0.0}
        if len(asked) > 1 and not self.warned and sampler.badge != "heuristic":
            self.warned = True
            values = ", ".join(map(format, sorted(asked)))
            warnings.warn(
                f"the parameter groups of {type(sampler).__name__} have temperatures {values}: heat flows between "
                "them, and the chain has the law of none. One temperature above 0 for all has a law; temperature 0 "
                "holds a group at its mode",
                stacklevel=5,
            )


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
        return self._values != [*map(_comparable, values)]

    def keep(self, values: list[Any]) -> None:
        """Remember these values."""
        self._objects = values if {*map(type, values)} <= self._FIXED else []
        self._values = [*map(_comparable, values)]


def _comparable(value: Any) -> Any:
    """What to compare a hyperparameter by later: the number in a tensor, which may be changed in place meanwhile.

    A tensor of more numbers than one equals nothing; a list of tensors equals a list of the same objects.
    """
    if isinstance(value, Tensor):
        return value.item() if value.dim() == 0 else object()
    if isinstance(value, list | tuple) and any(isinstance(one, Tensor) for one in value):
        return [id(one) for one in value]
    return value
