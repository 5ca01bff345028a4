"""The two toy problems of the particle samplers: three mixtures of Gaussians, and ZDT3 in its box."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

# Three mixtures of two Gaussians (Phan et al., NeurIPS 2022, §4.1.1): weights .7 and .3, covariance ½ I. The second
# component of each is near the origin, where all three targets are likely.
MEANS = torch.tensor([[[4.0, -4.0], [0.0, 0.5]], [[-4.0, 4.0], [0.5, 0.0]], [[-3.0, -3.0], [0.0, 0.0]]])
LOG_WEIGHTS = torch.tensor([0.7, 0.3]).log()
VARIANCE = 0.5
#: Particles within this distance of the centre of the common region count as being in it.
RADIUS = 2.2
#: The segments of f₁ that make up ZDT3's Pareto front.
SEGMENTS = ((0.0, 0.0830), (0.1822, 0.2578), (0.4093, 0.4539), (0.6184, 0.6525), (0.8233, 0.8518))
#: ZDT3's number of variables, and the point beyond which nothing counts for the hypervolume.
DIMENSIONS = 30
REFERENCE = (1.1, 1.1)


def mixture_energies(x: Tensor) -> Tensor:
    """−log pₖ(x) of each target, (3, M), for points (M, 2)."""
    distances = (x - MEANS[:, :, None]).square().sum(-1)
    normalised = LOG_WEIGHTS[None, :, None] - distances / (2 * VARIANCE) - math.log(2 * math.pi * VARIANCE)
    return -torch.logsumexp(normalised, dim=1)


def mixture_start(particles: int, seed: int) -> Tensor:
    """5·N(0, I), clamped to ±10."""
    generator = torch.Generator().manual_seed(seed)
    return (5 * torch.randn(particles, 2, generator=generator)).clamp(-10, 10).requires_grad_()


def share_in_common_region(x: Tensor) -> float:
    """Share of the particles within `RADIUS` of the mean of the three near components."""
    return (x.detach() - MEANS[:, 1].mean(0)).norm(dim=1).lt(RADIUS).double().mean().item()


class _InsideBox(torch.autograd.Function):
    """The identity; its gradient has no component along which descent would leave [0, 1]."""

    @staticmethod
    def forward(x: Tensor, low: float) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, low = inputs
        ctx.save_for_backward((x <= low), (x >= 1))

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        at_low, at_high = ctx.saved_tensors
        grad = upstream[0]
        return torch.where((at_low & (grad > 0)) | (at_high & (grad < 0)), 0.0, grad), None


# f₁ is kept this far from zero, where ZDT3's gradient is infinite.
LEAST = 1e-6


def zdt3(x: Tensor, *, projected: bool = True) -> Tensor:
    """Both objectives of ZDT3, (2, M), for points (M, 30) of the unit box.

    With ``projected`` the gradients keep inside the box: without that, multiple gradient descent weighs components that
    cannot be followed, and every particle slides to the first segment.
    """
    if projected:
        x = _InsideBox.apply(x, LEAST)
    first = x[:, 0]
    g = 1 + 9 * x[:, 1:].mean(1)
    ratio = first / g
    return torch.stack([first, g * (1 - ratio.sqrt() - ratio * torch.sin(10 * math.pi * first))])


def zdt3_start(particles: int, seed: int) -> Tensor:
    """Uniform in the box."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(particles, DIMENSIONS, generator=generator).clamp_min(LEAST).requires_grad_()


@torch.no_grad()
def into_box(x: Tensor) -> None:
    x.clamp_(LEAST, 1)


def zdt3_front(points: int = 400) -> list[Tensor]:
    """The Pareto front, one (points, 2) a segment."""
    front = []
    for low, high in SEGMENTS:
        first = torch.linspace(low, high, points, dtype=torch.double)
        front.append(torch.stack([first, 1 - first.sqrt() - first * torch.sin(10 * math.pi * first)], dim=1))
    return front


def hypervolume(points: Tensor, reference: tuple[float, float] = REFERENCE) -> float:
    """Area that points (n, 2) dominate below ``reference``, both objectives to be minimised."""
    best, area = reference[1], 0.0
    for first, second in sorted(points.double().tolist()):
        if first < reference[0] and second < best:
            area += (reference[0] - first) * (best - second)
            best = second
    return area


def segments_reached(points: Tensor, tolerance: float = 0.05) -> list[int]:
    """Number of points within ``tolerance`` of each segment of the front, nearest segment first."""
    distances = torch.stack([torch.cdist(points.double(), segment).amin(1) for segment in zdt3_front()])
    nearest = distances.argmin(0)
    return [int(((nearest == s) & (distances[s] < tolerance)).sum()) for s in range(len(SEGMENTS))]
