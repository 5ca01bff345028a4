"""The one door to kernel.cpp: the running averages of a chain, and a small network at every weight.

It works on tensors where they lie, and knows addresses and lengths, not what they mean. `takes` alone decides between
compiled code and torch.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from learned_samplers.base.segments import Segments
from learned_samplers.learned.native.library import ENVIRONMENT_VARIABLE, Call, load

__all__ = [
    "ENVIRONMENT_VARIABLE",
    "Call",
    "means",
    "native_library",
    "network",
    "takes",
    "value_and_slopes",
]

_MOST_WIDTH, _MOST_LAYERS, _MOST_OUTPUTS = 64, 5, 4

#: Layers of a network, (weight (..., out, in), bias (..., out)) each.
Layers = Sequence[tuple[Tensor, Tensor]]


_lock = threading.Lock()
_loaded: list[Any] = []


def native_library() -> Any:
    """The compiled library, once a process; None if it is turned off or cannot be compiled."""
    if os.environ.get(ENVIRONMENT_VARIABLE) == "0":
        return None
    if not _loaded:
        with _lock:
            if not _loaded:
                _loaded.append(load())
    return _loaded[0]


_PLAIN = {Tensor, torch.nn.Parameter}
_on_cpu, _dtype, _needs_gradient = attrgetter("is_cpu"), attrgetter("dtype"), attrgetter("requires_grad")


def takes(phi: Layers, tensors: Sequence[Tensor | None], segments: Segments | None = None) -> bool:
    """Return True where the compiled code takes these tensors and this network.

    It needs contiguous float32 on a CPU without gradients, up to five layers of at most 64 units, tensors that are
    whole in this process, no tracing, and the library.
    """
    if torch.compiler.is_compiling() or (segments is not None and type(segments) is not Segments):
        return False
    present = [x for x in tensors if x is not None]
    looked_at = [*present, *[part for layer in phi for part in layer]]
    # Sets at the speed of C, for a step looks at some hundred tensors.
    if not (set(map(type, looked_at)) <= _PLAIN and set(map(_dtype, looked_at)) == {torch.float32}):
        return False
    if not (all(map(_on_cpu, looked_at)) and all(map(Tensor.is_contiguous, present))):
        return False
    if torch.is_grad_enabled() and any(map(_needs_gradient, looked_at)):
        return False
    units = [weight.shape[-2] for weight, _ in phi]
    fits = len(phi) <= _MOST_LAYERS and units[-1] <= _MOST_OUTPUTS and max(units) <= _MOST_WIDTH
    return fits and looked_at[0].numel() > 0 and native_library() is not None


def value_and_slopes(phi: Layers, rows: Sequence[Tensor], wanted: Sequence[int]) -> tuple[Tensor, ...]:
    """The output of a network with one, and its derivatives in the ``wanted`` inputs, (..., d) each.

    Args:
        phi: with the leading axes of the rows, or none.
        rows: the network's inputs, (..., d) each, contiguous.
    """
    call = Call(slopes=len(wanted))
    call.slope_input[: len(wanted)] = wanted
    segments = Segments((rows[0].shape[-1],))
    return network(call, phi, list(rows), segments).unbind()


@np.errstate(all="ignore")
def means(
    plain: Sequence[Tensor],
    segments: Segments,
    averages: Tensor | Sequence[Tensor] | None = None,
    decays: tuple[Sequence[float], Sequence[float]] = ((), ()),
) -> tuple[list[np.ndarray], np.ndarray]:
    """Mean squares over each tensor, of running averages too, which are first updated in place.

    Args:
        plain: (..., d) each, contiguous; the averages are of the first one and of its square.
        segments: the tensors.
        averages: (..., K, d), or (K, ...) for each tensor.
        decays: d of the averages of the first of ``plain``, and of those of its square.

    Returns:
        Addresses of the averages, a row for each; and means over each tensor of the squares of ``plain`` and of its
        averages, and of the averages of the square, (..., n, S).
    """
    lead, every = plain[0].shape[:-1], (*decays[0], *decays[1])
    members = prod(lead)
    offsets, lengths = _offsets(members, segments.lengths), _lengths(members, segments.lengths)
    call = Call(plain=len(plain), averages=len(decays[0]), seconds=len(decays[1]), threads=torch.get_num_threads())
    call.average_weight[: len(every)] = [1 - d for d in every]
    starts: Any = 0
    strides: Any = 0
    if isinstance(averages, Tensor):
        starts = averages.data_ptr() + _offsets(members, segments.lengths, averages.shape[-2] * segments.total)
        strides = segments.total
    elif averages is not None:
        starts = np.fromiter(map(Tensor.data_ptr, averages), np.int64, len(averages))
        strides = np.array(segments.lengths)
    table = np.empty((len(offsets), call.plain + 3), np.int64)
    for k, row in enumerate(plain):
        table[:, k] = row.data_ptr() + offsets
    table[:, -3], table[:, -2], table[:, -1] = starts, strides, lengths
    totals = np.zeros((len(table), call.plain + len(every)))
    if averages is not None:
        torch.autograd.graph.increment_version(averages)  # as torch does where it writes in place
    library = _loaded[0] if _loaded else native_library()
    if library.sums(ctypes.addressof(call), table.ctypes.data, len(table), totals.ctypes.data):
        raise MemoryError("the compiled network ran out of memory")
    rows = [starts + 4 * k * strides for k in range(len(every))]
    return rows, (totals / lengths[:, None]).reshape(*lead, -1, totals.shape[-1]).swapaxes(-1, -2)


def network(
    call: Call,
    layers: Layers,
    rows: Sequence[Any],
    segments: Segments,
    *,
    gated: bool = False,
    seconds: Sequence[np.ndarray] = (),
    factors: np.ndarray | None = None,
    context: np.ndarray | None = None,
    logs: np.ndarray | None = None,
) -> Tensor:
    """Outputs and slopes (n, ..., d) of a network on every coordinate.

    Args:
        call: ratios, logarithms and slopes that are wanted; all else is filled in.
        layers: of the network, with the leading axes of the rows, or none.
        rows: inputs: flat buffers (..., d), addresses of each tensor, or a tensor for each segment.
        segments: the tensors.
        gated: whether the last output but one is multiplied by exp of the last, which is then not given.
        seconds: addresses of the averages of squares that ratios and logarithms are made of.
        factors, context, logs: factors of the first rows, further inputs, and factors of the averages of squares before
            their logarithm: of every tensor, (..., n, S).
    """
    like = rows[0]
    lead, units = like.shape[:-1], [weight.shape[-2] for weight, _ in layers]
    members, total, heads = prod(lead), like.shape[-1], units[-1] - gated
    offsets = _offsets(members, segments.lengths)
    call.layers, call.rows, call.outputs, call.gated = len(layers), len(rows), units[-1], gated
    call.widths[: 1 + len(units)] = [len(rows) + call.ratios + call.logs, *units]
    call.threads = torch.get_num_threads()
    result = like.new_empty((heads + call.slopes, *lead, total))
    begin = result.data_ptr()
    written = [begin + 4 * members * total * k + offsets for k in range(heads + call.slopes)]
    columns: list[Any] = []
    for row in rows:  # addresses already, a flat buffer, or a tensor for each segment
        if type(row) in _PLAIN:
            row = row.data_ptr() + offsets
        elif type(row) is not np.ndarray:
            starts = np.fromiter(map(Tensor.data_ptr, row), np.int64, len(row))
            row = (starts + 4 * np.arange(members)[:, None] * np.array(segments.lengths)).ravel()
        columns.append(row)
    columns += [*seconds, *written]
    if gated:
        columns.insert(len(rows) + len(seconds) + heads, 0)
    table = np.empty((len(offsets), len(columns) + 2), np.int64)
    for k, column in enumerate(columns):
        table[:, k] = column
    table[:, -2] = _lengths(members, segments.lengths)
    by_member = layers[0][0].dim() > 2
    table[:, -1] = np.repeat(np.arange(members), len(segments.lengths)) if by_member else 0
    plain = [(w.contiguous(), b.contiguous()) for w, b in layers]
    sizes = [(w.shape[-2] * w.shape[-1], b.shape[-1]) if by_member else (0, 0) for w, b in plain]
    weights = np.array([(w.data_ptr(), b.data_ptr(), *s) for (w, b), s in zip(plain, sizes, strict=True)], np.int64)
    # A row for each piece.
    of_tensors = [
        None if x is None else np.ascontiguousarray(x.swapaxes(-1, -2), np.float32) for x in (factors, context, logs)
    ]
    call.scaled, call.context = [0 if x is None else x.shape[-1] for x in of_tensors[:2]]
    library = _loaded[0] if _loaded else native_library()
    failed = library.network(
        ctypes.addressof(call),
        table.ctypes.data,
        len(table),
        *[None if x is None else x.ctypes.data for x in of_tensors],
        weights.ctypes.data,
        members if by_member else 1,
    )
    if failed:
        raise MemoryError("the compiled network ran out of memory")
    return result


@lru_cache(maxsize=256)
def _offsets(members: int, lengths: tuple[int, ...], stride: int | None = None) -> np.ndarray:
    """Bytes from the begin of a flat buffer to each tensor of each member, ``stride`` numbers from one to the next."""
    member = np.arange(members)[:, None] * (sum(lengths) if stride is None else stride)
    return (4 * (member + np.cumsum([0, *lengths[:-1]]))).ravel()


@lru_cache(maxsize=256)
def _lengths(members: int, lengths: tuple[int, ...]) -> np.ndarray:
    return np.tile(np.array(lengths, np.int64), members)
