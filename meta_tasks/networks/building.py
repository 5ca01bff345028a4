"""Shared parts of the architectures: activation functions, and the validation of shapes and options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from torch import nn

from learned_samplers.base import validation

__all__ = ["ACTIVATIONS", "InputShape", "called", "check_call", "check_size", "is_count"]

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
}
#: (C, H, W) of one image.
InputShape = tuple[int, int, int]
Builders = Mapping[str, Callable[..., nn.Module]]


def called(builders: Builders, name: str) -> Callable[..., nn.Module]:
    """The builder of that name; ValueError if there is none."""
    if name not in builders:
        raise ValueError(f"name={name!r} is not an architecture; choose one of {', '.join(builders)}")
    return builders[name]


def check_call(name: str, builder: Callable[..., nn.Module], num_classes: int, options: Mapping[str, object]) -> None:
    """Refuse fewer than two classes, and options that the builder does not have (ValueError, TypeError)."""
    validation.integer("num_classes", num_classes, least=2)
    options_there = [p.name for p in inspect.signature(builder).parameters.values() if p.kind is p.KEYWORD_ONLY]
    if unknown := [option for option in options if option not in options_there]:
        raise TypeError(f"{name} has no option {', '.join(unknown)}; it has {', '.join(options_there) or 'none'}")


def is_count(value: object) -> bool:
    """True for a positive integer."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def check_size(name: str, input_shape: InputShape, smallest: int) -> None:
    """Raise ValueError for images smaller than the architecture needs."""
    _, height, width = input_shape
    if min(height, width) < smallest:
        raise ValueError(
            f"input_shape={input_shape} is too small for {name}, which needs {smallest}×{smallest} pixels or more; "
            f"load the images larger (size={smallest})"
        )
