"""Hyperparameters that a scheduler, a hand or a loaded state has changed are checked before a step reads them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from learned_samplers.base import prior_mean, validation
from learned_samplers.base.group_keys import refuse_late
from learned_samplers.base.operations import as_number
from learned_samplers.base.protocol import Chain
from learned_samplers.base.warning import warn

_IMMUTABLE = frozenset({int, float, bool, str, type(None)})


class CheckedValues:
    """Hyperparameters of each group as they were when they were checked last."""

    def __init__(self) -> None:
        #: Length and very objects of each group, for a quick comparison; [None] where one of them may change in place.
        self.objects: list[list[Any]] = []
        self.values: list[list[Any]] = []
        self.means: list[Any] = []
        self.warned_of_temperatures = False


def check_changed(sampler: Chain) -> None:
    """Check each group with a hyperparameter that differs from the one that was checked last.

    Raises:
        ValueError, TypeError: a value is out of range or of a wrong type, or groups differ where they must not.
    """
    last, changed = sampler.checked, False
    for number, group in enumerate(sampler.param_groups):
        objects = [*map(group.get, sampler.defaults)]
        values = [*map(_comparable, objects), len(group)]
        if number < len(last.values) and last.values[number] == values:
            continue
        refuse_late(type(sampler).__name__, group, {*sampler.defaults, *sampler.group_keys})
        sampler.check_group(group)
        mean = _comparable(group.get("prior_mean"))
        if number >= len(last.means) or last.means[number] != mean:  # a schedule changes lr in every step, and no mean
            prior_mean.validate(sampler, "prior_mean", group.get("prior_mean"), group["params"])
        objects = [len(group), *objects] if {*map(type, objects)} <= _IMMUTABLE else [None]
        for checked, value in ((last.values, values), (last.means, mean), (last.objects, objects)):
            checked[number:] = [value, *checked[number + 1 :]]
        changed = True
    if changed:  # parts of a network that have other numbers of data have no posterior together
        for group in sampler.param_groups:
            validation.same_in_all_groups(sampler, group, ("num_data",))
        _warn_of_several_temperatures(sampler)


def _warn_of_several_temperatures(sampler: Chain) -> None:
    """Warn once where groups of a sampler with a law have different temperatures above 0: heat flows between them."""
    groups = sampler.param_groups
    temperatures = {as_number(group.get("sampling_temperature", group["temperature"])) for group in groups} - {0.0}
    if len(temperatures) > 1 and not sampler.checked.warned_of_temperatures and sampler.badge != "heuristic":
        sampler.checked.warned_of_temperatures = True
        warn(
            f"the parameter groups of {type(sampler).__name__} have temperatures "
            f"{', '.join(map(format, sorted(temperatures)))}: heat flows between them, and the chain has the law of "
            "none. One temperature above 0 for all has a law; temperature 0 holds a group at its mode"
        )


def _comparable(value: Any) -> Any:
    """Value by which a hyperparameter is compared later: of a tensor the number, as the tensor may change in place.

    A tensor of more numbers than one equals nothing; a list of tensors equals one of the same objects; True is not 1.
    """
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, Tensor):
        return value.item() if value.dim() == 0 else object()
    if isinstance(value, list | tuple) and any(isinstance(one, Tensor) for one in value):
        return [id(one) for one in value]
    return value
