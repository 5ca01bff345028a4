"""Few meta-parameters that stand for all the weights of a network of L2E."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from learned_samplers.learned.network import Phi
from meta_tasks.rules.learned import L2ERule

__all__ = ["L2ESubspaceRule"]


class L2ESubspaceRule(L2ERule):
    """L2E's rule whose meta-parameters w are a few numbers: the network's weights are W = W₀ + S·w.

    Evolution strategies estimate a gradient in some dozens of directions far more quietly than in a thousand. A
    subclass calls `_span` at the end of its construction.
    """

    #: What is learned, in checkpoints.
    learned: str

    def _span(self, base: Tensor, places: Tensor, numbers: Tensor, shares: Tensor) -> None:
        """W₀ (n,), and S by its entries: ``shares`` of the meta-parameters ``numbers`` at ``places`` of W."""
        self._base, self._places, self._numbers, self._shares = base, places, numbers, shares
        self.num_weights = int(numbers.max()) + 1

    def initial_weights(self, seed: int) -> Tensor:
        return torch.zeros(self.num_weights)

    def whole(self, weights: Tensor) -> Tensor:
        """The network's weights (..., n) of the meta-parameters (..., num_weights)."""
        base, shares = self._base.to(weights), self._shares.to(weights)
        numbers, places = self._numbers.to(weights.device), self._places.to(weights.device)
        return base.expand(*weights.shape[:-1], -1).index_add(-1, places, weights[..., numbers] * shares)

    def prepare(self, weights: Tensor) -> Phi:
        return super().prepare(self.whole(weights))

    def network(self, weights: Tensor) -> nn.Module:
        network = self.settings.fresh_network(self.hidden)
        nn.utils.vector_to_parameters(self.whole(weights.detach().cpu()), network.parameters())
        return network

    def specification(self) -> dict[str, Any]:
        return {**super().specification(), "learned": self.learned}
