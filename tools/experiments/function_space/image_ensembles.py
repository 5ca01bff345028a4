"""Particles of image classifiers: f-SVGD, SVGD and a deep ensemble at the same budget, their scores and weights."""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from experiments.function_space.stacked_mlp import StackedMLP
from experiments.function_space.stacked_resnet import StackedResNet
from experiments.harness.run_store import RunStore, data_fingerprint
from experiments.harness.tuning import Choice, tune
from learned_samplers import FSVGD, SVGD, metrics
from learned_samplers.particles import (
    FittedPrior,
    GaussianProcessPrior,
    LinearScalarisation,
    classification_loss,
    measurement_set,
)
from learned_samplers.particles.function_space import Covariance
from meta_tasks.datasets import ImageData
from meta_tasks.progress import progress

#: In the order of the tables; PlainEnsemble is the deep ensemble without prior.
METHODS = ("FSVGD", "SVGD", "DeepEnsemble", "PlainEnsemble")
#: Variance of every weight under the prior, and of the first weights: a ReLU layer keeps the size of its inputs.
PRIOR_VARIANCE = 2.0


@dataclass(frozen=True)
class ImageProtocol:
    """How every method is trained.

    Attributes:
        particles: number of networks.
        network: "mlp", or "resnet": ResNet-20 with filter response normalisation.
        hidden, width: units of the MLP's hidden layers, and channels of the ResNet's first stage.
        epochs, tuning_epochs: of a run, and of those that choose the learning rate.
        batch: images a step. Adam's rate falls to zero along a cosine.
        extra, noise: draws of ν at each step of f-SVGD, training images plus N(0, noise²) in standardised pixels.
        prior_inputs: inputs at which f-SVGD's prior on functions is evaluated each step: for MLPs the Gaussian process
            of infinite width, for ResNets the normal distribution fitted to draws of the prior on weights.
        rates: those tried.
    """

    particles: int = 5
    network: str = "mlp"
    hidden: tuple[int, ...] = (400, 400)
    width: int = 8
    epochs: int = 10
    tuning_epochs: int = 2
    batch: int = 250
    extra: int = 50
    noise: float = 0.1
    prior_inputs: int = 4
    rates: tuple[float, ...] = (1e-2, 3e-2, 1e-1)


class Classifiers:
    """The networks of a run: images in [0, 1] in, log-probabilities out.

    Pixels are standardised by the training images' mean and deviation.
    """

    def __init__(self, data: ImageData, protocol: ImageProtocol):
        self.mean, self.deviation = data.train_x.mean().item(), data.train_x.std().item()
        self.stack: StackedMLP | StackedResNet
        if protocol.network == "resnet":
            self.stack = StackedResNet(data.input_shape, data.num_classes, protocol.width)
        else:
            self.stack = StackedMLP((data.train_x[0].numel(), *protocol.hidden, data.num_classes))
        self.params: list[Tensor] = []

    def start(self, count: int) -> None:
        self.params = [p.requires_grad_() for p in self.prior_draw(count)]

    def prior_draw(self, count: int) -> list[Tensor]:
        return [PRIOR_VARIANCE**0.5 * p for p in self.stack.draw(count)]

    def standardised(self, images: Tensor) -> Tensor:
        """What the networks see: rows for an MLP, images for a ResNet."""
        shaped = images.flatten(1) if isinstance(self.stack, StackedMLP) else images
        return (shaped - self.mean) / self.deviation

    def logits(self, images: Tensor) -> Tensor:
        """(M, n, C)."""
        return self.stack(self.params, self.standardised(images))

    def log_predictive(self, images: Tensor) -> Tensor:
        """log of the average probabilities, (n, C)."""
        return self.logits(images).log_softmax(-1).logsumexp(0) - math.log(len(self.params[0]))

    def members(self, count: int) -> Classifiers:
        """The first ``count`` networks alone."""
        part = object.__new__(Classifiers)
        part.mean, part.deviation, part.stack = self.mean, self.deviation, self.stack
        part.params = [p[:count] for p in self.params]
        return part

    @torch.no_grad()
    def predict(self, images: Tensor, batch: int = 1000) -> Tensor:
        """Average probabilities (n, C)."""
        return torch.cat([self.log_predictive(part).exp() for part in images.split(batch)])


def infinite_width(hidden_layers: int, variance: float) -> Covariance:
    """Covariance of the outputs of a `StackedMLP` of infinite width with weights from N(0, variance).

    K₀ = variance·(x·x′ + 1)/(d + 1), and a ReLU layer makes of it variance·√(K K′)·(sin t + (π − t) cos t)/2π, where t
    is the angle cos t = K₀(x, x′)/√(K K′) (Cho and Saul, NeurIPS 2009).
    """

    def covariance(x: Tensor, y: Tensor) -> Tensor:
        x, y = x.flatten(1).double(), y.flatten(1).double()
        scale = variance / (x.shape[1] + 1)
        own = [scale * (z.square().sum(1) + 1) for z in (x, y)]
        cross = scale * (x @ y.T + 1)
        for _ in range(hidden_layers):
            size = (own[0][:, None] * own[1]).sqrt()
            angle = (cross / size).clamp(-1, 1).arccos()
            cross = variance * size * (angle.sin() + (math.pi - angle) * angle.cos()) / (2 * math.pi)
            own = [variance * z / 2 for z in own]
        return cross

    return covariance


def _step(method: str, networks: Classifiers, data: ImageData, lr: float, protocol: ImageProtocol) -> tuple[Any, Any]:
    """The sampler, and what makes its closure from a minibatch."""
    count, params = len(data.train_y), networks.params
    if method == "FSVGD":
        prior: GaussianProcessPrior | FittedPrior
        if protocol.network == "mlp":
            prior = GaussianProcessPrior(infinite_width(len(protocol.hidden), PRIOR_VARIANCE))
        else:
            stack = networks.stack
            prior = FittedPrior(lambda x, n: stack(networks.prior_draw(n), x), num_inputs=protocol.prior_inputs)
        pixels = networks.standardised(data.train_x)
        functions = FSVGD(params, lr, count, base_optimizer=torch.optim.Adam)

        def function_space(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            inputs = measurement_set(networks.standardised(x), pixels, protocol.extra, scale=protocol.noise)
            outputs = networks.stack(params, inputs)
            chosen = torch.randperm(len(inputs))[: protocol.prior_inputs]
            density = prior.log_density(inputs[chosen], outputs[:, chosen])
            return classification_loss(outputs[:, : len(x)], y), outputs, density

        return functions, function_space
    settings: dict[str, Any] = dict(prior_precision=1 / PRIOR_VARIANCE, base_optimizer=torch.optim.Adam)
    if method == "SVGD":
        return SVGD(params, lr, count, **settings), lambda x, y: classification_loss(networks.logits(x), y)
    if method == "PlainEnsemble":
        settings["prior_precision"] = 0.0
    sampler = LinearScalarisation(params, lr, count, **settings)
    return sampler, lambda x, y: classification_loss(networks.logits(x), y)[None]


def train(
    method: str, data: ImageData, lr: float, protocol: ImageProtocol, seed: int, *, label: str = ""
) -> tuple[Classifiers, float]:
    """The networks after ``protocol.epochs``, and the seconds that took.

    Raises:
        FloatingPointError: it diverged.
    """
    torch.manual_seed(seed)
    networks = Classifiers(data, protocol)
    networks.start(protocol.particles)
    sampler, energies = _step(method, networks, data, lr, protocol)
    batches = math.ceil(len(data.train_y) / protocol.batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(sampler, protocol.epochs * batches)
    start = time.perf_counter()
    with progress(total=protocol.epochs * batches, unit="step", desc=label, leave=False) as bar:
        for _ in range(protocol.epochs):
            for index in torch.randperm(len(data.train_y)).split(protocol.batch):
                x, y = data.train_x[index], data.train_y[index]
                sampler.step(lambda x=x, y=y: energies(x, y))
                schedule.step()
                bar.update()
    return networks, time.perf_counter() - start


class ImageRuns:
    """Runs of a protocol on one data set, kept in a folder with their weights."""

    def __init__(self, out: Path, data: ImageData, protocol: ImageProtocol, *, fresh: bool = False):
        self.data, self.protocol = data, protocol
        self.store = RunStore(out, data_fingerprint(data), fresh=fresh)

    def tune(self, method: str) -> tuple[float, dict[str, float | None]]:
        """The learning rate with the best validation NLL after the tuning epochs, and that of all (None: diverged).

        Raises:
            RuntimeError: every rate diverged.
        """
        short = replace(self.protocol, epochs=self.protocol.tuning_epochs)

        def attempt(choice: Choice, seed: int) -> float | None:
            def make() -> dict[str, Any]:
                try:
                    networks, _ = train(method, self.data, choice.lr, short, seed, label=f"{method}, {choice}")
                except FloatingPointError:
                    return {"nll": None}
                return {"nll": metrics.nll(networks.predict(self.data.val_x), self.data.val_y)}

            settings = {**self._settings(method, short, seed), "lr": choice.lr}
            return self.store.run(f"tune_{method}_lr{choice.lr:g}", settings, make)["nll"]

        try:
            tuning = tune([Choice(lr) for lr in self.protocol.rates], attempt, lambda nll: nll, seeds=[1000])
        except RuntimeError as error:
            raise RuntimeError(f"{method}: {error}") from error
        return tuning.chosen.lr, {f"{choice.lr:g}": tuning.mean(choice) for choice in tuning.trials}

    def run(self, method: str, lr: float, seed: int) -> dict[str, Any]:
        """Test scores of one run: those of the average, and the mean error of its networks alone."""
        name = f"{method}_seed{seed}"

        def make() -> dict[str, Any]:
            networks, seconds = train(method, self.data, lr, self.protocol, seed, label=f"{method}, seed {seed}")
            self.store.begin(name, "samples")
            weights = {str(i): p.detach().contiguous() for i, p in enumerate(networks.params)}
            save_file(weights, self.store.path(name, "samples", ".safetensors"))
            with torch.no_grad():
                single = torch.cat([networks.logits(part).argmax(-1) for part in self.data.test_x.split(1000)], dim=1)
            wrong = (single != self.data.test_y).double().mean().item()
            summary = metrics.summary(networks.predict(self.data.test_x), self.data.test_y)
            return {"seconds": seconds, "error_of_one": wrong, "error": 1 - summary["accuracy"], **summary}

        return self.store.run(name, {**self._settings(method, self.protocol, seed), "lr": lr}, make)

    def load(self, method: str, seed: int) -> Classifiers:
        """The networks of a finished run.

        Raises:
            FileNotFoundError: there is none.
            ValueError: they were trained with other settings (the learning rate may be any), or saved by an earlier
                version, in another layout.
        """
        path = self.store.path(f"{method}_seed{seed}", "samples", ".safetensors")
        made_of = self.record(method, seed)["made_of"]
        wanted = json.loads(json.dumps(self._settings(method, self.protocol, seed)))
        for key, value in wanted.items():
            if made_of["settings"][key] != value:
                raise ValueError(f"{path} was trained with {key} {made_of['settings'][key]}, the settings say {value}")
        if made_of["data"] != self.store.data:
            raise ValueError(f"{path} was trained on other data")
        found, networks = load_file(path), Classifiers(self.data, self.protocol)
        networks.params = [found[str(i)] for i in range(len(found))]
        fresh = networks.stack.draw(1, generator=torch.Generator())
        if [p.shape[1:] for p in networks.params] != [p.shape[1:] for p in fresh]:
            raise ValueError(f"{path} has the weights of an earlier version in another layout: train anew (--fresh)")
        return networks

    def record(self, method: str, seed: int) -> dict[str, Any]:
        """A finished run as it is on disk, see `RunStore.record`.

        Raises:
            FileNotFoundError: there is none.
        """
        name = f"{method}_seed{seed}"
        path, record = self.store.path(name, "samples", ".safetensors"), self.store.record(name)
        if record is None or not path.is_file():
            raise FileNotFoundError(f"{path} or its run is missing: train those networks first, by the command mnist")
        return record

    def _settings(self, method: str, protocol: ImageProtocol, seed: int) -> dict[str, Any]:
        return {
            "method": method,
            "seed": seed,
            "protocol": asdict(protocol),
            "data": self.data.name,
            "images": len(self.data.train_y),
        }
