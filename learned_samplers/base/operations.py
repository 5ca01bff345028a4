"""The few tensor operations that update rules are written in, in three forms with the same arithmetic.

A sampler's rule is one pure function of (parameter, gradient, noise, state); it is written against these operations
and never against a tensor's methods, so that the same lines run

- ``FUNCTIONAL``: out of place on tensors with any leading batch axes, differentiable (the meta-trainer, ``higher``);
- ``IN_PLACE``: in place on one tensor at a time (``foreach=False``);
- ``FOREACH``: in place on lists of tensors (``foreach=True``), bit for bit equal to the loop.

Scalars may be Python numbers or zero-dimensional tensors (a tensor learning rate never recompiles). ``combine``,
``sqrt``, ``affine``, ``mean_square`` and ``map`` return new tensors in every form; the others overwrite their first
argument in the two in-place forms.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor


class Operations(Protocol):
    """The operations of update rules. ``x``, ``y``, ``z`` are tensors or, for ``FOREACH``, lists of them."""

    def scale(self, x: Any, factor: Any) -> Any:
        """``x * factor`` with a scalar factor."""

    def add(self, x: Any, y: Any, factor: Any = 1.0) -> Any:
        """``x + factor * y`` with a scalar factor."""

    def multiply(self, x: Any, y: Any) -> Any:
        """``x * y``, coordinate by coordinate (``y`` may broadcast to ``x``)."""

    def divide(self, x: Any, y: Any) -> Any:
        """``x / y``, coordinate by coordinate."""

    def shift(self, x: Any, offset: Any) -> Any:
        """``x + offset`` with a scalar offset."""

    def combine(self, x: Any, y: Any, factor: Any = 1.0) -> Any:
        """``x + factor * y`` with a scalar factor, a new tensor."""

    def add_product(self, x: Any, y: Any, z: Any, factor: Any = 1.0) -> Any:
        """``x + factor * y * z``."""

    def add_ratio(self, x: Any, y: Any, z: Any, factor: Any = 1.0) -> Any:
        """``x + factor * y / z``."""

    def sqrt(self, x: Any) -> Any:
        """Square root, a new tensor."""

    def affine(self, x: Any, factor: Any, offset: Any) -> Any:
        """``factor * x + offset`` with scalars, a new tensor."""

    def mean_square(self, x: Any, like: Any) -> Any:
        """Mean of ``x**2`` over the axes along which ``like`` has length one, a new tensor of ``like``'s shape."""

    def at_most(self, x: Any, limit: float) -> Any:
        """The smaller of ``x`` and a number, coordinate by coordinate."""

    def map(self, function: Callable[..., Tensor], *x: Any) -> Any:
        """``function(x, y, ...)`` of one tensor each, a new tensor: for what the other operations do not have."""


def scalar_sqrt(x: Any) -> Any:
    """Square root of a number or of a zero-dimensional tensor."""
    return x.sqrt() if isinstance(x, Tensor) else math.sqrt(x)


def scalar_log10(x: Any) -> Any:
    """Decimal logarithm of a number or of a zero-dimensional tensor."""
    return x.log10() if isinstance(x, Tensor) else math.log10(x)


def _mean_square(x: Tensor, like: Tensor) -> Tensor:
    if not x.numel():
        return torch.zeros_like(like)
    reduced = [axis for axis in range(x.dim()) if like.shape[axis] == 1]
    return x.square().mean(dim=reduced, keepdim=True) if reduced else x.square()


class _Functional:
    scale: Any = staticmethod(torch.mul)
    multiply: Any = staticmethod(torch.mul)
    divide: Any = staticmethod(torch.div)
    shift: Any = staticmethod(torch.add)
    mean_square = staticmethod(_mean_square)

    def add(self, x, y, factor=1.0):
        return x + factor * y if isinstance(factor, Tensor) else torch.add(x, y, alpha=factor)

    combine = add

    def add_product(self, x, y, z, factor=1.0):
        return x + factor * y * z if isinstance(factor, Tensor) else torch.addcmul(x, y, z, value=factor)

    def add_ratio(self, x, y, z, factor=1.0):
        return x + factor * y / z if isinstance(factor, Tensor) else torch.addcdiv(x, y, z, value=factor)

    def sqrt(self, x):
        if not x.requires_grad:
            return x.sqrt()
        # The derivative at zero is infinite; a coordinate that never saw a gradient must not turn into NaN.
        some = x > 0
        return torch.where(some, torch.where(some, x, 1.0).sqrt(), 0.0)

    def affine(self, x, factor, offset):
        return x * factor + offset

    def at_most(self, x, limit):
        return x.clamp(max=limit)

    def map(self, function, *x):
        return function(*x)


class _InPlace(_Functional):
    scale = multiply = staticmethod(Tensor.mul_)
    divide, shift = staticmethod(Tensor.div_), staticmethod(Tensor.add_)

    def add(self, x, y, factor=1.0):
        return x.add_(factor * y) if isinstance(factor, Tensor) else x.add_(y, alpha=factor)

    def at_most(self, x, limit):
        return x.clamp_(max=limit)

    def add_product(self, x, y, z, factor=1.0):
        return x.add_(factor * y * z) if isinstance(factor, Tensor) else x.addcmul_(y, z, value=factor)

    def add_ratio(self, x, y, z, factor=1.0):
        return x.add_(factor * y / z) if isinstance(factor, Tensor) else x.addcdiv_(y, z, value=factor)


def _in_place(change: Callable[..., None]) -> Any:
    """A method that changes its lists of tensors in place, and gives back the first."""

    def method(self, x, *others, **factor):
        change(x, *others, **factor)
        return x

    return method


class _Foreach:
    scale = multiply = _in_place(torch._foreach_mul_)
    divide, shift = _in_place(torch._foreach_div_), _in_place(torch._foreach_add_)
    at_most = _in_place(torch._foreach_clamp_max_)
    sqrt = staticmethod(torch._foreach_sqrt)

    def add(self, x, y, factor=1.0):
        if isinstance(factor, Tensor):
            torch._foreach_add_(x, torch._foreach_mul(y, factor))
        else:
            torch._foreach_add_(x, y, alpha=factor)
        return x

    def add_product(self, x, y, z, factor=1.0):
        if isinstance(factor, Tensor):
            torch._foreach_add_(x, torch._foreach_mul(torch._foreach_mul(y, factor), z))
        else:
            torch._foreach_addcmul_(x, y, z, value=factor)
        return x

    def add_ratio(self, x, y, z, factor=1.0):
        if isinstance(factor, Tensor):
            torch._foreach_add_(x, torch._foreach_div(torch._foreach_mul(y, factor), z))
        else:
            torch._foreach_addcdiv_(x, y, z, value=factor)
        return x

    def combine(self, x, y, factor=1.0):
        if isinstance(factor, Tensor):
            return torch._foreach_add(x, torch._foreach_mul(y, factor))
        return torch._foreach_add(x, y, alpha=factor)

    def affine(self, x, factor, offset):
        return torch._foreach_add(torch._foreach_mul(x, factor), offset)

    def mean_square(self, x, like):
        return list(map(_mean_square, x, like))

    def map(self, function, *x):
        return list(map(function, *x))


FUNCTIONAL: Operations = _Functional()
IN_PLACE: Operations = _InPlace()
FOREACH: Operations = _Foreach()


def kick(
    momentum: Any,
    parameter: Any,
    gradient: Any,
    *,
    step_size: Any,
    num_data: Any,
    prior_precision: Any,
    ops: Operations,
) -> Any:
    """r ← r − ε·(N·g + λθ), the momentum after a step ε along the force."""
    momentum = ops.add(momentum, gradient, -step_size * num_data)
    pull = step_size * prior_precision
    return ops.add(momentum, parameter, -pull) if isinstance(pull, Tensor) or pull != 0 else momentum


def is_finite(value: Any) -> bool:
    """Whether a number or every element of a tensor is finite; None counts as finite."""
    return value is None or bool(torch.as_tensor(value).isfinite().all())


def as_number(value: Any) -> Any:
    """The Python number in a zero-dimensional tensor; anything else as it is."""
    return value.item() if isinstance(value, Tensor) else value
