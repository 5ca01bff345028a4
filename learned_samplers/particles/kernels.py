"""Kernels between particles, as the small matrices that Stein variational methods need.

A kernel is called with points (..., M, d), the particles or features of them, and returns a `KernelMatrix`. Nothing of
size M²·d is ever formed: squared distances come from a Gram matrix that is summed over blocks of coordinates, and the
repulsion is a matrix product. Memory beside the points is M² numbers and one block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from learned_samplers.base import validation

#: Names of the bandwidth rules of `RBF` and `IMQ`.
BANDWIDTHS = ("full_median", "off_diagonal_median")
# About this many numbers are in double precision, or copied, at a time.
_BLOCK = 1 << 22
# Squared distances below this share of the points' squared norms are rounding: the points are the same.
_SAME = 1e-13


class KernelMatrix(NamedTuple):
    """A kernel k on points x₁..x_M, in double precision."""

    #: (..., M, M), k(xᵢ, xⱼ).
    values: Tensor
    #: (..., M, M), R with Σⱼ ∇_{xⱼ} k(xⱼ, xᵢ) = Σⱼ Rᵢⱼ xⱼ.
    repulsion: Tensor
    #: (...), Σᵢⱼ tr ∇_{xᵢ}∇_{xⱼ} k(xᵢ, xⱼ).
    trace: Tensor


class Kernel(Protocol):
    """A positive-definite kernel on points (..., M, d)."""

    def __call__(self, points: Tensor) -> KernelMatrix:
        """The kernel's matrices."""


def coordinate_blocks(points: Tensor) -> tuple[Tensor, ...]:
    """Views of consecutive blocks of coordinates, so that nothing needs a whole copy of the points."""
    rows = max(1, math.prod(points.shape[:-1]))
    return points.split(max(1, _BLOCK // rows), dim=-1)


def _blocks(points: Tensor) -> Iterator[Tensor]:
    """`coordinate_blocks` in double precision, one at a time."""
    return (block.double() for block in coordinate_blocks(points.detach()))


def squared_distances(points: Tensor) -> Tensor:
    """‖xᵢ − xⱼ‖², (..., M, M) in double precision, symmetric, with a diagonal and duplicates of exactly zero."""
    count = points.shape[-2]
    gram = torch.zeros(*points.shape[:-2], count, count, dtype=torch.double, device=points.device)
    for block in _blocks(points):
        # Centred: particles that are close to each other and far from the origin keep their digits.
        centred = block - block.mean(-2, keepdim=True)
        gram += centred @ centred.mT
    norms = gram.diagonal(dim1=-2, dim2=-1)
    sums = norms[..., :, None] + norms[..., None, :]
    distances = sums - (gram + gram.mT)
    # The mean's own rounding is common to all points: relative to the norms of the points as they are.
    scale = sums + points.detach().square().sum(-1).double().amax(-1)[..., None, None] * 1e-12
    distances = torch.where(distances > _SAME * scale, distances, 0.0)
    return distances * (1 - torch.eye(count, dtype=torch.double, device=points.device))


def squared_bandwidth(distances: Tensor, rule: str | float) -> Tensor:
    """σ² of k = exp(−‖Δ‖²/2σ²) from (..., M, M) squared distances, (...).

    - ``"full_median"``: median of the full matrix, zero diagonal included, / (2 log(M+1)); MT-SGD's and f-SVGD's code.
    - ``"off_diagonal_median"``: median over the pairs / (2 log M); Liu and Wang's heuristic, so that each particle's
      neighbours weigh as much as it does itself.
    - a number: σ itself.

    The median of an even count is the mean of the middle two. It is zero where most particles coincide.

    Raises:
        ValueError: the median is over pairs, and there is one particle.
    """
    count = distances.shape[-1]
    if not isinstance(rule, str):
        return torch.full_like(distances[..., 0, 0], float(rule) ** 2)
    if rule == "full_median":
        return _median(distances.flatten(-2)) / (2 * math.log(count + 1))
    if count < 2:
        raise ValueError("bandwidth='off_diagonal_median' needs two particles or more, got 1")
    i, j = torch.triu_indices(count, count, 1, device=distances.device)
    return _median(distances[..., i, j]) / (2 * math.log(count))


def _median(values: Tensor) -> Tensor:
    # Sorted: kthvalue and median have no deterministic form on CUDA in every release of torch.
    ordered, size = values.sort().values, values.shape[-1]
    return (ordered[..., (size - 1) // 2] + ordered[..., size // 2]) / 2


class _Radial:
    """A kernel κ(r²) of the squared distance r², with σ² by a rule."""

    def __init__(self, bandwidth: str | float = "full_median"):
        if isinstance(bandwidth, str):
            validation.one_of("bandwidth", bandwidth, BANDWIDTHS)
        else:
            validation.positive("bandwidth", bandwidth)
            bandwidth = float(bandwidth)
        self.bandwidth = bandwidth

    def __repr__(self) -> str:
        return f"{type(self).__name__}(bandwidth={self.bandwidth!r})"

    def _profile(self, ratio: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """κ and its first two derivatives by u = r²/2σ²."""
        raise NotImplementedError

    def __call__(self, points: Tensor) -> KernelMatrix:
        distances = squared_distances(points)
        variance = squared_bandwidth(distances, self.bandwidth)[..., None, None]
        apart = variance > 0
        safe = torch.where(apart, variance, 1.0)
        value, first, second = self._profile(distances / (2 * safe))
        # By r²: κ' = first/2σ², κ'' = second/4σ⁴. ∇_{xⱼ}k = 2κ'(xⱼ − xᵢ), tr ∇∇k = −2dκ' − 4κ''r².
        slope = first / safe
        trace = -points.shape[-1] * slope - second * distances / safe.square()
        value = torch.where(apart, value, (distances == 0).double())
        repulsion = torch.where(apart, slope - torch.diag_embed(slope.sum(-1)), 0.0)
        return KernelMatrix(value, repulsion, torch.where(apart, trace, 0.0).sum(dim=(-2, -1)))


class RBF(_Radial):
    """The Gaussian (radial basis function) kernel, k(x, y) = exp(−‖x − y‖²/2σ²).

    Where σ² is zero (most particles coincide, or all) it is the limit σ → 0: one between particles that coincide,
    zero between others, and no repulsion.

    Args:
        bandwidth: a rule's name (see `squared_bandwidth`) or σ, in the units of the points.

    Raises:
        ValueError, TypeError: ``bandwidth`` is no rule and no positive number.
    """

    def _profile(self, ratio: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        value = torch.exp(-ratio)
        return value, -value, value


class IMQ(_Radial):
    """The inverse multiquadric, k(x, y) = (1 + ‖x − y‖²/2σ²)^(−½), whose tails reach further than those of `RBF`.

    Its bandwidth, and where that is zero, are as for `RBF`.
    """

    def _profile(self, ratio: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        base = 1 + ratio
        return base**-0.5, -0.5 * base**-1.5, 0.75 * base**-2.5


class Linear:
    """The linear kernel, k(x, y) = x·y + 1: SVGD with it has the exact mean and covariance of a Gaussian."""

    def __repr__(self) -> str:
        return "Linear()"

    def __call__(self, points: Tensor) -> KernelMatrix:
        count = points.shape[-2]
        values = torch.ones(*points.shape[:-2], count, count, dtype=torch.double, device=points.device)
        for block in _blocks(points):
            values += block @ block.mT
        repulsion = count * torch.eye(count, dtype=torch.double, device=points.device).expand_as(values)
        return KernelMatrix(values, repulsion, torch.full_like(values[..., 0, 0], count**2 * points.shape[-1]))


def check_kernel(name: str, value: Any) -> None:
    if not callable(value):
        raise TypeError(f"{name} must be a kernel such as RBF(), got {value!r} of type {type(value).__name__}")
