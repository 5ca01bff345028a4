"""Keywords and keys of parameter groups: the options of every sampler, and what torch's names are called here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypedDict

from learned_samplers.base import validation


class SamplerOptions(TypedDict, total=False):
    """Options that every sampler takes by keyword; the first two may also stand in a parameter group.

    ``master_weights``: keep a float32 copy of half-precision parameters in the state and do the update on it, as
    `learned_samplers.base.guards.precision` explains. None does so for bfloat16 and float16; True does too, and refuses
    parameters that are wider; False updates the parameters themselves, which breaks the law.

    ``missing_gradient``: what to do with a parameter that requires a gradient and has none: "error", or "skip", as
    torch's optimizers do.

    ``distributed``: whether the processes of a process group hold one chain between them ("replicated": all draw the
    same noise, and drift raises) or one each ("independent"). "auto" takes parameters of a `DistributedDataParallel`
    module for replicas and all others for chains of their own; see `learned_samplers.base.guards.replicas`.

    ``momentum``: torch's name for 1 − ``momentum_decay``, where the sampler has one; also in a parameter group.
    """

    master_weights: bool | None
    missing_gradient: Literal["error", "skip"]
    distributed: Literal["auto", "replicated", "independent"]
    momentum: float


#: Options that are hyperparameters of a group, with their defaults.
GROUP_OPTIONS: dict[str, Any] = {"master_weights": None, "missing_gradient": "error"}

#: Keys that torch, its schedulers and common training code write into groups beside the hyperparameters.
_BOOKKEEPING = frozenset(
    {
        *("params", "param_names", "step", "name", "group_name"),
        *("initial_lr", "max_lr", "min_lr", "lr_scale", "peak_lr", "sampling_temperature"),
    }
)


def known_options(sampler: str, options: Mapping[str, Any], hyperparameters: Iterable[str]) -> dict[str, Any]:
    """The options as they are; TypeError for a keyword that no sampler has, which names ours where there is one."""
    for key, value in options.items():
        if key not in SamplerOptions.__annotations__ or (key == "momentum" and "momentum_decay" not in hyperparameters):
            raise TypeError(f"{sampler} has no argument {key}{_advice(sampler, key, value, set(hyperparameters))}")
    return dict(options)


def momentum_as_decay(sampler: str, values: Mapping[str, Any], hyperparameters: Iterable[str]) -> dict[str, Any]:
    """Keywords or keys of a group with ``momentum_decay`` = 1 − ``momentum`` in the place of torch's name.

    Raises:
        ValueError: both are given, or the momentum is not in [0, 1). TypeError: it is no number.
    """
    if "momentum" not in values or "momentum_decay" not in hyperparameters:
        return dict(values)
    momentum = values["momentum"]
    if "momentum_decay" in values:
        raise ValueError(
            f"{sampler} was given momentum={momentum!r} and momentum_decay={values['momentum_decay']!r}: "
            "momentum_decay is 1 - momentum, give one of them"
        )
    validation.fraction("momentum", momentum, open_right=True)
    others = {key: value for key, value in values.items() if key != "momentum"}
    return {**others, "momentum_decay": 1 - momentum}


def refuse_unknown(sampler: str, group: Mapping[str, Any], hyperparameters: Mapping[str, Any], own: Iterable[str]):
    """Raise ValueError for a key of a parameter group that nothing would read."""
    known = {*hyperparameters, *own, *_BOOKKEEPING}
    for key, value in group.items():
        if key not in known:
            values = {**hyperparameters, **group}
            advice = _advice(sampler, key, value, set(hyperparameters), values.get("num_data"))
            raise ValueError(f"a parameter group of {sampler} has no key {key!r}{advice}")


def refuse_late(sampler: str, group: Mapping[str, Any], hyperparameters: Iterable[str]):
    """Raise ValueError for a name of torch's that training code has written into a group, and that nothing reads."""
    for key in ("weight_decay", "momentum", "betas"):
        if key in group and key not in hyperparameters:
            advice = _advice(sampler, key, group[key], set(hyperparameters), group.get("num_data"))
            raise ValueError(f"a parameter group of {sampler} has been given {key!r}, which it does not read{advice}")


def _advice(sampler: str, key: str, value: Any, hyperparameters: set[str], num_data: Any = None) -> str:
    """What to write instead of a name of torch's optimizers."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if key in ("weight_decay", "l2"):
        text = "prior_precision = num_data * weight_decay"
        if number and isinstance(num_data, int | float):
            text += f" = {num_data:g} * {value:g} = {num_data * value:g}"
        return f": a weight decay on the mean loss is the Gaussian prior {text}"
    if key in ("momentum", "betas", "beta1"):
        if "momentum_decay" not in hyperparameters:
            return f": {sampler} has no momentum; SGHMC(momentum_decay = 1 - momentum) has one"
        return ": momentum_decay = 1 - momentum" + (f" = {1 - value:g}" if number else "")
    if key == "alpha" and "decay" in hyperparameters:
        return ": RMSprop's alpha is called decay"
    if key in ("nesterov", "dampening", "amsgrad", "maximize", "capturable", "differentiable", "fused", "decoupled"):
        return ", nor any counterpart of it: a sampler has one update, which leaves the posterior alone"
    return f", got {value!r}; known are {', '.join(sorted(hyperparameters))}"
