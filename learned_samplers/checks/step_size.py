"""`suggest_lr`: which learning rates are stable for a network, and how much bias do they cause?"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from learned_samplers.base import validation
from learned_samplers.base.operations import as_number
from learned_samplers.checks.linear import LinearStep, read_linear_step
from learned_samplers.checks.protocol import Factory, made_by, refuse

Loss = Callable[[Tensor, Tensor], Tensor]

_FRACTIONS = (1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64)
# Largest suggestion, in units of the limit: the curvature is higher elsewhere along the chain, and no quadratic there.
_SHARE = 1 / 8
# Minibatches from which the variance of the gradient is estimated.
_BATCHES = 16


@dataclass(frozen=True)
class StepSizeRow:
    """Bias and heat at one learning rate."""

    lr: float
    #: Relative error of the variance along the stiffest direction, with full gradients.
    bias: float
    #: What minibatches, drawn with replacement, add to the temperature of a soft direction; nan without ``batch_size``.
    heat: float


@dataclass(frozen=True)
class StepSizeReport:
    """The result of `suggest_lr`; ``print`` it, or read its fields."""

    sampler: str
    network: str
    #: Largest eigenvalue of the Hessian of the mean loss, and the residual of that estimate.
    curvature: float
    residual: float
    #: Learning rates from here on diverge along the stiffest direction.
    stability_limit: float
    #: The largest learning rate, up to an eighth of the limit, with at most the allowed bias and heat.
    suggested: float
    allowed_bias: float
    #: None without ``batch_size``.
    allowed_heat: float | None
    batch_size: int | None
    rows: tuple[StepSizeRow, ...]

    def __str__(self) -> str:
        heat = "" if self.batch_size is None else f"{f'heat of batches of {self.batch_size}':>26}"
        bound = "" if self.allowed_heat is None else f", heat at most {self.allowed_heat:.0%}"
        lines = [
            f"{self.sampler} on {self.network}: largest curvature {self.curvature:.4g} (± {self.residual:.1g})",
            f"stable below lr {self.stability_limit:.3g}; suggested lr {self.suggested:.3g} "
            f"(bias at most {self.allowed_bias:.0%}{bound})",
            f"{'lr':>10}{'bias, stiffest direction':>28}{heat}",
        ]
        for row in self.rows:
            heat = "" if self.batch_size is None else f"{row.heat:>+26.1%}"
            lines.append(f"{row.lr:10.3g}{row.bias:>+28.1%}{heat}")
        lines.append("at these weights: the curvature changes as training goes on, so ask again where you sample")
        return "\n".join(lines)


@torch.random.fork_rng(devices=[])
def suggest_lr(
    model: nn.Module,
    loss: Loss,
    data: tuple[Tensor, Tensor],
    sampler: Factory,
    *,
    allowed_bias: float = 0.1,
    allowed_heat: float | None = None,
    batch_size: int | None = None,
    iterations: int = 20,
    chunk_size: int = 512,
    seed: int = 0,
) -> StepSizeReport:
    """Suggest a learning rate for a sampler on your network, and report the bias of a range of them.

    It finds the largest eigenvalue of the Hessian of the mean loss at the network's present weights, by Lanczos' method
    on Hessian-vector products, reads the sampler's step off on a quadratic of that curvature (as `check_sampler` does),
    and looks for the learning rates at which the step is stable and its stationary variance right::

        report = suggest_lr(
            model, nn.functional.cross_entropy, (x, y), lambda p: SGHMC(p, 0.1, num_data=N), batch_size=64
        )
        print(report)

    The stiffest direction is the worst one: softer ones have less bias. Call it at trained weights: at random
    ones the curvature differs. The noise of minibatches adds heat, which has nothing to do with the curvature: say
    your ``batch_size``, and the suggestion bounds it. Where it is large, as at low temperatures, it and not the
    posterior sets the spread of the chain, unless the data are reshuffled each epoch, which removes most of it along
    soft directions.

    Args:
        model: the network, at the weights in question, in the mode in which it is sampled.
        loss: from (outputs, targets) to the mean loss, as in your training loop.
        data: inputs and targets; some thousand examples are enough.
        sampler: makes the sampler from a list of parameters, as for `check_sampler`. Its lr may be any.
        allowed_bias: bound on the relative error of the variance along the stiffest direction.
        allowed_heat: bound on what minibatches add to the temperature, as a share of it; by default ``allowed_bias``.
            Needs ``batch_size``.
        batch_size: examples of a minibatch, whose noise heats the chain: measured and bounded. None for full gradients.
        iterations: Hessian-vector products over ``data``; as many vectors of the weights' size are kept.
        chunk_size: examples differentiated at once.
        seed: of everything random.

    Raises:
        TypeError, ValueError: an argument that cannot be used, by name; a sampler whose step is not the same linear
            map each time on a quadratic (`PSGLD`, `SGNHT`, `CyclicalSGMCMC`, the learned ones, `HMC`), or that is
            unstable, or too biased or too hot, at every lr; a loss without positive curvature.
        FloatingPointError: the loss or its derivatives are not finite.
    """
    validation.module("model", model)
    validation.function("loss", loss, "torch.nn.functional.cross_entropy")
    validation.positive("allowed_bias", allowed_bias)
    seed = validation.seed("seed", seed)
    validation.integer("iterations", iterations)
    validation.integer("chunk_size", chunk_size)
    inputs, targets = validation.inputs_and_targets(data)
    if allowed_heat is not None:
        validation.positive("allowed_heat", allowed_heat)
        if batch_size is None:
            raise ValueError("allowed_heat needs batch_size, got None")
    if batch_size is not None:
        validation.integer("batch_size", batch_size)
        allowed_heat = allowed_bias if allowed_heat is None else allowed_heat
    generator = torch.Generator().manual_seed(seed)
    mean_loss = MeanLoss(model, loss, inputs, targets, chunk_size)
    if not mean_loss.weights:
        raise ValueError("model has no parameter that requires a gradient")
    mean_loss.refuse_sums()
    curvature, residual = largest_curvature(mean_loss, iterations, generator)
    noise = 0.0 if batch_size is None else gradient_variance(mean_loss, batch_size, _BATCHES, generator)
    if curvature <= 0:
        raise ValueError(f"loss has no positive curvature at these weights: its largest one is {curvature:g}")
    probe = _Probe(sampler, curvature, noise)
    limit = probe.stability_limit()
    suggested = probe.largest(allowed_bias, math.inf if allowed_heat is None else allowed_heat, _SHARE * limit)
    rows = tuple(probe.row(lr) for lr in sorted({suggested, *(f * limit for f in _FRACTIONS)}, reverse=True))
    if batch_size is None:
        rows = tuple(StepSizeRow(row.lr, row.bias, math.nan) for row in rows)
    return StepSizeReport(
        probe.name,
        type(model).__name__,
        curvature,
        residual,
        limit,
        suggested,
        allowed_bias,
        allowed_heat,
        batch_size,
        rows,
    )


class _Probe:
    """Reads a sampler's step at any learning rate, on quadratics of a given curvature of the mean loss."""

    def __init__(self, factory: Factory, curvature: float, gradient_variance: float):
        sampler = made_by(factory, "sampler")
        refuse(sampler, "suggest_lr")
        group, self.name = sampler.param_groups[0], type(sampler).__name__
        self.factory, self.curvature, self.push = factory, curvature, math.sqrt(gradient_variance)
        self.lr = validation.number("lr", group["lr"])
        self.temperature = float(as_number(group.get("temperature", 1.0)))
        validation.positive("temperature", self.temperature)
        self.num_data = float(as_number(group["num_data"])) if "num_data" in group else math.nan
        self.prior = float(as_number(group.get("prior_precision", 0.0)))
        if not self.num_data > 0:
            raise ValueError(f"sampler must have num_data in its parameter groups, got {self.name}")

    def step(self, lr: float, curvature: float, push: float = 0.0) -> LinearStep:
        step = None  # a Metropolis test is not linear
        if self.name != "HMC":
            step = read_linear_step(self.factory, curvature, push, lr / self.lr)
        if step is None:
            raise ValueError(
                f"sampler must move a quadratic's coordinates by the same linear map at each step, which {self.name} "
                "does not; of one that adapts or explores give the sampler that it samples with"
            )
        return step

    def stable(self, lr: float) -> bool:
        return self.step(lr, self.curvature).spectral_radius < 1

    def stability_limit(self) -> float:
        """The learning rate at which the stiffest direction begins to grow, by bisection."""
        low = 1e-6 / self.curvature
        if not self.stable(low):
            raise ValueError(f"sampler {self.name} is unstable at every lr")
        high = low
        while self.stable(high):
            low, high = high, high * 4
            if high > 1e9 / self.curvature:
                return math.inf
        return self._bisect(low, high, self.stable)

    def variance(self, lr: float, curvature: float, push: float = 0.0) -> float:
        """Stationary variance in units of the target's."""
        target = self.temperature / (self.num_data * curvature + self.prior)
        return float(self.step(lr, curvature, push).stationary_covariance()[0, 0]) / target

    def largest(self, allowed_bias: float, allowed_heat: float, limit: float) -> float:
        """The largest learning rate up to ``limit`` whose bias and heat are at most what is allowed."""

        def right(lr: float) -> bool:
            row = self.row(lr)
            return abs(row.bias) <= allowed_bias and row.heat <= allowed_heat

        limit = min(limit, 1e3 / self.curvature)
        low = limit
        while not right(low):
            low /= 4
            if low < 1e-9 / self.curvature:
                raise ValueError(
                    f"sampler {self.name} has a bias above {allowed_bias:.0%} or a heat above {allowed_heat:.0%} at "
                    "every lr"
                )
        return low if low == limit else self._bisect(low, low * 4, right)

    def row(self, lr: float) -> StepSizeRow:
        soft = 1e-3 * self.curvature
        heat = self.variance(lr, soft, self.push) - self.variance(lr, soft)
        return StepSizeRow(lr, self.variance(lr, self.curvature) - 1, heat)

    def _bisect(self, low: float, high: float, holds: Any) -> float:
        for _ in range(12):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if holds(middle) else (low, middle)
        return low


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

    def refuse_sums(self) -> None:
        """ValueError for a loss that is no mean over the examples, and would count each of them N times."""
        targets = self.targets[:8]
        with torch.no_grad():
            buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
            values = {**self.rest, **buffers, **self.weights}
            output = functional_call(self.model, values, (self.inputs[:8],))
            once = torch.as_tensor(self.loss(output, targets))
            if once.dim():
                raise ValueError(f"loss must return one number, the mean over examples, got shape {tuple(once.shape)}")
            if not isinstance(output, Tensor) or output.shape[:1] != targets.shape[:1]:
                return
            twice = self.loss(torch.cat([output, output]), torch.cat([targets, targets]))
        if once.isfinite() and not torch.isclose(twice, once, rtol=1e-3, atol=1e-6):
            raise ValueError(
                f"loss must be the mean over examples, got {once:.4g} of {len(targets)} and {twice:.4g} of the same "
                "twice: take reduction='mean'"
            )

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
