"""Many small multilayer perceptrons at once, by batched products; a kernel that keeps groups of particles apart."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from learned_samplers.particles.kernels import Kernel, KernelMatrix


class StackedMLP:
    """P multilayer perceptrons (ReLU) of one architecture.

    A layer is one tensor (P, out, in + 1) whose last column holds the biases, and gives W·(h, 1)/√(in + 1): with
    weights from N(0, 1) its outputs are of a unit's size whatever the widths. So the prior N(0, I) suits every layer.

    `meta_tasks.networks.batched_mlp` keeps weights and biases apart, while the priors here are on one W of this scale,
    and it copies the inputs for every network of a group. Computed by it from W, outputs agree to rounding and their
    gradients take 1.6 times as long for one network of 50 by 50 units, 1.2 times for five of 784-400-400-10, and as
    long for the 400 of the UCI runs (one core).

    Args:
        sizes: numbers of inputs, of hidden units layer by layer, and of outputs.

    Raises:
        ValueError: fewer than two sizes, or one below 1.
    """

    def __init__(self, sizes: Sequence[int]):
        if len(sizes) < 2 or min(sizes) < 1:
            raise ValueError(f"sizes must be two positive numbers or more, got {tuple(sizes)}")
        self.sizes = tuple(sizes)

    def draw(self, count: int, *, generator: torch.Generator | None = None) -> list[Tensor]:
        """Weights of so many networks from N(0, 1)."""
        return [torch.randn(count, out, into + 1, generator=generator) for into, out in pairwise(self.sizes)]

    def __call__(self, params: Sequence[Tensor], inputs: Tensor) -> Tensor:
        """Outputs (P, n, C).

        Args:
            params: the layers, as from `draw`.
            inputs: (n, d) for all networks, or (G, n, d): the first P/G networks get the first of these, and so on.
        """
        columns = (inputs if inputs.dim() == 3 else inputs[None]).mT
        groups, features, n = columns.shape
        first = params[0]
        if features != self.sizes[0] or len(first) % groups:
            raise ValueError(
                f"{len(first)} networks of {self.sizes[0]} inputs cannot take inputs of shape {tuple(inputs.shape)}"
            )
        columns = torch.cat([columns, columns.new_ones(groups, 1, n)], dim=1) / (features + 1) ** 0.5
        # One product for all networks of a group: its inputs are not copied.
        hidden = torch.bmm(first.reshape(groups, -1, features + 1), columns).view(len(first), -1, n)
        for layer in params[1:]:
            scale = layer.shape[2] ** -0.5
            hidden = torch.baddbmm(layer[:, :, -1:], layer[:, :, :-1], hidden.relu(), beta=scale, alpha=scale)
        return hidden.mT


class SeparateGroups:
    """A kernel between the particles of a group alone: G independent samplers in one.

    The particle samplers divide their sums by the number of all particles; the matrices are multiplied by G, so that
    each group moves exactly as it would on its own.
    """

    def __init__(self, kernel: Kernel, groups: int):
        self.kernel, self.groups = kernel, groups

    def __call__(self, points: Tensor) -> KernelMatrix:
        if len(points) % self.groups:
            raise ValueError(f"{len(points)} particles cannot be split into {self.groups} groups")
        parts = self.kernel(points.reshape(self.groups, -1, *points.shape[1:]))
        values, repulsion = (self.groups * torch.block_diag(*m) for m in (parts.values, parts.repulsion))
        return KernelMatrix(values, repulsion, self.groups * parts.trace.sum())
