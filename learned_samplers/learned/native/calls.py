"""What every call of the compiled code has: tensors that it can take, and the network's layers."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from math import prod
from operator import attrgetter

import numpy as np
import torch
from torch import Tensor

from learned_samplers.learned.network import Phi

__all__ = [
    "addresses",
    "are_plain",
    "call_with_network",
    "contiguous_rows",
    "lengths_of",
    "own_networks",
    "widths_of",
    "write_back",
]

_PLAIN = {Tensor, torch.nn.Parameter}
_on_cpu, _dtype, _needs_gradient = attrgetter("is_cpu"), attrgetter("dtype"), attrgetter("requires_grad")


def are_plain(phi: Phi, tensors: Sequence[Tensor | None], dtype: torch.dtype = torch.float32) -> bool:
    """Whether all are of that precision on a CPU, none needs a gradient, and nothing is being traced."""
    if torch.compiler.is_compiling():
        return False
    everything = [x for x in (*tensors, *(part for layer in phi for part in layer)) if x is not None]
    # Sets of what there is, at the speed of C, for a step looks at some hundred tensors.
    plain = set(map(type, everything)) <= _PLAIN and set(map(_dtype, everything)) <= {dtype}
    if not plain or not all(map(_on_cpu, everything)):
        return False
    return not (torch.is_grad_enabled() and any(map(_needs_gradient, everything)))


def addresses(tensors: Sequence[Tensor]) -> np.ndarray:
    """Where each begins in memory."""
    return np.fromiter(map(Tensor.data_ptr, tensors), np.int64, len(tensors))


def lengths_of(tensors: Sequence[Tensor]) -> np.ndarray:
    """The number of elements of each."""
    return np.fromiter(map(Tensor.numel, tensors), np.int64, len(tensors))


def contiguous_rows(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """The tensors themselves, or copies of those with another memory layout (channels_last)."""
    return tensors if all(map(Tensor.is_contiguous, tensors)) else [x.contiguous() for x in tensors]


def write_back(tensors: Sequence[Tensor], rows: Sequence[Tensor]) -> None:
    """Write into the tensors what has become of their `contiguous_rows`, where these are copies."""
    if tensors is not rows:
        for old, new in zip(tensors, rows, strict=True):
            if old is not new:
                old.copy_(new)


def widths_of(phi: Phi) -> tuple[int, ...]:
    """The network's inputs, then the units of each layer."""
    return (phi[0][0].shape[-1], *(weight.shape[-2] for weight, _ in phi))


def own_networks(phi: Phi, members: int) -> bool:
    """Whether each of several members has its own network in ``phi``, and not all the same one.

    Raises:
        ValueError: there are neither as many networks as members nor one.
    """
    networks = prod(phi[0][0].shape[:-2])
    if networks not in (1, members):
        raise ValueError(f"phi must have one network or {members}, one for each member, got {networks}")
    return networks > 1


def call_with_network(function: Callable[..., int], settings: ctypes.Structure, pieces: np.ndarray, phi: Phi) -> None:
    """Call the compiled function on pieces (rows of addresses and numbers) with one network, or one for each member.

    Raises:
        MemoryError: it ran out of memory.
    """
    plain = [(weight.contiguous(), bias.contiguous()) for weight, bias in phi]
    *lead, _, _ = plain[0][0].shape
    sizes = [(w.shape[-2] * w.shape[-1], b.shape[-1]) if lead else (0, 0) for w, b in plain]
    rows = [(w.data_ptr(), b.data_ptr(), *size) for (w, b), size in zip(plain, sizes, strict=True)]
    table, members = np.array(rows, np.int64), prod(lead)
    if function(ctypes.addressof(settings), pieces.ctypes.data, len(pieces), table.ctypes.data, members):
        raise MemoryError("the compiled update ran out of memory")
