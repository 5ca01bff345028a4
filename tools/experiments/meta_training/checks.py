"""What `meta_train.py` finds out before it trains: options with which no sampler, network or task can be made."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import torch

from experiments.meta_training.options import ChainOptions, Options
from learned_samplers import L2E, KineticL2E, MetaSGMCMC, PrecondL2E
from meta_tasks.rules.learned import NetworkRule
from meta_tasks.tasks.family import ImageTaskFamily
from meta_tasks.tasks.gaussians import GaussianFamily

_L2E = ("residual", "paper")
#: The forms that an option of the network or the update belongs to; those not named here belong to all.
FORMS = {
    "feature_set": (*_L2E, "preconditioner"),
    "start_weights": (*_L2E, "preconditioner"),
    "start_feature": _L2E,
    "start_gain": _L2E,
    "output_bound": (*_L2E, "preconditioner", "kinetic"),
    "alpha_scale": _L2E,
    "beta_scale": _L2E,
    "friction_scale": (*_L2E, "meta"),
    "reference_data": ("residual",),
    "decay_time": ("residual",),
    "fused": ("residual",),
}

_EVOLUTION = ("es", "nres")
#: The estimators that an option of `Options` belongs to, likewise; those of `ChainOptions` belong to "tbptt".
ESTIMATORS = {
    **dict.fromkeys(("sigma", "pairs", "pairs_per_task", "shaping", "limit", "learned"), _EVOLUTION),
    "window": ("nres", "tbptt"),
}

# Of the samplers: what the card says of a network that their constructors also ask for.
_SAMPLERS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "L2E": (L2E, ("form", "feature_set")),
    "PrecondL2E": (PrecondL2E, ("feature_set",)),
    "KineticL2E": (KineticL2E, ()),
    "MetaSGMCMC": (MetaSGMCMC, ("form", "feature_set")),
}


def check_form(options: Options) -> None:
    """Raise ValueError if an option was given that the form of the sampler has no use for."""
    for name, forms in FORMS.items():
        value = getattr(options, name)
        if value is not None and value is not False and options.form not in forms:
            known = " or ".join(map(repr, forms))
            raise ValueError(f"{name}={value} is for the form {known}, not for form={options.form!r}")


def check_estimator(options: Options) -> None:
    """Raise ValueError if the estimator cannot train the form, or has no use for an option with another value than its
    default."""
    if (options.form == "meta") != (options.estimator == "tbptt"):
        raise ValueError(
            f"form={options.form!r} cannot be trained by estimator={options.estimator!r}; 'meta' by 'tbptt'"
        )
    belonging: list[tuple[Any, str, tuple[str, ...]]] = [(options, name, known) for name, known in ESTIMATORS.items()]
    belonging += [(options.chains, each.name, ("tbptt",)) for each in fields(ChainOptions)]
    for holder, name, known in belonging:
        value, default = getattr(holder, name), type(holder).__dataclass_fields__[name].default
        if value != default and options.estimator not in known:
            owners = " or ".join(map(repr, known))
            raise ValueError(f"{name}={value} is for the estimator {owners}, not for estimator={options.estimator!r}")


def check_positive(name: str, values: Sequence[float], most: float = math.inf) -> None:
    """Raise ValueError unless the option's values are finite, greater than 0 and at most ``most``."""
    for value in values:
        if not (0 < value <= most and math.isfinite(value)):
            bound = "" if most == math.inf else f" and at most {most:g}"
            raise ValueError(f"{name} must be greater than 0{bound}, got {value}")


def check_sampler(rule: NetworkRule, seed: int, lr: float, momentum_decay: float) -> None:
    """Make the sampler that the weight card will describe, once; ValueError is what its users would get."""
    card = rule.card()
    kind, named = _SAMPLERS[card["sampler"]]
    kind(
        [torch.zeros(1, requires_grad=True)], lr, 1000, network=rule.network(rule.initial_weights(seed)),
        momentum_decay=momentum_decay, **{name: card[name] for name in named}, **card["scales"],
    )  # fmt: skip


def check_tasks(family: ImageTaskFamily | GaussianFamily, seed: int, *, every: bool) -> None:
    """Draw one task, or one of every data set with all of the family's labels.

    Raises:
        ValueError, FileNotFoundError: a data set has no such labels, no training images, or no files.
    """
    if not (every and isinstance(family, ImageTaskFamily)):
        family.task(seed, 0, 0)
        return
    for name in dict.fromkeys(family.dataset_names):
        try:
            replace(family, dataset_names=(name,), label_subset_share=0.0).task(seed, 0, 0)
        except ValueError as error:
            raise ValueError(f"datasets={family.dataset_names}, labels={family.labels}: {error}") from error
