"""Priors that are more than one number: a precision for each parameter, which may be drawn anew while the chain runs.

A prior gives each parameter a precision λ; parameters with another λ get a parameter group of their own, so that every
update rule, guard and saved state sees what it always sees, one number a group.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from learned_samplers.base import validation
from learned_samplers.base.guards.side_by_side import is_stacked
from learned_samplers.base.protocol import Chain

#: Key of the parameter groups whose precision a prior draws.
DRAWN = "prior_is_drawn"


class Prior:
    """Base class of priors N(μ, 1/λ) with a precision for each parameter.

    A subclass says how large λ is by `precision`; one whose λ is drawn while the chain runs sets `every` and `draw`.
    """

    #: Steps between two draws of λ; 0 where it is never drawn.
    every: int = 0

    def precision(self, name: str | None, p: Tensor) -> float:
        """λ of a parameter when the chain begins.

        Args:
            name: of the parameter, None where the parameters came without names.
            p: the parameter.
        """
        raise NotImplementedError

    def draw(self, sampler: Chain) -> None:
        """Draw λ of each parameter group of a sampler, given its weights."""
        raise NotImplementedError

    def scaled(self, factor: float) -> Prior:
        """This prior with every precision times ``factor``."""
        raise NotImplementedError

    def check_names(self, names: Sequence[str]) -> None:
        """Raise ValueError if a part of the prior applies to none of these parameters."""


class ByName(Prior):
    """A precision by name of the parameter: ``{"0.weight": 0.3, "2.weight": 0.03, "*.bias": 0.3}``.

    Patterns are those of `fnmatch`; the first one that matches counts, and a last "*" is for all others.

    Raises:
        TypeError, ValueError: it is no mapping of names to numbers of at least 0; the parameters have no names; no
            pattern matches a parameter, or a pattern matches none.
    """

    def __init__(self, precisions: Mapping[str, float]):
        if not isinstance(precisions, Mapping):
            raise TypeError(f"precisions must be a dict by name, got {precisions!r:.60}")
        for pattern, value in precisions.items():
            if not isinstance(pattern, str):
                raise TypeError(f"prior_precision must have names or patterns for keys, got {pattern!r}")
            validation.non_negative(f"prior_precision[{pattern!r}]", value)
        self.precisions = {pattern: float(value) for pattern, value in precisions.items()}

    def precision(self, name: str | None, p: Tensor) -> float:
        if name is None:
            raise ValueError(
                "prior_precision by name needs named parameters, as model.named_parameters(), got "
                f"{dict(self.precisions)!r} for parameters without names"
            )
        for pattern, value in self.precisions.items():
            if fnmatch.fnmatchcase(name, pattern):
                return value
        raise ValueError(f"prior_precision has no pattern for parameter {name!r}, got {list(self.precisions)}")

    def check_names(self, names: Sequence[str]) -> None:
        left = list(names)
        for pattern in self.precisions:
            if not fnmatch.filter(names, pattern):
                raise ValueError(f"prior_precision[{pattern!r}] matches no parameter")
            if pattern != "*" and not fnmatch.filter(left, pattern):
                raise ValueError(f"prior_precision[{pattern!r}] comes after patterns that match all of its parameters")
            left = [name for name in left if not fnmatch.fnmatchcase(name, pattern)]

    def scaled(self, factor: float) -> ByName:
        return ByName({pattern: factor * value for pattern, value in self.precisions.items()})

    def __repr__(self) -> str:
        return f"ByName({self.precisions!r})"


def prior_of(value: Any) -> Prior | None:
    """The prior that ``prior_precision`` stands for, None where it is one number."""
    if isinstance(value, Mapping):
        return ByName(value)
    return value if isinstance(value, Prior) else None


def split(params: Any, prior: Prior, *, all_parameters: bool = True) -> list[dict[str, Any]]:
    """Parameter groups in which all have one precision, those of a prior; a group's own precision stays.

    Args:
        params: tensors, named tensors or groups.
        prior: gives the precisions.
        all_parameters: whether these are all that the prior is for, so that each part of it must apply to some.

    Raises:
        ValueError: as the prior says; or a parameter holds several networks (`Chains`).
    """
    listed: list[Any] = [params] if isinstance(params, Tensor | dict) else list(params)
    groups: list[dict[str, Any]] = listed if listed and isinstance(listed[0], dict) else [{"params": listed}]
    parts = [part for group in groups for part in _parts(group, prior)]
    if all_parameters:
        entries = [entry for group in parts for entry in validation.listed_parameters(group)]
        prior.check_names([entry[0] for entry in entries if isinstance(entry, tuple)])
    return parts


def _parts(group: dict[str, Any], prior: Prior) -> Iterable[dict[str, Any]]:
    if "prior_precision" in group:
        return [group]
    parts: dict[Any, dict[str, Any]] = {}
    for number, entry in enumerate(validation.listed_parameters(group)):
        name, p = entry if isinstance(entry, tuple) else (None, entry)
        validation.parameter(f"parameter {name!r}" if name else f"params[{number}]", p)
        if is_stacked(p):
            raise ValueError(
                f"prior_precision={prior!r} would take the chains that are stacked in one tensor for one network: take "
                "Chains(..., separate=True), or a number"
            )
        precision = prior.precision(name, p)
        key = number if prior.every else precision
        part = parts.setdefault(key, {**group, "params": [], "prior_precision": precision})
        if prior.every:
            part[DRAWN] = True
        part["params"].append(entry)
    return parts.values()


def check_taken(sampler: Chain, prior: Prior) -> None:
    """Raise ValueError where a sampler cannot have a prior with several precisions, or one that is drawn."""
    name = type(sampler).__name__
    if sampler.declared["prior_precision"].shared:
        raise ValueError(f"prior_precision of {name} must be one number for all parameters, got {prior!r}")
    if prior.every and "temperature" not in sampler.hyperparameters:
        raise ValueError(f"prior_precision of {name} cannot be sampled, for its weights are no chain, got {prior!r}")
