"""Five posteriors whose answers are known: in closed form, by integration on a grid, or by long HMC chains."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from scipy.special import logsumexp
from torch import Tensor

from learned_samplers.base.optional import require

#: Predictions of long HMC chains, made by ``python -m learned_samplers.benchmark.references``.
FILE = Path(__file__).with_name("references.npz")
Params = list[Tensor]


@dataclass(frozen=True)
class Target:
    """The law exp(−N·loss − ½λ‖θ‖²) of some parameters, with known moments of some quantities.

    Args:
        name: in tables and files.
        num_data, prior_precision: N and λ.
        batch: rows of a minibatch; ``num_data`` for all of them.
        start: a random generator to first parameters.
        loss: parameters and rows to the mean loss of these rows.
        quantities: parameters to the numbers, (q,), whose moments are compared.
        reference: their means and standard deviations under the law.
        classes: the quantities are probabilities of so many classes, row by row; 0 if they are something else.
    """

    name: str
    num_data: int
    prior_precision: float
    batch: int
    start: Callable[[torch.Generator], Params]
    loss: Callable[[Params, Tensor], Tensor]
    quantities: Callable[[Params], Tensor]
    reference: Callable[[], tuple[np.ndarray, np.ndarray]]
    classes: int = 0


def _normal(*shapes: tuple[int, ...], scale: float = 1.0) -> Callable[[torch.Generator], Params]:
    return lambda generator: [torch.randn(shape, generator=generator) * scale for shape in shapes]


@cache
def regression() -> Target:
    """Linear regression of 100 rows on 5 correlated features: the posterior is Gaussian, in closed form."""
    numbers, noise, prior = np.random.default_rng(0), 0.5, 1.0
    x = numbers.standard_normal((100, 5)) @ np.linalg.cholesky(0.7 + 0.3 * np.eye(5)).T
    y = x @ np.array([1.0, -1.0, 0.5, 0.0, 2.0]) + noise * numbers.standard_normal(100)
    rows, targets = torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)

    def loss(params: Params, index: Tensor) -> Tensor:
        return (rows[index] @ params[0] - targets[index]).square().mean() / (2 * noise**2)

    @cache
    def reference() -> tuple[np.ndarray, np.ndarray]:
        covariance = np.linalg.inv(x.T @ x / noise**2 + prior * np.eye(5))
        return covariance @ x.T @ y / noise**2, np.sqrt(np.diag(covariance))

    return Target("regression", 100, prior, 100, _normal((5,)), loss, lambda params: params[0], reference)


@cache
def deep_linear() -> Target:
    """y = a·b·c·x + noise, a deep linear network with one unit a layer: integrated on a grid of its three weights."""
    numbers, noise = np.random.default_rng(1), 0.5
    x = numbers.standard_normal(50)
    y = x + noise * numbers.standard_normal(50)
    rows, targets = torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)

    def loss(params: Params, index: Tensor) -> Tensor:
        return (params[0].prod() * rows[index] - targets[index]).square().mean() / (2 * noise**2)

    def quantities(params: Params) -> Tensor:
        return torch.cat([params[0].prod()[None], params[0].square()])

    @cache
    def reference() -> tuple[np.ndarray, np.ndarray]:
        # The law has no preference among the signs that leave the product: one octant of two is enough.
        axis = (np.arange(120) + 0.5) / 24  # to 5, by the midpoint rule
        a, b, c = np.meshgrid(axis, axis, axis, indexing="ij")
        values, weights = [], []
        for sign in (1.0, -1.0):
            product = sign * a * b * c
            squares = (x @ x) * product**2 - 2 * (x @ y) * product + y @ y
            weights.append(-squares / (2 * noise**2) - (a**2 + b**2 + c**2) / 2)
            values.append(np.stack([product, a**2, b**2, c**2]).reshape(4, -1))
        logs, numbers_ = np.stack(weights).ravel(), np.concatenate(values, 1)
        share = np.exp(logs - logsumexp(logs))
        mean = numbers_ @ share
        return mean, np.sqrt((numbers_ - mean[:, None]) ** 2 @ share)

    return Target("deep linear", 50, 1.0, 50, _normal((3,)), loss, quantities, reference)


@cache
def schools() -> Target:
    """Eight schools (Rubin, 1981), not centred: μ ~ N(0, 5²), τ ~ half-normal(5); integrated over μ and log τ."""
    effects = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
    errors = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
    y, deviations = torch.tensor(effects, dtype=torch.float32), torch.tensor(errors, dtype=torch.float32)

    def parts(params: Params) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_scale, eta = params[0][0] * 5, params[0][1], params[0][2:]
        return mean, log_scale, mean + log_scale.exp() * eta

    def loss(params: Params, index: Tensor) -> Tensor:
        mean, log_scale, theta = parts(params)
        prior = (mean / 5) ** 2 / 2 + (2 * log_scale).exp() / 50 - log_scale + params[0][2:].square().sum() / 2
        return (((y - theta) / deviations).square().sum() / 2 + prior) / 8

    @cache
    def reference() -> tuple[np.ndarray, np.ndarray]:
        mean, log_scale = np.meshgrid(np.linspace(-20, 30, 801), np.linspace(-9, 4, 801), indexing="ij")
        m, t = mean.ravel()[:, None], np.exp(log_scale.ravel())[:, None]
        logs = -(m[:, 0] ** 2) / 50 - t[:, 0] ** 2 / 50 + log_scale.ravel()
        logs -= (((effects - m) ** 2 / (errors**2 + t**2) + np.log(errors**2 + t**2)) / 2).sum(1)
        share = np.exp(logs - logsumexp(logs))
        variance = 1 / (1 / errors**2 + 1 / t**2)
        centre = variance * (effects / errors**2 + m / t**2)
        first = np.concatenate([m, np.log(t), centre], 1)
        inside = np.concatenate([np.zeros((len(m), 2)), variance], 1)
        expectation = share @ first
        return expectation, np.sqrt(share @ ((first - expectation) ** 2 + inside))

    def quantities(params: Params) -> Tensor:
        mean, log_scale, theta = parts(params)
        return torch.cat([mean[None], log_scale[None], theta])

    return Target("eight schools", 8, 0.0, 8, _normal((10,)), loss, quantities, reference)


@cache
def digits() -> tuple[Tensor, Tensor, Tensor]:
    """200 training images (200, 8, 8) and labels of scikit-learn's digits, and 100 images to predict."""
    x, y = require("sklearn.datasets", "estimators").load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    images = torch.tensor(x[order] / 16, dtype=torch.float32).view(-1, 8, 8)
    return images[:200], torch.tensor(y[order[:200]]), images[200:300]


def mlp(params: Params, images: Tensor) -> Tensor:
    """Logits of an MLP 64-10-10 with tanh; parameters may have leading axes, of chains."""
    first, bias, second, last = params
    hidden = torch.tanh(images.flatten(-2) @ first + bias.unsqueeze(-2))
    return hidden @ second + last.unsqueeze(-2)


def cnn(params: Params, images: Tensor) -> Tensor:
    """Logits of a CNN: 3×3 convolution of 4 channels, tanh, 2×2 mean, linear; parameters may have leading axes."""
    kernel, bias, second, last = params
    patches = images.unfold(1, 3, 1).unfold(2, 3, 1).reshape(len(images), 36, 9)
    maps = torch.tanh(torch.einsum("npk,...kc->...npc", patches, kernel) + bias[..., None, None, :])
    pooled = maps.unflatten(-2, (3, 2, 3, 2)).mean((-2, -4))
    return pooled.flatten(-3) @ second + last.unsqueeze(-2)


SHAPES = {"digits MLP": ((64, 10), (10,), (10, 10), (10,)), "digits CNN": ((9, 4), (4,), (36, 10), (10,))}
NETWORKS = {"digits MLP": mlp, "digits CNN": cnn}
PRIOR = 5.0


@cache
def classification(name: str) -> Target:
    """A small network on 200 digits, with the predictions of 100 others by long HMC chains."""
    network = NETWORKS[name]

    def loss(params: Params, index: Tensor) -> Tensor:
        x, labels, _ = digits()
        return torch.nn.functional.cross_entropy(network(params, x[index]), labels[index])

    @cache
    def reference() -> tuple[np.ndarray, np.ndarray]:
        with np.load(FILE) as file:
            return tuple(file[f"{name} {moment}"].astype(np.float64).ravel() for moment in ("mean", "deviation"))

    def quantities(params: Params) -> Tensor:
        return network(params, digits()[2]).softmax(-1).flatten()

    start = _normal(*SHAPES[name], scale=1 / math.sqrt(PRIOR * 10))
    return Target(name, 200, PRIOR, 50, start, loss, quantities, reference, classes=10)


#: Name of a target → a function that makes it.
TARGETS: dict[str, Callable[[], Target]] = {
    "regression": regression,
    "deep linear": deep_linear,
    "eight schools": schools,
    "digits MLP": lambda: classification("digits MLP"),
    "digits CNN": lambda: classification("digits CNN"),
}
