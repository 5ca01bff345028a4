"""For the tests of meta-training: a quadratic with a known answer, random images, and the smallest meta-learner."""

from dataclasses import dataclass, field
from typing import Any

import torch

from learned_samplers.base.segments import Segments
from meta_tasks.datasets import ImageData
from meta_tasks.random_streams import derive_seed, generator
from meta_tasks.rules.base import Hyperparameters, SamplerRule
from meta_tasks.tasks.task import ImageTask, TaskConfig


class QuadraticTask:
    """Mean loss ½·k·‖θ − c‖²/d with gradient k·(θ − c)/d; its "log-probability" of the one class is minus the loss."""

    kind, batch_size, num_validation, num_held_out, signature = "quadratic", 4, 2, 4, None

    def __init__(self, curvature=1.0, d=5, lr=0.1, temperature=0.0, centre_seed=0):
        self.curvature, self.device = curvature, torch.device("cpu")
        self.segments = Segments((d,))
        self.centre = torch.randn(d, generator=generator(centre_seed, "centre"))
        self.hyperparameters = Hyperparameters(lr=lr, num_data=16, temperature=temperature)

    def initial(self, seed):
        return torch.randn(self.segments.total, generator=generator(seed))

    def _loss(self, parameter):
        return 0.5 * self.curvature * (parameter - self.centre).square().mean(-1)

    def loss_and_gradient(self, parameter, indices):
        return self._loss(parameter), self.curvature * (parameter - self.centre) / parameter.shape[-1]

    def log_probabilities(self, parameter, indices):
        members, points = len(parameter), indices.shape[1]
        log_p = -self._loss(parameter)[:, None, None].expand(members, points, 1)
        return log_p, torch.zeros(members, points, dtype=torch.int64)


@dataclass(frozen=True)
class QuadraticFamily:
    """Quadratics of random curvature and centre."""

    name: str = "quadratic"
    lr: float = 0.1
    temperature: float = 0.0
    extra: dict[str, Any] = field(default_factory=dict)
    data: dict[str, str] = field(default_factory=dict)
    has_validation = True

    def task(self, *keys):
        stream = generator(*keys, "task")
        curvature = 2.0 + 2.0 * torch.rand((), generator=stream).item()
        return QuadraticTask(curvature, lr=self.lr, temperature=self.temperature, centre_seed=derive_seed(*keys))

    def specification(self):
        return {"name": self.name, "lr": self.lr, "temperature": self.temperature, **self.extra}

    def data_fingerprints(self):
        return self.data


def random_images(n=120, size=8, classes=3, channels=1, seed=0):
    """Labelled noise: enough to run networks on."""
    stream = generator(seed, "images")
    x = torch.rand(n, channels, size, size, generator=stream)
    y = torch.randint(classes, (n,), generator=stream)
    half = n // 2
    return ImageData("noise", classes, x[:half], y[:half], x[half:], y[half:], x[half:], y[half:])


def image_task(architecture="cnn", options=None, *, size=8, seed=0, device="cpu", **settings):
    options = {"channels": 4, "depth": 1} if options is None and architecture == "cnn" else options or {}
    config = TaskConfig("noise", architecture, options, **{"batch_size": 16, "validation_size": 20, **settings})
    return ImageTask(config, random_images(size=size), seed, device)


class LearnableSGD(SamplerRule):
    """With meta-parameters (φ₀, φ₁): v ← μ·v + g, θ ← θ − lr·exp(φ₀)·v, with μ = sigmoid(φ₁ − 2)."""

    name = "LearnableSGD"
    state_names = ("momentum",)
    num_weights = 2

    def draws_noise(self, hyper, step):
        return False

    def prepare(self, weights):
        return weights[:, :1].exp(), torch.sigmoid(weights[:, 1:] - 2)

    def update(self, prepared, at):
        factor, decay = prepared
        momentum = decay * at.state[0] + at.gradient
        return at.parameter - at.hyper.lr * factor * momentum, (momentum,)
