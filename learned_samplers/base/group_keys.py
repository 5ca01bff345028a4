"""Names of torch's optimizers in constructors and parameter groups: what they are called here, or why they are not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from learned_samplers.base import validation

#: Keys that torch, its schedulers and common training code write into groups beside the hyperparameters.
_BOOKKEEPING = frozenset(
    {
        *("params", "param_names", "step", "name", "group_name", "prior_is_drawn_by", "prior_precision_by_input"),
        *("initial_lr", "max_lr", "min_lr", "lr_scale", "peak_lr", "sampling_temperature"),
    }
)


def in_our_names(
    sampler: str, values: Mapping[str, Any], hyperparameters: Iterable[str], *, of_group: bool = False
) -> dict[str, Any]:
    """Keywords, or keys of a parameter group, with ``momentum_decay`` = 1 − ``momentum`` and without a decay of zero.

    Args:
        sampler: name of its class.
        values: what was given.
        hyperparameters: names of the settings.
        of_group: whether they are a group's, whose unknown keys `refuse_unknown` refuses.

    Raises:
        ValueError: momentum and its decay are both given, or the momentum is not in [0, 1).
        TypeError: the momentum is no number, or the sampler has no such argument.
    """
    names, ours = set(hyperparameters), dict(values)
    if _is_zero(ours.get("weight_decay")) and "weight_decay" not in names:
        del ours["weight_decay"]  # as trainers write it where there is none
    if "momentum" in ours and "momentum_decay" in names:
        momentum = ours.pop("momentum")
        if "momentum_decay" in ours:
            raise ValueError(
                f"{sampler} was given momentum={momentum!r} and momentum_decay={ours['momentum_decay']!r}: "
                "momentum_decay is 1 - momentum, give one of them"
            )
        validation.fraction("momentum", momentum, open_right=True)
        ours["momentum_decay"] = 1 - momentum
    for name, value in () if of_group else ours.items():
        if name not in names and name != "params":
            advice = _advice(sampler, name, value, names, ours.get("num_data"))
            raise TypeError(f"{sampler} has no argument {name}{advice}")
    return ours


def _is_zero(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == 0


def refuse_unknown(sampler: str, group: Mapping[str, Any], hyperparameters: Mapping[str, Any], written: Iterable[str]):
    """Raise ValueError for a key of a parameter group that nothing would read.

    Args:
        sampler: name of its class.
        group: the new parameter group.
        hyperparameters: the defaults of groups.
        written: keys that the sampler itself writes.
    """
    read = {*hyperparameters, *written, *_BOOKKEEPING}
    for key, value in group.items():
        if key not in read:
            values = {**hyperparameters, **group}
            advice = _advice(sampler, key, value, set(hyperparameters), values.get("num_data"))
            raise ValueError(f"a parameter group of {sampler} has no key {key!r}{advice}")


def refuse_late(sampler: str, group: Mapping[str, Any], hyperparameters: Iterable[str]):
    """Raise ValueError for a name of torch's that training code has written into a group, and that nothing reads."""
    for key in ("weight_decay", "momentum", "betas"):
        if key in group and key not in hyperparameters and not (key == "weight_decay" and _is_zero(group[key])):
            advice = _advice(sampler, key, group[key], set(hyperparameters), group.get("num_data"))
            raise ValueError(f"a parameter group of {sampler} has been given {key!r}, which it does not read{advice}")


def _advice(sampler: str, key: str, value: Any, hyperparameters: set[str], num_data: Any = None) -> str:
    """Advice what to write instead of a name of torch's optimizers."""
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
