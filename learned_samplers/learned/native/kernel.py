"""Calls kernel.cpp: the running averages of a chain, and a small network at every weight, on tensors where they lie.

Whether compiled code or torch computes is decided by `takes` alone.
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
from learned_samplers.learned.features import FLOOR, LOG_SCALE, TINY, FeatureSet, context_of
from learned_samplers.learned.native.library import ENVIRONMENT_VARIABLE, Call, load

__all__ = ["ENVIRONMENT_VARIABLE", "CompiledChain", "native_library", "takes", "value_and_slopes"]

_MOST_WIDTH, _MOST_LAYERS, _MOST_OUTPUTS = 64, 5, 4

#: Layers of a network, (weight (..., out, in), bias (..., out)) each.
Layers = Sequence[tuple[Tensor, Tensor]]


_lock = threading.Lock()
_loaded: list[ctypes.CDLL | None] = []


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
    """Whether the compiled code takes these tensors and this network.

    It needs contiguous float32 on a CPU without gradients, up to five layers of at most 64 units, tensors that are
    whole in this process, no tracing, and the library.
    """
    if torch.compiler.is_compiling() or (segments is not None and type(segments) is not Segments):
        return False
    given = [x for x in tensors if x is not None]
    everything = [*given, *[part for layer in phi for part in layer]]
    # Sets of what there is, at the speed of C, for a step looks at some hundred tensors.
    if not (set(map(type, everything)) <= _PLAIN and set(map(_dtype, everything)) == {torch.float32}):
        return False
    if not (all(map(_on_cpu, everything)) and all(map(Tensor.is_contiguous, given))):
        return False
    if torch.is_grad_enabled() and any(map(_needs_gradient, everything)):
        return False
    units = [weight.shape[-2] for weight, _ in phi]
    fits = len(phi) <= _MOST_LAYERS and units[-1] <= _MOST_OUTPUTS and max(units) <= _MOST_WIDTH
    return fits and everything[0].numel() > 0 and native_library() is not None


class CompiledChain:
    """A chain's averages and the network on it by compiled code; `features.Scales` is the same in torch.

    The averages are updated in place.

    Args:
        parameter, gradient: (..., d), contiguous.
        averages: (..., K, d), or (K, ...) for each tensor.
        others: as of `features.features`.
    """

    #: The matrix direction of every tensor, (..., rows, columns), of a set that has one.
    direction: Sequence[Tensor] = ()

    def __init__(
        self,
        parameter: Tensor,
        gradient: Tensor,
        averages: Tensor | Sequence[Tensor],
        segments: Segments,
        named: FeatureSet,
        *,
        lr: Any,
        num_data: Any,
        step: int,
        total_steps: int | None,
    ):
        self.parameter, self.gradient, self.averages = parameter, gradient, averages
        self.named, self.segments, self.total_steps = named, segments, total_steps
        # Only the context has them; without one they may be tensors with a row for each member.
        self.lr, self.num_data = (float(lr), float(num_data)) if named.context else (lr, num_data)
        self.time = step + 1
        members = prod(parameter.shape[:-1])
        if isinstance(averages, Tensor):
            d = segments.total
            starts = averages.data_ptr() + _offsets(members, segments.lengths, averages.shape[-2] * d)
            strides: Any = d
        else:
            starts = np.fromiter(map(Tensor.data_ptr, averages), np.int64, len(averages))
            strides = np.array(segments.lengths)
        self.rows = [starts + 4 * k * strides for k in range(named.num_averages)]
        call, decays = Call(plain=2), named.average_decays + named.second_moment_decays
        call.averages, call.seconds = len(named.average_decays), len(named.second_moment_decays)
        call.average_weight[: len(decays)] = [1 - d for d in decays]
        torch.autograd.graph.increment_version(averages)  # as torch does where it writes in place
        means = _means(call, (gradient, parameter), segments, starts, strides)
        self.mean_squares, self.mean_seconds = np.split(means, [2 + call.averages], -2)

    @np.errstate(all="ignore")  # what overflows is noticed at the end of the step
    def outputs(self, layers: Layers, gated: bool, momentum: Tensor) -> tuple[Tensor, ...]:
        """The outputs of the network in ``layers``, (..., d) each; ``gated`` is for the last one but the gate."""
        named, call, momentum = self.named, Call(), momentum.contiguous()
        k = len(named.average_decays)
        square = _means(Call(plain=1), (momentum,), self.segments)
        every = [self.mean_squares[..., :2, :], square, self.mean_squares[..., 2:, :]]
        factors = 1 / np.sqrt(np.concatenate(every, -2) + FLOOR)
        context = logs = None
        if named.adaptive:
            call.ratios, call.logs = 1 + len(named.ratio_decays), len(named.second_moment_decays)
            call.ratio_row[: call.ratios] = [0, *[3 + named.average_decays.index(d) for d in named.ratio_decays]]
            call.ratio_factor[: call.ratios] = [1.0, *[1 / (1 - d**self.time) for d in named.ratio_decays]]
            call.second_factor = 1 / (1 - named.second_moment_decays[0] ** self.time)
            logs = 1 / (self.mean_seconds + TINY)
            run: dict[str, Any] = dict(lr=self.lr, num_data=self.num_data, time=self.time, total_steps=self.total_steps)
            squares, constants = context_of(named, self.mean_squares, square, **run)
            magnitudes = np.concatenate(squares, -2)
            rest = np.empty((len(named.context) - magnitudes.shape[-2], square.shape[-1]))
            rest[0] = _sizes(self.segments.lengths)
            rest[1 : 1 + len(constants)] = np.array(constants)[:, None]
            if named.matrix:
                rest[-1] = [min(sides) > 1 for sides in self.segments.matrices]
            lead = (*square.shape[:-2], *rest.shape)
            context = np.concatenate([0.5 * LOG_SCALE * np.log(magnitudes), np.broadcast_to(rest, lead)], -2)
        rows = [self.gradient, self.parameter, momentum, *self.rows[:k]]
        rows += [self.direction] if self.direction else []
        how: dict[str, Any] = dict(seconds=self.rows[k:], factors=factors, context=context, logs=logs, gated=gated)
        return _network(call, layers, rows, self.segments, **how).unbind()


def value_and_slopes(phi: Layers, rows: Sequence[Tensor], wanted: Sequence[int]) -> tuple[Tensor, ...]:
    """The output of a network with one, and its derivatives in the ``wanted`` inputs, (..., d) each.

    Args:
        phi: with the leading axes of the rows, or none.
        rows: the network's inputs, (..., d) each, contiguous.
    """
    call = Call(slopes=len(wanted))
    call.slope_input[: len(wanted)] = wanted
    segments = Segments((rows[0].shape[-1],))
    return _network(call, phi, list(rows), segments).unbind()


@np.errstate(all="ignore")
def _means(call: Call, plain: Sequence[Tensor], segments: Segments, averages: Any = 0, strides: Any = 0) -> np.ndarray:
    """Means over each tensor of the squares of ``plain`` and the averages, and of averages of squares, (..., n, S)."""
    lead = plain[0].shape[:-1]
    offsets, lengths = _offsets(prod(lead), segments.lengths), _lengths(prod(lead), segments.lengths)
    table = np.empty((len(offsets), call.plain + 3), np.int64)
    for k, row in enumerate(plain):
        table[:, k] = row.data_ptr() + offsets
    table[:, -3], table[:, -2], table[:, -1] = averages, strides, lengths
    totals = np.zeros((len(table), call.plain + call.averages + call.seconds))
    call.threads = torch.get_num_threads()
    if native_library().sums(ctypes.addressof(call), table.ctypes.data, len(table), totals.ctypes.data):
        raise MemoryError("the compiled network ran out of memory")
    return (totals / lengths[:, None]).reshape(*lead, -1, totals.shape[-1]).swapaxes(-1, -2)


@np.errstate(all="ignore")
def _network(
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
    """Outputs and slopes (n, ..., d) of a network with inputs ``rows``, those made of ``seconds``, and ``context``.

    ``factors`` of the first rows, ``context`` and ``logs`` are of every tensor, (..., n, S).
    """
    like = rows[0]
    lead, units = like.shape[:-1], [weight.shape[-2] for weight, _ in layers]
    members, heads = prod(lead), units[-1] - gated
    offsets = _offsets(members, segments.lengths)
    call.layers, call.rows, call.outputs, call.gated = len(layers), len(rows), units[-1], gated
    call.widths[: 1 + len(units)] = [len(rows) + call.ratios + call.logs, *units]
    call.threads = torch.get_num_threads()
    found = like.new_empty((heads + call.slopes, *lead, like.shape[-1]))
    size = 4 * members * like.shape[-1]
    written = [found.data_ptr() + size * k + offsets for k in range(len(found))]
    addresses: list[Any] = []
    for row in rows:  # addresses already, a flat buffer, or a tensor for each segment
        if isinstance(row, Sequence):
            starts = np.fromiter(map(Tensor.data_ptr, row), np.int64, len(row))
            row = (starts + 4 * np.arange(members)[:, None] * np.array(segments.lengths)).ravel()
        addresses.append(row.data_ptr() + offsets if isinstance(row, Tensor) else row)
    everything = [*addresses, *seconds, *written]
    if gated:
        everything.insert(len(rows) + len(seconds) + heads, 0)
    table = np.empty((len(offsets), len(everything) + 2), np.int64)
    for k, column in enumerate(everything):
        table[:, k] = column
    table[:, -2] = _lengths(members, segments.lengths)
    own = layers[0][0].dim() > 2
    table[:, -1] = np.repeat(np.arange(members), len(segments.lengths)) if own else 0
    plain = [(w.contiguous(), b.contiguous()) for w, b in layers]
    sizes = [(w.shape[-2] * w.shape[-1], b.shape[-1]) if own else (0, 0) for w, b in plain]
    network = np.array([(w.data_ptr(), b.data_ptr(), *s) for (w, b), s in zip(plain, sizes, strict=True)], np.int64)
    # A row for each piece.
    given = [
        None if x is None else np.ascontiguousarray(x.swapaxes(-1, -2), np.float32) for x in (factors, context, logs)
    ]
    call.scaled, call.context = [0 if x is None else x.shape[-1] for x in given[:2]]
    failed = native_library().network(
        ctypes.addressof(call),
        table.ctypes.data,
        len(table),
        *[None if x is None else x.ctypes.data for x in given],
        network.ctypes.data,
        members if own else 1,
    )
    if failed:
        raise MemoryError("the compiled network ran out of memory")
    return found


@lru_cache(maxsize=256)
def _offsets(members: int, lengths: tuple[int, ...], stride: int | None = None) -> np.ndarray:
    """Bytes from the begin of a flat buffer to each tensor of each member, ``stride`` numbers from one to the next."""
    member = np.arange(members)[:, None] * (sum(lengths) if stride is None else stride)
    return (4 * (member + np.cumsum([0, *lengths[:-1]]))).ravel()


@lru_cache(maxsize=256)
def _lengths(members: int, lengths: tuple[int, ...]) -> np.ndarray:
    return np.tile(np.array(lengths, np.int64), members)


@lru_cache(maxsize=256)
def _sizes(lengths: tuple[int, ...]) -> np.ndarray:
    """The feature "log_size"."""
    return np.log10(np.array(lengths)) / 3 - 1
