"""Priors that are more than one number: a precision for each parameter, which may be drawn anew while the chain runs.

A prior gives each parameter a precision λ; parameters with another λ get a parameter group of their own, so that every
update rule, guard and saved state sees what it always sees, one number a group.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from learned_samplers.base import validation


class Prior:
    """Base class of priors N(μ, 1/λ) with a precision for each parameter.

    A subclass says how large λ is by `precision`; one whose λ is drawn while the chain runs sets `every` and `draw`.
    """

    #: Steps between two draws of λ; 0 where it is never drawn.
    every: int = 0
    #: Whether each tensor has a group of its own, whatever its precision.
    one_group_a_tensor: bool = False

    def precision(self, name: str | None, p: Tensor) -> float:
        """λ of a parameter when the chain begins.

        Args:
            name: of the parameter, None where the parameters came without names.
            p: the parameter.
        """
        raise NotImplementedError

    def draw(self, sampler: Any) -> None:
        """Draw λ of each parameter group of a sampler, given its weights."""
        raise NotImplementedError

    def check_used(self) -> None:
        """Raise ValueError if a part of the prior has applied to no parameter."""


class ByName(Prior):
    """A precision by name of the parameter: ``{"0.weight": 0.3, "2.weight": 0.03, "*.bias": 0.3}``.

    Patterns are those of `fnmatch`; the first one that matches counts.

    Raises:
        TypeError, ValueError: it is no mapping of names to numbers of at least 0; the parameters have no names; no
            pattern matches a parameter, or a pattern matches none.
    """

    def __init__(self, precisions: Mapping[str, float]):
        for pattern, value in precisions.items():
            if not isinstance(pattern, str):
                raise TypeError(f"prior_precision must have names or patterns for keys, got {pattern!r}")
            validation.non_negative(f"prior_precision[{pattern!r}]", value)
        self.precisions = {pattern: float(value) for pattern, value in precisions.items()}
        self.unused = set(precisions)

    def precision(self, name: str | None, p: Tensor) -> float:
        if name is None:
            raise ValueError(
                "prior_precision by name needs named parameters, as model.named_parameters(), got "
                f"{dict(self.precisions)!r} for parameters without names"
            )
        for pattern, value in self.precisions.items():
            if fnmatch.fnmatchcase(name, pattern):
                self.unused.discard(pattern)
                return value
        raise ValueError(f"prior_precision has no pattern for parameter {name!r}, got {list(self.precisions)}")

    def check_used(self) -> None:
        if self.unused:
            raise ValueError(f"prior_precision[{min(self.unused)!r}] matches no parameter")

    def __repr__(self) -> str:
        return f"ByName({self.precisions!r})"


def prior_of(value: Any) -> Prior | None:
    """The prior that ``prior_precision`` stands for, None where it is one number."""
    if isinstance(value, Mapping):
        return ByName(value)
    return value if isinstance(value, Prior) else None


def split(params: Any, prior: Prior) -> list[dict[str, Any]]:
    """Parameter groups in which all have one precision, those of a prior; a group's own precision stays.

    Args:
        params: tensors, named tensors or groups.
        prior: gives the precisions.

    Raises:
        ValueError: as the prior says.
    """
    listed = [params] if isinstance(params, Tensor | dict) else list(params)
    groups = listed if listed and isinstance(listed[0], dict) else [{"params": listed}]
    parts = [part for group in groups for part in _parts(group, prior)]
    prior.check_used()
    return parts


def _parts(group: dict[str, Any], prior: Prior) -> Iterable[dict[str, Any]]:
    if "prior_precision" in group:
        return [group]
    parts: dict[Any, dict[str, Any]] = {}
    for number, entry in enumerate(validation.listed_parameters(group)):
        name, p = entry if isinstance(entry, tuple) else (None, entry)
        validation.parameter(f"parameter {name!r}" if name else f"params[{number}]", p)
        precision = prior.precision(name, p)
        key = number if prior.one_group_a_tensor else precision
        part = parts.setdefault(key, {**group, "params": [], "prior_precision": precision})
        part["params"].append(entry)
    return parts.values()
