"""Converter between the parametrisations of stochastic gradient MCMC that papers and libraries use."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from learned_samplers.base import validation

#: Names of each parametrisation's quantities; see `convert`.
PARAMETRISATIONS: dict[str, tuple[str, ...]] = {
    "learned_samplers": ("lr", "momentum_decay", "temperature", "prior_precision"),
    "torch_sgd": ("lr", "momentum", "weight_decay", "temperature"),
    "welling_teh": ("step_size", "temperature", "prior_precision"),
    "chen": ("learning_rate", "momentum_decay", "temperature", "prior_precision"),
    "ma": ("step_size", "friction", "temperature", "prior_precision"),
    "l2e": ("step_size", "momentum_decay", "temperature", "prior_precision"),
}
#: From the step of each parametrisation and N to lr, and back.
_LR: dict[str, tuple[Callable[[float, float], float], Callable[[float, float], float]]] = {
    "learned_samplers": (lambda step, n: step, lambda lr, n: lr),
    "torch_sgd": (lambda step, n: step, lambda lr, n: lr),
    "welling_teh": (lambda step, n: step * n / 2, lambda lr, n: 2 * lr / n),
    "chen": (lambda step, n: step * n, lambda lr, n: lr / n),
    "ma": (lambda step, n: step**2 * n, lambda lr, n: math.sqrt(lr / n)),
    "l2e": (lambda step, n: step * n, lambda lr, n: lr / n),
}


def convert(source: str, target: str, *, num_data: float, **values: float) -> dict[str, float]:
    """Translate settings of one parametrisation into another; the chains they describe are the same.

    With N = ``num_data``, our lr and momentum decay a, and λ the prior precision:

    - "learned_samplers": lr, momentum_decay a, temperature T, prior_precision λ
    - "torch_sgd": lr, momentum μ = 1 − a, weight_decay = λ/N (on the mean loss); noise added at temperature T
    - "welling_teh": SGLD θ ← θ − (s/2)·∇Ũ + N(0, s); step_size s = 2·lr/N
    - "chen": SGHMC Δv = −η∇Ũ − αv + N(0, 2αη); learning_rate η = lr/N, momentum_decay α = a
    - "ma": SGHMC in (θ, r) with step ε and friction C; step_size ε = √(lr/N), friction C = a/ε
    - "l2e": Table 14's h = ε² = lr/N; step_size h, momentum_decay a

    Args:
        source, target: keys of `PARAMETRISATIONS`.
        num_data: N > 0.
        **values: the source's quantities. The step is required; of the others momentum decay and friction may be left
            out (then the target has none either), T is 1 and λ (or the weight decay) 0 by default.

    Returns:
        The target's quantities by name.

    Raises:
        ValueError, TypeError: an unknown parametrisation, a quantity it does not have, or a value out of range.
    """
    validation.one_of("source", source, PARAMETRISATIONS)
    validation.one_of("target", target, PARAMETRISATIONS)
    validation.number_of_data(num_data)
    for name, value in values.items():
        validation.one_of(f"a quantity of {source!r}", name, PARAMETRISATIONS[source])
        validation.number(name, value)
    step = PARAMETRISATIONS[source][0]
    if step not in values:
        raise ValueError(f"{step} must be given for {source!r}")
    validation.positive(step, values[step])
    for name in {"temperature", "prior_precision", "weight_decay"} & set(values):
        validation.non_negative(name, values[name])
    ours = _to_ours(source, num_data, values)
    if (decay := ours.get("momentum_decay")) is not None:
        validation.fraction(f"momentum_decay that {source!r} implies", decay, open_left=True)
        if target == "welling_teh" and decay != 1:
            raise ValueError(f"{target!r} has no momentum, and {source!r} has momentum decay {decay:g}")
    return {k: v for k, v in _from_ours(target, num_data, ours).items() if v is not None}


def _to_ours(source: str, n: float, values: dict[str, float]) -> dict[str, Any]:
    step = values[PARAMETRISATIONS[source][0]]
    decay = values.get("momentum_decay")
    if "momentum" in values:
        decay = 1 - values["momentum"]
    elif "friction" in values:
        decay = values["friction"] * step
    return {
        "lr": _LR[source][0](step, n),
        "momentum_decay": decay,
        "temperature": values.get("temperature", 1.0),
        "prior_precision": values.get("prior_precision", values.get("weight_decay", 0.0) * n),
    }


def _from_ours(target: str, n: float, ours: dict[str, Any]) -> dict[str, Any]:
    names, decay = PARAMETRISATIONS[target], ours["momentum_decay"]
    step = _LR[target][1](ours["lr"], n)
    values = {
        **ours,
        names[0]: step,
        "momentum": None if decay is None else 1 - decay,
        "friction": None if decay is None else decay / step,
        "weight_decay": ours["prior_precision"] / n,
    }
    return {name: values[name] for name in names}
