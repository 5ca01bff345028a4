"""The posteriors: data, network, loss and prediction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from experiments.harness import uci_data
from experiments.harness.runs.networks import build_network
from experiments.harness.runs.settings import Settings

Network = Callable[[], nn.Module]

BINS = torch.linspace(-4.0, 4.0, 201, dtype=torch.float64)  # of a regression, in standard deviations of the targets
NOISE = 0.3
HIDDEN = 50


@dataclass(frozen=True)
class Part:
    """One posterior, and how HMC and the others are run on it.

    Attributes:
        settings: data, network, minibatch, T and λ; of a regression the last three.
        hmc: learning rate at the start, leapfrog steps of a trajectory, trajectories of a chain.
        rates: of `SGHMC` and `BAOA`, and of `AdaptedSGHMC`.
        regression: the name of a UCI set in the place of the settings' data.
        images: test images, the first of them; None is all.
    """

    settings: Settings
    hmc: tuple[float, int, int]
    rates: tuple[tuple[float, ...], tuple[float, ...]]
    budgets: tuple[int, ...] = (300, 1000, 3000, 10_000, 30_000)
    regression: str | None = None
    images: int | None = None


_ADAPTED = (0.005, 0.01, 0.02)
PARTS = {
    "digits": Part(
        Settings(model="mlp", hidden=(50,), temperature=1.0, prior_precision=3.0),
        hmc=(0.03, 30, 1200),
        rates=((0.05, 0.1, 0.2), _ADAPTED),
    ),
    "concrete": Part(
        Settings(temperature=1.0, prior_precision=1.0),
        hmc=(0.003, 30, 800),
        rates=((0.005, 0.01, 0.02), _ADAPTED),
        regression="concrete",
    ),
    "fashion": Part(
        Settings(
            **dict(dataset="fashion_mnist", size=14, limit=2000, model="cnn", channels=8, depth=2),
            **dict(temperature=1.0, prior_precision=20.0),
        ),
        hmc=(0.03, 15, 600),
        rates=((0.05, 0.1, 0.2), _ADAPTED),
        images=1000,
    ),
}


@dataclass(frozen=True)
class Problem:
    """Data in single precision; ``network`` makes a new one, ``loss`` is the mean over rows, in nats."""

    part: Part
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    network: Network
    loss: Callable[[Tensor, Tensor], Tensor]
    probabilities: Callable[[Tensor], Tensor] = field(default=lambda outputs: outputs.double().softmax(1))

    @property
    def num_data(self) -> int:
        return len(self.train[1])

    @property
    def posterior(self) -> dict[str, float]:
        settings = self.part.settings
        return {"temperature": settings.temperature, "prior_precision": settings.prior_precision}

    @torch.no_grad()
    def predict(self, model: nn.Module) -> Tensor:
        """Probabilities of classes, or masses of bins, of the test rows: (T, K), in double precision."""
        return self.probabilities(model(self.test[0]))


def _images(part: Part, root: str | None) -> Problem:
    data = part.settings.load_data(root)
    test = data.test_x[: part.images], data.test_y[: part.images]
    return Problem(part, (data.train_x, data.train_y), test, lambda: build_network(part.settings, data), cross_entropy)


def _regression(part: Part, root: str | None) -> Problem:
    assert part.regression is not None
    table = uci_data.load(part.regression, root)
    data = uci_data.standardise(table, table.train_index()[:1], table.test_index[:1])
    inputs = data.train_x.shape[2]

    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(inputs, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1), nn.Flatten(0))

    def loss(outputs: Tensor, y: Tensor) -> Tensor:
        return (outputs - y).square().mean() / (2 * NOISE**2)

    def masses(outputs: Tensor) -> Tensor:
        """Masses of the bins; the outermost have what lies beyond them."""
        below = torch.special.ndtr((BINS[1:-1] - outputs.double()[:, None]) / NOISE)
        edges = torch.cat([torch.zeros(len(outputs), 1), below, torch.ones(len(outputs), 1)], 1)
        return edges.diff(dim=1)

    bins = torch.bucketize(data.test_y[:, 0].double(), BINS[1:-1])
    train, test = (data.train_x[:, 0], data.train_y[:, 0]), (data.test_x[:, 0], bins)
    return Problem(part, train, test, network, loss, masses)


def load(name: str, root: str | None) -> Problem:
    """The posterior of that name."""
    part = PARTS[name]
    return _images(part, root) if part.regression is None else _regression(part, root)


def made_of(part: Part) -> dict[str, Any]:
    """Settings that a run depends on beside the data, as JSON takes them."""
    settings = part.settings
    network = {"model": settings.model, **settings.network_options()} if part.regression is None else part.regression
    return {
        **{name: getattr(settings, name) for name in ("batch_size", "temperature", "prior_precision")},
        "network": network,
    }
