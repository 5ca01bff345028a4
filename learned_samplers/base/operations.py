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
from typing import Any

import torch
from torch import Tensor


def waits_for_launches(x: Tensor) -> bool:
    """Return whether many small operations on this tensor cost more than one large one: on all devices but CPUs."""
    return not x.is_cpu


def scalar_sqrt(x: Any) -> Any:
    """Square root of a number or of a zero-dimensional tensor."""
    return x.sqrt() if isinstance(x, Tensor) else math.sqrt(x)


def _mean_square(x: Tensor, like: Tensor) -> Tensor:
    if not x.numel():
        return torch.zeros_like(like)
    reduced = [axis for axis in range(x.dim()) if like.shape[axis] == 1]
    return x.square().mean(dim=reduced, keepdim=True) if reduced else x.square()


class Operations:
    """The operations of update rules; this form is out of place (``FUNCTIONAL``), and the others give the same numbers.

    With tensors x, y, z (lists of them for ``FOREACH``) and scalars factor and offset:

        scale(x, factor)                x·factor
        shift(x, offset)                x + offset
        add(x, y, factor=1)             x + factor·y
        multiply(x, y), divide(x, y)    x·y, x/y, coordinate by coordinate; y may broadcast to x
        add_product(x, y, z, factor=1)  x + factor·y·z
        add_ratio(x, y, z, factor=1)    x + factor·y/z
        at_most(x, limit)               min(x, limit)
        combine(x, y, factor=1)         x + factor·y, a new tensor
        affine(x, factor, offset)       factor·x + offset, a new tensor
        sqrt(x)                         √x, a new tensor
        mean_square(x, like)            mean of x² over the axes along which ``like`` has length one, in its shape
        map(function, *x)               function(x, y, ...) of one tensor each, new: for what there is no other for
    """

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
        positive = x > 0
        return torch.where(positive, torch.where(positive, x, 1.0).sqrt(), 0.0)

    def affine(self, x, factor, offset):
        return x * factor + offset

    def at_most(self, x, limit):
        return x.clamp(max=limit)

    def map(self, function, *x):
        return function(*x)


class _InPlace(Operations):
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


class _Foreach(Operations):
    scale = multiply = _in_place(torch._foreach_mul_)
    divide, shift = _in_place(torch._foreach_div_), _in_place(torch._foreach_add_)
    at_most = _in_place(torch._foreach_clamp_max_)
    sqrt: Any = staticmethod(torch._foreach_sqrt)

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


FUNCTIONAL = Operations()
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
    """Return whether a number or every element of a tensor is finite; None counts as finite."""
    return value is None or bool(torch.as_tensor(value).isfinite().all())


def as_number(value: Any) -> Any:
    """The Python number in a zero-dimensional tensor; anything else as it is."""
    return value.item() if isinstance(value, Tensor) else value
