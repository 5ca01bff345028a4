"""Collecting samples from a compiled step: an operator that passes the sampler's new weights to a collector.

``torch.compile(sampler.step, fullgraph=True)`` traces the step's hooks too, and a hook that keeps copies and writes
files cannot be traced. The operator is opaque to the compiler, which calls it once a step with the tensors as they are
after the update. It is said to change ``token``, so that it is neither dropped nor moved, and so that no CUDA graph
records it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any
from weakref import WeakMethod

import torch
from torch import Tensor

Collect = Callable[[int, bool, int, list[Tensor]], None]

_methods: dict[int, WeakMethod[Any]] = {}
_keys = count()


def register(method: Collect) -> int:
    """Register a bound method, taking (step, is sampling, cycle, tensors); returns its key for :func:`collect`."""
    key = next(_keys)
    _methods[key] = WeakMethod(method, lambda _: _methods.pop(key, None))
    return key


# Written out: older torch cannot read it off annotations that are not evaluated.
_SCHEMA = "(Tensor(a!) token, Tensor[] tensors, SymInt key, SymInt step, bool sampling, SymInt cycle) -> ()"


@torch.library.custom_op("learned_samplers::collect", mutates_args=("token",), schema=_SCHEMA)
def collect(token: Tensor, tensors: list[Tensor], key: int, step: int, sampling: bool, cycle: int) -> None:
    """Call the method registered under ``key``."""
    method = _methods[key]() if key in _methods else None
    if method is not None:
        method(step, sampling, cycle, tensors)


@collect.register_fake
def _(token: Tensor, tensors: list[Tensor], key: int, step: int, sampling: bool, cycle: int) -> None:
    return None
