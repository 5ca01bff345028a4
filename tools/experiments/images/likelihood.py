"""What a network's output says of the targets: the loss of training, and its second curve, accuracy or RMSE."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from experiments.images.settings import Settings
from learned_samplers.posterior.outputs import OutputFormat
from meta_tasks.datasets import ImageData


class Likelihood(Protocol):
    """Of a classification or a regression."""

    #: What the second curve is called.
    curve: str

    def loss(self, output: Any, targets: Tensor) -> Tensor:
        """Mean negative log-likelihood of a minibatch, in nats."""

    def total(self, output: Any, targets: Tensor) -> Tensor:
        """A sum over the minibatch, from which `average` gives the second curve."""

    def average(self, total: float, count: int) -> float:
        """A point of the second curve."""


class Classification:
    """Logits of classes."""

    curve = "accuracy"

    def loss(self, output: Any, targets: Tensor) -> Tensor:
        return cross_entropy(output, targets)

    def total(self, output: Any, targets: Tensor) -> Tensor:
        return (output.argmax(1) == targets).sum()

    def average(self, total: float, count: int) -> float:
        return total / count


@dataclass(frozen=True)
class Regression:
    """Gaussian observations: of a known standard deviation, or of the log-variance that the network gives.

    Args:
        noise: σ, in the targets' unit; None where the network's last axis holds means and then log-variances.
    """

    noise: float | None
    curve = "rmse"

    @property
    def output_format(self) -> OutputFormat:
        """How the network's output is read."""
        return OutputFormat("regression", noise="log_variance" if self.noise is None else self.noise)

    def moments(self, output: Any, targets: Tensor | None = None) -> Tensor:
        """Mean and variance along a new last axis, (n, k, 2)."""
        found = self.output_format.moments(output)
        found = found.unsqueeze(1) if found.ndim == 2 else found
        if targets is not None and found.shape[:-1] != targets.shape:
            raise ValueError(
                f"the network's means have shape {tuple(found.shape[:-1])}, the targets {tuple(targets.shape)}"
            )
        return found

    def loss(self, output: Any, targets: Tensor) -> Tensor:
        mean, variance = self.moments(output, targets).unbind(-1)
        return (0.5 * ((targets - mean).square() / variance + variance.log() + math.log(2 * math.pi))).sum(1).mean()

    def total(self, output: Any, targets: Tensor) -> Tensor:
        return (self.moments(output)[..., 0] - targets).square().mean(1).sum()

    def average(self, total: float, count: int) -> float:
        return math.sqrt(total / count)


def likelihood_of(data: ImageData, settings: Settings) -> Classification | Regression:
    """That of a data set.

    Raises:
        ValueError: noise of observations that are classes.
    """
    if data.num_classes and settings.noise is not None:
        raise ValueError(f"noise={settings.noise} is that of a regression's observations, {data.name} has classes")
    return Classification() if data.num_classes else Regression(settings.noise)


def outputs_of(data: ImageData, settings: Settings) -> int:
    """Outputs that a network for the data has."""
    if data.num_classes:
        return data.num_classes
    return data.test_y.shape[1] * (2 if settings.noise is None else 1)


@torch.no_grad()
def evaluate(call: Callable[[Tensor], Any], x: Tensor, y: Tensor, likelihood: Likelihood) -> tuple[float, float]:
    """Mean loss in nats and the second curve's value."""
    loss = total = 0.0
    for inputs, targets in zip(x.split(256), y.split(256), strict=True):
        output = call(inputs)
        loss += likelihood.loss(output, targets).item() * len(targets)
        total += float(likelihood.total(output, targets))
    return loss / len(y), likelihood.average(total, len(y))
