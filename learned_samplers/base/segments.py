"""The tensors of a model laid end to end in one flat axis, and where each begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from math import prod
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base.operations import waits_for_launches


def matrix_sides(shape: Sequence[int]) -> tuple[int, int]:
    """Rows and columns of a tensor as a matrix: its first axis and all others; of one with fewer than two, one row."""
    return (shape[0], prod(shape[1:])) if len(shape) > 1 else (1, prod(shape))


@dataclass(frozen=True)
class Segments:
    """The tensors of a model laid end to end in one flat axis.

    Args:
        lengths: number of coordinates of each tensor, in order.
        shapes: their shapes, where something depends on them.

    Raises:
        ValueError: there is no tensor, or one is empty, or a shape has another number of coordinates.
    """

    lengths: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...] | None = None
    #: d, the length of the flat axis.
    total: int = field(init=False, compare=False)
    #: Where each tensor begins, and d at the end.
    edges: tuple[int, ...] = field(init=False, compare=False)
    #: `matrix_sides` of each tensor, where the shapes are known.
    sides: tuple[tuple[int, int], ...] | None = field(init=False, compare=False, default=None)
    #: By the ``id`` of a buffer, or of a list of tensors, that stays where it is: views of it, by name.
    staying: dict[int, dict[str, Any]] = field(init=False, compare=False, default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        lengths = tuple(map(int, self.lengths))
        if not lengths or min(lengths) < 1:
            raise ValueError(f"lengths of Segments must be positive, at least one, got {self.lengths}")
        edges = tuple(accumulate(lengths, initial=0))
        for name, value in (("lengths", lengths), ("edges", edges), ("total", edges[-1])):
            object.__setattr__(self, name, value)
        if self.shapes is not None and tuple(map(prod, self.shapes)) != lengths:
            raise ValueError(f"shapes of Segments must have the lengths {lengths}, got {self.shapes}")
        object.__setattr__(self, "sides", self.shapes and tuple(map(matrix_sides, self.shapes)))

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> Segments:
        """Segments of these tensors, laid end to end."""
        shapes = [tuple(tensor.shape) for tensor in tensors]
        return cls(tuple(map(prod, shapes)), tuple(shapes))

    @property
    def matrices(self) -> tuple[tuple[int, int], ...]:
        """`matrix_sides` of each tensor.

        Raises:
            ValueError: the shapes are not known.
        """
        if self.shapes is None:
            raise ValueError("the shapes of the tensors must be known here: Segments(lengths, shapes), got none")
        return self.sides or ()

    def mean_square(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Mean of x² over each tensor, (..., d) → (..., S), in ``dtype``, by default that of x."""
        if self._at_once(x, dtype):
            return self._sums(x.square()) / constant(self.lengths, x)
        # Norms, because they need no copy of x² the size of the model.
        norms = [_norm(piece, dtype or x.dtype) for piece in x.split(self.lengths, -1)]
        return self.from_norms(torch.stack(norms, -1))

    def from_norms(self, norms: Tensor) -> Tensor:
        """Mean of x² over each tensor from its norm, (..., S)."""
        return norms.square() / constant(self.lengths, norms)

    def mean(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Mean over each tensor, (..., d) → (..., S), in ``dtype``, by default that of x."""
        if self._at_once(x, dtype):
            return self._sums(x) / constant(self.lengths, x)
        return torch.stack([_mean(piece, dtype or x.dtype) for piece in x.split(self.lengths, -1)], -1)

    def _at_once(self, x: Tensor, dtype: torch.dtype | None) -> bool:
        """Return True where the sums over all pieces of all rows are made in one call."""
        fits = dtype in (None, x.dtype) and x.dtype in (torch.float32, torch.float64) and x.numel() > 0
        offered = x.device.type in ("cpu", "cuda")  # other devices may lack the operation
        plain = not (torch.compiler.is_compiling() or (x.requires_grad and torch.is_grad_enabled()))
        return fits and offered and plain and waits_for_launches(x)

    def _sums(self, x: Tensor) -> Tensor:
        """Sums over each tensor in two launches: over pieces of it, each a block of threads, then of the pieces."""
        like = torch.empty(0, dtype=torch.int64, device=x.device)
        pieces = [(*[_PIECE] * (n // _PIECE), *([n % _PIECE] if n % _PIECE else [])) for n in self.lengths]
        sums = x.reshape(-1)
        for lengths in (tuple(chain.from_iterable(pieces)), tuple(map(len, pieces))):
            of_all_rows = constant(lengths, like).repeat(x.numel() // self.total)
            sums = torch.segment_reduce(sums, "sum", lengths=of_all_rows, unsafe=True)
        return sums.view(*x.shape[:-1], len(self.lengths))

    def expand(self, x: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
        """Each tensor's value (..., S) at its coordinates: (..., stop − start), or (..., 1) if one tensor has all."""
        stop = self.total if stop is None else stop
        first, last = self._holder(start), self._holder(stop - 1)
        if first == last:
            return x[..., first : first + 1]
        holders = range(first, last + 1)
        widths = tuple(min(self.edges[i + 1], stop) - max(self.edges[i], start) for i in holders)
        if waits_for_launches(x):
            repeats = constant(widths, torch.empty(0, dtype=torch.int64, device=x.device))
            return x.index_select(-1, first + torch.repeat_interleave(repeats, output_size=stop - start))
        pieces = [x[..., i : i + 1].expand(*x.shape[:-1], w) for i, w in zip(holders, widths, strict=True)]
        return torch.cat(pieces, -1)

    def _holder(self, position: int) -> int:
        """The tensor that holds a position, by a search that ``torch.compile`` can follow (it cannot bisect)."""
        low, high = 0, len(self.lengths)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.edges[middle] <= position else (low, middle)
        return low


# Coordinates that a block of threads adds up.
_PIECE = 1 << 16
# Coordinates that are copied in another dtype at a time.
_CHUNK = 1 << 16


def _norm(x: Tensor, dtype: torch.dtype) -> Tensor:
    if x.dtype == dtype:
        return torch.linalg.vector_norm(x, dim=-1)
    norms = [torch.linalg.vector_norm(chunk.to(dtype), dim=-1) for chunk in x.split(_CHUNK, -1)]
    return torch.linalg.vector_norm(torch.stack(norms, -1), dim=-1)


def _mean(x: Tensor, dtype: torch.dtype) -> Tensor:
    if x.dtype == dtype:
        return x.mean(-1)
    sums = [chunk.to(dtype).sum(-1) for chunk in x.split(_CHUNK, -1)]
    return torch.stack(sums, -1).sum(-1) / x.shape[-1]


# Made once a device: a copy to it at every step would wait for it.
_constants: dict[Any, Tensor] = {}


def constant(values: tuple[float, ...], like: Tensor) -> Tensor:
    key = (values, like.dtype, like.device)
    if key not in _constants:
        _constants[key] = torch.tensor(values, dtype=like.dtype, device=like.device)
    return _constants[key]
