"""Priors that are more than one number: a precision for each parameter, which may be drawn anew while the chain runs.

A prior gives each parameter a precision λ; parameters with another λ get a parameter group of their own, so that every
update rule, guard and saved state sees what it always sees, one number a group.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base import prior_mean, validation
from learned_samplers.base.guards.side_by_side import is_stacked
from learned_samplers.base.protocol import Chain

#: Key of a group whose weight has a precision for each input: what it has above ``prior_precision``, a list of numbers.
BY_INPUT = "prior_precision_by_input"

#: Key under which a new parameter group brings the prior that draws its precision; the sampler keeps it elsewhere.
DRAWN_BY = "prior_is_drawn_by"


class Prior:
    """Base class of priors N(μ, 1/λ) with a precision for each parameter.

    A subclass says how large λ is by `precision`, or by `of_parameters` where that takes a look at all parameters; one
    whose λ is drawn while the chain runs sets `every` and `draw`.
    """

    #: Steps between two draws of λ; 0 where it is never drawn.
    every: int = 0
    #: Whether it has a precision for each input of a weight.
    by_input: bool = False

    def precision(self, name: str | None, p: Tensor) -> float:
        """λ of a parameter when the chain begins.

        Args:
            name: of the parameter, None where the parameters came without names.
            p: the parameter.
        """
        raise NotImplementedError

    def of_parameters(self, entries: Sequence[tuple[str | None, Tensor]]) -> list[float]:
        """λ of several parameters, (name or None, parameter)."""
        return [self.precision(name, p) for name, p in entries]

    def draw(self, sampler: Chain, group: dict[str, Any]) -> None:
        """Draw λ of a parameter group of a sampler, given its weights, and write it into the group."""
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


def draw(sampler: Chain) -> None:
    """Draw the precision of each group with a prior that draws it in this step."""
    for group, prior in zip(sampler.param_groups, sampler.group_priors, strict=True):
        if prior is not None and sampler.step_count % prior.every == 0:
            prior.draw(sampler, group)


def has_priors(params: Any) -> bool:
    """Return whether a parameter group among the first argument of an optimizer has a prior of its own."""
    return any(prior_of(group.get("prior_precision")) is not None for group in groups_of(params))


def groups_of(params: Any) -> list[dict[str, Any]]:
    """The first argument of an optimizer as a list of groups."""
    listed: list[Any] = [params] if isinstance(params, Tensor | dict) else list(params)
    return listed if listed and isinstance(listed[0], dict) else [{"params": listed}]


def split(sampler: Chain, params: Any, prior: Prior | None, means: Any = None) -> list[dict[str, Any]]:
    """Parameter groups in which all have one precision, those of a prior; a group's own precision or prior stays.

    Args:
        sampler: the one that they are for.
        params: tensors, named tensors or groups.
        prior: that of groups that name none; None where they keep the sampler's number.
        means: ``prior_mean`` as the constructor got it: tensors are those of the first group's parameters.

    Raises:
        ValueError, TypeError: as the prior says; a part of a prior is for no parameter; the sampler cannot have such a
            prior; or a parameter holds several networks (`Chains`).
    """
    groups = [dict(group) for group in groups_of(params)]
    if not isinstance(means, str | None):
        groups[0].setdefault("prior_mean", means)
    names, parts = list[str](), list[dict[str, Any]]()
    for group in groups:
        own_prior = prior_of(group.get("prior_precision"))
        group_prior = own_prior if "prior_precision" in group else prior
        if group_prior is None:
            parts.append(group)
            continue
        check_taken(sampler, group_prior)
        entries = [
            entry if isinstance(entry, tuple) else (None, entry) for entry in validation.listed_parameters(group)
        ]
        parts += _parts(sampler, group, entries, group_prior)
        group_names = [name for name, _ in entries if name is not None]
        if own_prior is not None:
            own_prior.check_names(group_names)
        else:
            names += group_names
    if prior is not None and not sampler.group_priors:  # one that joins need not be of each layer
        prior.check_names(names)
    return parts


def _parts(
    sampler: Chain, group: dict[str, Any], entries: Sequence[tuple[str | None, Tensor]], prior: Prior
) -> list[dict[str, Any]]:
    for number, (name, p) in enumerate(entries):
        validation.parameter(f"parameter {name!r}" if name else f"params[{number}]", p)
        if is_stacked(p):
            raise ValueError(
                f"prior_precision={prior!r} would take the chains that are stacked in one tensor for one network: take "
                "Chains(..., separate=True), or a number"
            )
    means: Any = group.get("prior_mean")
    has_means = not isinstance(means, str | None)
    if has_means:
        prior_mean.validate(sampler, "prior_mean", means, [p for _, p in entries], laid_out=False)
    parts: dict[Any, dict[str, Any]] = {}
    for number, ((name, p), precision) in enumerate(zip(entries, prior.of_parameters(entries), strict=True)):
        key = number if prior.every else precision
        if key not in parts:
            parts[key] = {**group, "params": [], "prior_precision": precision}
            if has_means:
                parts[key]["prior_mean"] = []
            if prior.every:
                parts[key][DRAWN_BY] = prior
        parts[key]["params"].append(p if name is None else (name, p))
        if has_means:
            parts[key]["prior_mean"].append(means[number])
    return list(parts.values())


def pulled_by_input(sampler: Chain, group: Mapping[str, Any], p: Tensor, gradient: Tensor) -> Tensor:
    """The gradient of the mean loss with the pull of a group's prior by input, beside that of ``prior_precision``."""
    if BY_INPUT not in group or p.dim() < 2:
        return gradient
    if sampler.mesh is not None:
        raise ValueError("prior_precision must not be a prior by input where parameters are sharded")
    (centred,) = prior_mean.centred(dict(group), [p])
    return gradient + (_by_input(group, p) / float(group["num_data"])) * centred


def _by_input(group: Mapping[str, Any], p: Tensor) -> Tensor:
    """The precisions by input above ``prior_precision``, in a shape that broadcasts to the weight's."""
    return torch.tensor(group[BY_INPUT], dtype=p.dtype, device=p.device).view(1, -1, *[1] * (p.dim() - 2))


def check_by_input(group: Mapping[str, Any]) -> None:
    """Raise ValueError unless a saved group's precisions by input are finite, at least 0, and one for each input."""
    if BY_INPUT not in group:
        return
    values = group[BY_INPUT]
    if not isinstance(values, list):
        raise ValueError(f"{BY_INPUT} must be a list of numbers, got {values!r:.60}")
    for value in values:
        validation.non_negative(BY_INPUT, value)


def check_taken(sampler: Chain, prior: Prior) -> None:
    """Raise ValueError where a sampler cannot have a prior with several precisions, or one that is drawn."""
    name = type(sampler).__name__
    if not sampler.takes_priors or sampler.declared["prior_precision"].shared:
        raise ValueError(f"prior_precision of {name} must be one number for all parameters, got {prior!r}")
    if prior.by_input and (sampler.reads_loss or sampler.needs_closure):
        raise ValueError(f"prior_precision of {name}, which reads energies, must not be by input, got {prior!r}")
    if prior.every and "temperature" not in sampler.hyperparameters:
        raise ValueError(f"prior_precision of {name} cannot be sampled, for its weights are no chain, got {prior!r}")
