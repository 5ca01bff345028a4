"""Multilayer perceptrons with a prior that suits every layer; a kernel that keeps groups of particles apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from learned_samplers.particles.function_space import Covariance
from learned_samplers.particles.kernels import Kernel, KernelMatrix
from meta_tasks.networks import BatchedMLP


class StackedMLP:
    """P multilayer perceptrons (ReLU) of one architecture, in one tensor w (P, d).

    A layer gives (W·h + b)/√(in + 1): with weights and biases from N(0, 1) its outputs are of a unit's size whatever
    the widths. So the prior N(0, I) suits every layer.
    """

    def __init__(self, sizes: Sequence[int]):
        if len(sizes) < 2 or min(sizes) < 1:
            raise ValueError(f"sizes must be two positive numbers or more, got {tuple(sizes)}")
        self.sizes = tuple(sizes)
        self.network = BatchedMLP(self._one)
        # In double precision for networks in double precision; each is rounded to that of the weights.
        self.scale = torch.ones(sum(self.network.segments.lengths), dtype=torch.double)
        for name, scale in self.network.views(self.scale[None]).items():
            scale.fill_((self.network.shapes[name.replace("bias", "weight")][1] + 1) ** -0.5)

    def _one(self) -> nn.Module:
        layers = [layer for into, out in pairwise(self.sizes) for layer in (nn.Linear(into, out), nn.ReLU())]
        return nn.Sequential(*layers[:-1])

    def draw(self, count: int, *, generator: torch.Generator | None = None) -> list[Tensor]:
        """Weights of so many networks from N(0, 1)."""
        drawn = [torch.randn(count, out, into + 1, generator=generator) for into, out in pairwise(self.sizes)]
        return [torch.cat([part.flatten(1) for layer in drawn for part in (layer[..., :-1], layer[..., -1])], 1)]

    def __call__(self, params: Sequence[Tensor], inputs: Tensor) -> Tensor:
        """Outputs (P, n, C)."""
        w = params[0]
        groups = len(inputs) if inputs.dim() == 3 else 1
        if inputs.shape[-1] != self.sizes[0] or len(w) % groups:
            raise ValueError(
                f"{len(w)} networks of {self.sizes[0]} inputs cannot take inputs of shape {tuple(inputs.shape)}"
            )
        return self.network.logits(self.scale.to(w) * w, inputs.view(groups, *inputs.shape[-2:]))


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


def infinite_width(hidden_layers: int, variance: float) -> Covariance:
    """Covariance of the outputs of a `StackedMLP` of infinite width with weights from N(0, variance).

    K₀ = variance·(x·x′ + 1)/(d + 1), and a ReLU layer makes of it variance·√(K K′)·(sin t + (π − t) cos t)/2π, where t
    is the angle cos t = K₀(x, x′)/√(K K′) (Cho and Saul, NeurIPS 2009).
    """

    def covariance(x: Tensor, y: Tensor) -> Tensor:
        x, y = x.flatten(1).double(), y.flatten(1).double()
        scale = variance / (x.shape[1] + 1)
        squares = [scale * (z.square().sum(1) + 1) for z in (x, y)]
        cross = scale * (x @ y.T + 1)
        for _ in range(hidden_layers):
            size = (squares[0][:, None] * squares[1]).sqrt()
            angle = (cross / size).clamp(-1, 1).arccos()
            cross = variance * size * (angle.sin() + (math.pi - angle) * angle.cos()) / (2 * math.pi)
            squares = [variance * z / 2 for z in squares]
        return cross

    return covariance
