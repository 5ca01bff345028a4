"""Copies of a batched network whose weights all have the scale of one, for a prior N(0, I) on them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from meta_tasks.networks import BatchedNetwork


class StackedNetwork:
    """P copies of a network, in one tensor w (P, d): its parameters are scale·w + offset.

    A subclass fills `scale`, and `offset` where that is not zero.
    """

    def __init__(self, network: BatchedNetwork):
        self.network = network
        count = sum(network.segments.lengths)
        # In double precision for networks in double precision; each is rounded to that of the weights.
        self.scale = torch.ones(count, dtype=torch.double)
        self.offset: Tensor | None = None

    def views(self, values: Tensor) -> dict[str, Tensor]:
        """One number a parameter, (d,), by the parameters' names."""
        return {name: value[0] for name, value in self.network.views(values[None]).items()}

    def draw(self, count: int, *, generator: torch.Generator | None = None) -> list[Tensor]:
        """Weights of so many networks from N(0, 1)."""
        return [torch.randn(count, len(self.scale), generator=generator)]

    def __call__(self, params: Sequence[Tensor], inputs: Tensor) -> Tensor:
        """Outputs (P, n, C).

        Args:
            params: w, as from `draw`.
            inputs: of a group of networks, (G, n, ...): the first P/G networks get the first of these, and so on.
        """
        w = params[0]
        weights = self.scale.to(w) * w
        return self.network.logits(weights if self.offset is None else weights + self.offset.to(w), inputs)
