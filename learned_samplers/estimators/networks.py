"""Multilayer perceptrons of the estimators, with first weights from a generator of their own."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "silu": nn.SiLU}


class SharedNoise(nn.Module):
    """Appends numbers that are the same for all rows to the outputs (N, targets): noise that no input changes."""

    def __init__(self, targets: int = 1) -> None:
        super().__init__()
        self.raw = nn.Parameter(torch.zeros(targets, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.raw.expand(x.shape[0], -1)], 1)


class KnownNoise(nn.Module):
    """Appends the same given numbers to the outputs (..., targets) of all rows: noise that nobody has to learn."""

    def __init__(self, raw: Sequence[float]) -> None:
        super().__init__()
        self.raw = tuple(raw)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, x.new_tensor(self.raw).expand(*x.shape[:-1], -1)], -1)


def perceptron(
    sizes: Sequence[int], activation: str, generator: torch.Generator, last: Sequence[nn.Module] = ()
) -> nn.Sequential:
    """Make a network of linear layers with activations between them; ``last`` are layers after the last linear one.

    The first weights are distributed as torch's: uniform within ±1/√(inputs of the layer).
    """
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        linear = nn.utils.skip_init(nn.Linear, inputs, outputs, dtype=torch.float32)
        for parameter in (linear.weight, linear.bias):
            nn.init.uniform_(parameter, -1 / math.sqrt(inputs), 1 / math.sqrt(inputs), generator)
        layers += [linear, ACTIVATIONS[activation]()]
    return nn.Sequential(*layers[:-1], *copy.deepcopy(list(last)))
