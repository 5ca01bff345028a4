"""Small tensors of a chain laid end to end, for a sampler whose direction spans all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base.step import BLOCK_ON_CPU, blocks


class Layout:
    """Small tensors of a chain laid end to end in blocks, behind their leading axes of chains: fewer operations.

    On a CPU a block is no larger than its cache likes, on a GPU it may hold all tensors; those of several dtypes go
    one by one.
    """

    def __init__(self, params: Sequence[Tensor], batch_axes: int = 0) -> None:
        self.params, self.axes = list(params), batch_axes
        places = {(p.dtype, p.device) for p in params}
        limit = BLOCK_ON_CPU >> 3 if params[0].is_cpu else None
        self.slices = list(blocks(self.params, limit if len(places) == 1 else 1))

    def laid(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return one tensor (chains..., weights) a block."""
        flat = [x.reshape(*x.shape[: self.axes], -1) for x in tensors]
        return [torch.cat(flat[s], -1) if s.stop - s.start > 1 else flat[s.start] for s in self.slices]

    def one_each(self, numbers: Sequence[Any]) -> list[Any]:
        """A block's number, or one a weight where its tensors have several; of a number or a tensor for each tensor."""
        full = (
            [x * torch.ones_like(p) for x, p in zip(numbers, self.params, strict=True)] if len({*numbers}) > 1 else []
        )
        return self.laid(full) if full else [numbers[0]] * len(self.slices)

    def apart(self, laid: Sequence[Tensor]) -> list[Tensor]:
        """The tensors in what `laid` gave, in the shapes of the parameters."""
        tensors: list[Tensor] = []
        for block, s in zip(laid, self.slices, strict=True):
            sizes = [math.prod(p.shape[self.axes :]) for p in self.params[s]]
            pieces = zip(block.split(sizes, -1), self.params[s], strict=True)
            tensors += [piece.reshape(p.shape) for piece, p in pieces]
        return tensors
