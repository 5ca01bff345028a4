"""What a network's outputs mean: logits of classes, or a regression's means and variances."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from experiments.harness.runs.settings import Settings
from learned_samplers.posterior.outputs import OutputFormat
from meta_tasks.datasets import ImageData


class Classification:
    """Logits of classes."""

    #: What the second curve of a run is called.
    curve = "accuracy"

    def loss(self, output: Any, targets: Tensor) -> Tensor:
        """Mean negative log-likelihood of a minibatch, in nats."""
        return cross_entropy(output, targets)

    def total(self, output: Any, targets: Tensor) -> Tensor:
        """A sum over the minibatch, from which `average` gives the second curve."""
        return (output.argmax(1) == targets).sum()

    def average(self, total: float, count: int) -> float:
        """A point of the second curve."""
        return total / count


@dataclass(frozen=True)
class Regression:
    """Gaussian observations: of a known standard deviation, or of the log-variance that the network gives.

    Args:
        noise: σ, in the targets' unit; None where the network's last axis holds means and then log-variances.
    """

    noise: float | None
    curve = "rmse"

    def moments(self, output: Any, targets: Tensor | None = None) -> Tensor:
        """Mean and variance along a new last axis, (n, k, 2)."""
        form = OutputFormat("regression", noise="log_variance" if self.noise is None else self.noise)
        found = form.moments(output)
        found = found.unsqueeze(1) if found.ndim == 2 else found
        if targets is not None and found.shape[:-1] != targets.shape:
            raise ValueError(
                f"the network's means have shape {tuple(found.shape[:-1])}, the targets {tuple(targets.shape)}"
            )
        return found

    def loss(self, output: Any, targets: Tensor) -> Tensor:
        """As of `Classification`."""
        mean, variance = self.moments(output, targets).unbind(-1)
        return (0.5 * ((targets - mean).square() / variance + variance.log() + math.log(2 * math.pi))).sum(1).mean()

    def total(self, output: Any, targets: Tensor) -> Tensor:
        """As of `Classification`."""
        return (self.moments(output)[..., 0] - targets).square().mean(1).sum()

    def average(self, total: float, count: int) -> float:
        """As of `Classification`."""
        return math.sqrt(total / count)


Likelihood = Classification | Regression


def likelihood_of(data: ImageData, settings: Settings) -> Likelihood:
    """That of a data set.

    Raises:
        ValueError: noise of observations that are classes.
    """
    if data.num_classes and settings.noise is not None:
        raise ValueError(f"noise={settings.noise} is that of a regression's observations, {data.name} has classes")
    return Classification() if data.num_classes else Regression(settings.noise)


@torch.no_grad()
def evaluate(call: Callable[[Tensor], Any], x: Tensor, y: Tensor, likelihood: Likelihood) -> tuple[float, float]:
    """Mean loss in nats and the second curve's value."""
    loss = total = 0.0
    for inputs, targets in zip(x.split(256), y.split(256), strict=True):
        output = call(inputs)
        loss += likelihood.loss(output, targets).item() * len(targets)
        total += float(likelihood.total(output, targets))
    return loss / len(y), likelihood.average(total, len(y))
