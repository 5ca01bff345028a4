"""The largest curvature of a network's mean loss, and the noise of its minibatch gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

Loss = Callable[[Tensor, Tensor], Tensor]


class MeanLoss:
    """The mean loss over a data set as a function of one network's trainable weights, with its derivatives.

    Buffers are copied for every evaluation, so that normalisation layers keep their running statistics.
    """

    def __init__(self, model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor, chunk: int):
        self.model, self.loss, self.inputs, self.targets, self.chunk = model, loss, inputs, targets, chunk
        self.weights = {name: p.detach().requires_grad_() for name, p in model.named_parameters() if p.requires_grad}
        self.rest = {name: p.detach() for name, p in model.named_parameters() if not p.requires_grad}

    def __call__(self, rows: Tensor | slice) -> Tensor:
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        output = functional_call(self.model, {**self.rest, **buffers, **self.weights}, (self.inputs[rows],))
        return self.loss(output, self.targets[rows])

    def _chunks(self) -> Iterator[tuple[slice, float]]:
        total = len(self.inputs)
        for start in range(0, total, self.chunk):
            stop = min(start + self.chunk, total)
            yield slice(start, stop), (stop - start) / total

    def gradient(self, rows: Tensor) -> Tensor:
        """Gradient of the mean over ``rows``, one flat vector."""
        weights = list(self.weights.values())
        return _flat(_filled(torch.autograd.grad(self(rows), weights, allow_unused=True), weights))

    def hessian_times(self, vector: Tensor) -> Tensor:
        """H·v with H the Hessian of the mean over all data; sets the global seed, so that dropout is one function."""
        torch.default_generator.manual_seed(0)
        weights = list(self.weights.values())
        parts = vector.split([p.numel() for p in weights])
        direction = [part.view_as(p) for part, p in zip(parts, weights, strict=True)]
        total = torch.zeros_like(vector)
        for rows, share in self._chunks():
            # Flash attention has no second derivative.
            with sdpa_kernel(SDPBackend.MATH):
                mean = self(rows)
            slope = _filled(torch.autograd.grad(mean, weights, create_graph=True, allow_unused=True), weights)
            along = sum((g * v).sum() for g, v in zip(slope, direction, strict=True))
            product = torch.autograd.grad(along, weights, allow_unused=True)
            total += share * _flat(_filled(product, weights))
        return total


def largest_curvature(loss: MeanLoss, iterations: int, generator: torch.Generator) -> tuple[float, float]:
    """The largest eigenvalue of the Hessian by Lanczos' method, and the norm of its residual.

    An eigenvalue lies within the residual of the estimate, and the estimate is never above the largest one.
    """
    reference = next(iter(loss.weights.values()))
    size = sum(p.numel() for p in loss.weights.values())
    vector = torch.randn(size, generator=generator, dtype=torch.float64).to(reference)
    basis = [vector / vector.norm()]
    diagonal: list[float] = []
    beside: list[float] = []
    for _ in range(min(iterations, size)):
        image = loss.hessian_times(basis[-1])
        diagonal.append(float(image @ basis[-1]))
        for _ in range(2):  # all of them, twice: in single precision the recurrence alone loses orthogonality
            for one in basis:
                image = image - (image @ one) * one
        beside.append(float(image.norm()))
        if not np.isfinite(beside[-1]) or beside[-1] <= 1e-6 * max(map(abs, diagonal)):
            break
        basis.append(image / beside[-1])
    if not np.isfinite(diagonal).all() or not np.isfinite(beside).all():
        raise FloatingPointError("the loss or its second derivatives are not finite at these weights")
    tridiagonal = np.diag(diagonal) + np.diag(beside[:-1], 1) + np.diag(beside[:-1], -1)
    values, vectors = np.linalg.eigh(tridiagonal)
    rounding = torch.finfo(reference.dtype).eps * abs(float(values[-1]))
    return float(values[-1]), max(float(abs(beside[-1] * vectors[-1, -1])), rounding)


def gradient_variance(loss: MeanLoss, batch_size: int, batches: int, generator: torch.Generator) -> float:
    """Variance of a coordinate of the minibatch gradient, the mean over the coordinates."""
    total = len(loss.inputs)
    drawn = [torch.randint(total, (batch_size,), generator=generator) for _ in range(batches)]
    return float(torch.stack([loss.gradient(rows.to(loss.inputs.device)) for rows in drawn]).var(0).mean())


def _filled(slopes: tuple[Tensor | None, ...], weights: list[Tensor]) -> list[Tensor]:
    """Derivatives, zero with respect to weights that the function does not depend on."""
    return [torch.zeros_like(p) if slope is None else slope for slope, p in zip(slopes, weights, strict=True)]


def _flat(tensors: list[Tensor] | tuple[Tensor, ...]) -> Tensor:
    return torch.cat([t.detach().reshape(-1) for t in tensors])
