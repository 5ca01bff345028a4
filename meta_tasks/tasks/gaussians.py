"""Gaussian posteriors of known moments, with minibatch noise of a known size: the toy tasks of Meta-SGMCMC."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base import validation
from learned_samplers.base.segments import Segments
from meta_tasks.random_streams import choose, generator, log_uniform
from meta_tasks.rules.base import Hyperparameters
from meta_tasks.tasks.family import require_choices

__all__ = ["GaussianFamily", "GaussianTask"]

_SPREAD = 0.03  # standard deviation of the initial states about 0


class GaussianTask:
    """A Gaussian posterior N(m, P⁻¹/N) of N data points; the loss on data point n is

        L_n(θ) = ½(θ − m)ᵀP(θ − m) + √(b/N)·ζ_n·(θ − m),    Σ_n ζ_n = 0, ζ_n of variance 1

    so that ∇U has minibatch noise of variance B = b·N in every direction, at a minibatch of one point.

    Args:
        mean, precision: m (d,) and P (d, d), symmetric and positive definite.
        hyperparameters: lr, N and the rest.
        noise: b ≥ 0.
        seed: of ζ.

    Raises:
        ValueError: P is not positive definite, or a number is out of range.
    """

    batch_size = 1
    num_validation = num_held_out = 0
    signature = None

    def __init__(
        self,
        mean: Tensor,
        precision: Tensor,
        hyperparameters: Hyperparameters,
        *,
        noise: float = 0.0,
        seed: int = 0,
        kind: str = "gaussian",
    ) -> None:
        if not bool((torch.linalg.eigvalsh(precision) > 0).all()):
            raise ValueError("precision must be positive definite")
        validation.non_negative("noise", noise)
        self.mean, self.precision, self.hyperparameters, self.kind = mean, precision, hyperparameters, kind
        self.device = mean.device
        self.segments = Segments.of([mean])
        self._noise: Tensor | None = None
        if noise:
            num_data = int(hyperparameters.num_data)
            zeta = torch.randn(num_data, len(mean), generator=generator(seed, "gradient noise"))
            self._noise = (zeta - zeta.mean(0)) * math.sqrt(noise / num_data)

    def initial(self, seed: int) -> Tensor:
        return _SPREAD * torch.randn(len(self.mean), generator=generator(seed))

    def loss_and_gradient(self, parameter: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
        away = parameter - self.mean
        gradient = away @ self.precision
        loss = 0.5 * (away * gradient).sum(-1)
        if self._noise is not None:
            push = self._noise[indices].mean(1).repeat_interleave(len(parameter) // len(indices), 0)
            loss, gradient = loss + (push * away).sum(-1), gradient + push
        return loss, gradient

    def log_probabilities(self, parameter: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError("a Gaussian task has no validation data; its objective is 'stein_kl'")


@dataclass(frozen=True)
class GaussianFamily:
    """Random Gaussian posteriors: factorised ones for training, correlated ones for testing.

    Args:
        dimensions: equally likely d.
        lrs, momentum_decays: equally likely settings of the sampler.
        num_data: N.
        curvatures: range of P's eigenvalues, log-uniform.
        noise: largest b, uniform from 0.
        offset: standard deviation of the posterior means about 0, beside the initial states'.
        correlated: a random rotation of P instead of a diagonal one.

    Raises:
        ValueError: an empty choice, or a range that is not one of positive numbers.
    """

    name: str = "gaussians"
    dimensions: tuple[int, ...] = (2, 5, 10)
    lrs: tuple[float, ...] = (0.1,)
    momentum_decays: tuple[float, ...] = (0.1,)
    num_data: int = 10_000
    curvatures: tuple[float, float] = (0.3, 3.0)
    noise: float = 0.5
    offset: float = 0.03
    correlated: bool = False

    def __post_init__(self) -> None:
        for name in ("dimensions", "lrs", "momentum_decays"):
            require_choices(self.name, name, getattr(self, name))
        for size in (*self.dimensions, self.num_data):
            validation.integer("dimensions and num_data", size)
        for lr in self.lrs:
            validation.positive("lrs", lr)
        for decay in self.momentum_decays:
            validation.fraction("momentum_decays", decay, open_left=True)
        if not 0 < self.curvatures[0] <= self.curvatures[1]:
            raise ValueError(f"curvatures must be a range of positive numbers, got {self.curvatures}")
        validation.non_negative("noise", self.noise)
        validation.non_negative("offset", self.offset)

    @property
    def has_validation(self) -> bool:
        return False

    def task(self, *keys: int | str) -> GaussianTask:
        stream = generator(*keys, "task")
        d, lr = choose(self.dimensions, stream), choose(self.lrs, stream)
        decay = choose(self.momentum_decays, stream)
        eigenvalues = torch.tensor([log_uniform(*self.curvatures, stream) for _ in range(d)])
        basis = torch.eye(d)
        if self.correlated:
            basis = torch.linalg.qr(torch.randn(d, d, generator=stream))[0]
        noise = self.noise * torch.rand((), generator=stream).item()
        return GaussianTask(
            self.offset * torch.randn(d, generator=stream),
            basis @ torch.diag(eigenvalues) @ basis.T,
            Hyperparameters(lr, self.num_data, momentum_decay=decay),
            noise=noise,
            seed=int(torch.randint(2**62, (), generator=stream)),
            kind=f"gaussian-{d}",
        )

    def specification(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    def data_fingerprints(self) -> dict[str, str]:
        return {}
