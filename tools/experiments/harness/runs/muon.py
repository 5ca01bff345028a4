"""Optimizers that move whole matrices, with Adam beside them: the strongest plain ones of the comparisons.

torch's own Muon takes no convolutions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from learned_samplers.base.matrices import all_whitened, orthogonal, renew_roots_, state_shape, update_covariances_

# The root mean square of a step is this times lr, as Adam's usually is (Liu et al., Muon is scalable, 2025).
_SCALE = 0.2


class Muon(torch.optim.Optimizer):
    """Steps along the orthogonal factor of each matrix's momentum; biases and the like are Adam's.

    With m ← d·m + (1−d)·(g + wd·θ) and U·S·Vᵀ the Nesterov momentum d·m + (1−d)·g of a tensor as a matrix with a row
    for each output: θ ← θ − lr·0.2·√(longer side)·U·Vᵀ. (K. Jordan et al., Muon, 2024; U·Vᵀ by five Newton–Schulz
    iterations.) Tensors with fewer than two axes: Adam, β = (d, 0.99).
    """

    def __init__(self, params: Any, lr: float, momentum: float = 0.9, weight_decay: float = 0.0) -> None:
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))
        vectors = [
            {**group, "params": [p for p in group["params"] if p.ndim < 2], "betas": (group["momentum"], 0.99)}
            for group in self.param_groups
        ]
        vectors = [group for group in vectors if group["params"]]
        self._adam = torch.optim.Adam(vectors) if vectors else None

    def _directions(self, params: list[Tensor], ahead: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
        """Direction of each matrix, from its Nesterov momentum; root mean square 1."""
        return orthogonal(ahead)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            share, ahead, gradients = 1 - group["momentum"], [], []
            matrices = [p for p in group["params"] if p.ndim >= 2 and p.grad is not None]
            for p in matrices:
                gradient = p.grad.add(p, alpha=group["weight_decay"])
                kept = self.state[p].setdefault("momentum", torch.zeros_like(p)).lerp_(gradient, share)
                ahead.append(kept.lerp(gradient, share).flatten(1))
                gradients.append(gradient.flatten(1))
            for p, direction in zip(matrices, self._directions(matrices, ahead, gradients), strict=True):
                p.sub_(direction.view_as(p), alpha=_SCALE * group["lr"])
        if self._adam is not None:
            lr = {p: group["lr"] for group in self.param_groups for p in group["params"]}
            for group in self._adam.param_groups:
                group["lr"] = lr[group["params"][0]]
            self._adam.step()


class Shampoo(Muon):
    """Shampoo on the inputs' side: steps along M·R^(−½), R the running average of GᵀG over the minibatches' gradients.

    M is Muon's Nesterov momentum of a matrix with a row for each output; the direction is divided by its root mean
    square, and the root renewed every ten steps, one matrix after the other. (V. Gupta, T. Koren and Y. Singer,
    Shampoo, 2018, of one side; step sizes as Muon's.) Tensors with fewer than two axes: Adam. Arguments are those of
    `Muon`.
    """

    def _directions(self, params: list[Tensor], ahead: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
        step = self.state[params[0]].setdefault("step", 0)
        self.state[params[0]]["step"] += 1
        kept = [self.state[p].setdefault("whitening", p.new_zeros(state_shape(p.shape))) for p in params]
        update_covariances_(kept, gradients)
        renew_roots_(kept, step)
        return [x / (x.square().mean().sqrt() + 1e-10) for x in all_whitened(ahead, kept)]
