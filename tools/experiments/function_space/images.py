"""Declaration of the classification error of f-SVGD, SVGD and deep ensembles on images, at the same budget."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from torch import Tensor

from experiments.function_space.networks import StackedMLP, infinite_width
from experiments.function_space.particles import Networks, stepper
from experiments.harness.options import DataOptions, RunOptions, at_least, one_of
from experiments.harness.run_store import RunStore, data_fingerprint
from experiments.harness.study import Experiment, Job, Measure
from experiments.harness.tuning import Choice
from learned_samplers import metrics
from learned_samplers.particles import GaussianProcessPrior, classification_loss, measurement_set
from meta_tasks.datasets import ImageData
from meta_tasks.datasets import load as load_images
from meta_tasks.progress import progress

#: In the order of the tables; PlainEnsemble is the deep ensemble without prior.
METHODS = ("FSVGD", "SVGD", "DeepEnsemble", "PlainEnsemble")
#: Variance of every weight under the prior, and of the first weights: a ReLU layer keeps the size of its inputs.
PRIOR_VARIANCE = 2.0
#: Draws of ν at each step of f-SVGD: training images plus N(0, NOISE²) in standardised pixels; and inputs at which its
#: prior on functions, the Gaussian process of infinite width, is evaluated.
EXTRA, NOISE, PRIOR_INPUTS = 50, 0.1, 4


@dataclass(frozen=True)
class ImageProtocol:
    """Training of every method; Adam's rate falls to zero along a cosine."""

    particles: int = 5  # Networks of each method.
    hidden: tuple[int, ...] = (400, 400)  # Units of the hidden layers.
    epochs: int = 10  # Epochs.
    tuning_epochs: int = 2  # Epochs of the runs that choose the learning rate.
    batch: int = 250  # Images a step.
    rates: tuple[float, ...] = (1e-2, 3e-2, 1e-1)  # Learning rates to try.

    def __post_init__(self) -> None:
        at_least(1, self, "particles", "epochs", "tuning_epochs", "batch")
        if not self.rates or min(self.rates) <= 0:
            raise ValueError(f"rates must be positive, got {self.rates}")


class Classifiers(Networks):
    """Networks of a run: images in [0, 1], standardised by the training images; logits out."""

    def __init__(self, data: ImageData, protocol: ImageProtocol) -> None:
        self.mean, self.deviation = data.train_x.mean().item(), data.train_x.std().item()
        self.pixels, self.num_data = self.standardised(data.train_x), len(data.train_y)
        self.stack = StackedMLP((data.train_x[0].numel(), *protocol.hidden, data.num_classes))
        self.params = [(PRIOR_VARIANCE**0.5 * p).requires_grad_() for p in self.stack.draw(protocol.particles)]
        self.prior_precision = 1 / PRIOR_VARIANCE
        self.prior = GaussianProcessPrior(infinite_width(len(protocol.hidden), PRIOR_VARIANCE))

    def standardised(self, images: Tensor) -> Tensor:
        return (images.flatten(1) - self.mean) / self.deviation

    def outputs(self, x: Tensor) -> Tensor:
        """Logits (M, n, C) of standardised images."""
        return self.stack(self.params, x)

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return classification_loss(outputs, y)

    def measured(self, x: Tensor) -> Tensor:
        return measurement_set(x, self.pixels, EXTRA, scale=NOISE)

    def density(self, inputs: Tensor, outputs: Tensor) -> Tensor:
        chosen = torch.randperm(len(inputs))[:PRIOR_INPUTS]
        return self.prior.log_density(inputs[chosen], outputs[:, chosen])

    @torch.no_grad()
    def predict(self, images: Tensor, batch: int = 1000) -> Tensor:
        """Probabilities of each network, (M, n, C)."""
        parts = [self.outputs(self.standardised(part)).softmax(-1) for part in images.split(batch)]
        return torch.cat(parts, dim=1)


def train(method: str, data: ImageData, lr: float, protocol: ImageProtocol, seed: int) -> tuple[Classifiers, float]:
    """Networks after ``protocol.epochs``, and the seconds that it took."""
    torch.manual_seed(seed)
    start, networks = time.perf_counter(), Classifiers(data, protocol)
    sampler, step = stepper(method, networks, lr)
    steps = protocol.epochs * math.ceil(networks.num_data / protocol.batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(sampler, steps)
    with progress(total=steps, unit="step", desc=method, leave=False) as bar:
        for _ in range(protocol.epochs):
            for index in torch.randperm(networks.num_data).split(protocol.batch):
                step(networks.pixels[index], data.train_y[index])
                schedule.step()
                bar.update()
    return networks, time.perf_counter() - start


@dataclass(frozen=True)
class MNIST(DataOptions, RunOptions):
    """Classification error of f-SVGD, SVGD and a deep ensemble at the same budget."""

    # Methods, in the order of the tables, in any letter case; PlainEnsemble is the deep ensemble without prior.
    methods: tuple[Annotated[str, one_of(METHODS)], ...] = METHODS
    seeds: int = 1  # Seeds, counted up from --seed; each has its own weights and minibatches.
    # Networks and training. Nothing that we have of the paper gives the networks or epochs of its 1.21 %.
    protocol: Annotated[ImageProtocol, tyro.conf.OmitArgPrefixes] = field(default_factory=ImageProtocol)
    dataset: str = "mnist"  # A data set of images by its name in meta_tasks.datasets.
    out: Path = Path("runs/function_space_mnist")  # Folder of the runs, the table and the results.


class ImageEnsembles(Experiment):
    """Every method on one data set; MNIST has no validation images of its own, a sixth is held out."""

    measures = (
        Measure("error", "test error, %", 2, 100),
        Measure("error_of_one", "of one network, %", 2, 100),
        *(Measure(key, heading, 4) for key, heading in (("nll", "NLL"), ("ece", "ECE"), ("brier", "Brier"))),
        Measure("seconds", "seconds", 0),
    )

    def __init__(self, options: MNIST) -> None:
        super().__init__(options)
        self.images = load_images(options.dataset, options.data, validation=1 / 6, download=False)

    def problems(self) -> Sequence[str]:
        return (self.options.dataset,)

    def methods(self, problem: str) -> Sequence[str]:
        return self.options.methods

    def choices(self, problem: str, method: str) -> Sequence[Choice]:
        return [Choice(lr) for lr in self.options.protocol.rates]

    def data(self, problem: str) -> str:
        return data_fingerprint(self.images)

    def made_of(self, job: Job) -> dict[str, Any]:
        return {"protocol": asdict(self.options.protocol)}

    def run(self, job: Job, store: RunStore) -> dict[str, Any]:
        protocol, images = self.options.protocol, self.images
        if job.tuning:
            protocol = replace(protocol, epochs=protocol.tuning_epochs)
        networks, seconds = train(job.method, images, job.choice.lr, protocol, job.seed)
        if job.tuning:
            return {"score": metrics.nll(networks.predict(images.val_x).mean(0), images.val_y)}
        single = networks.predict(images.test_x)
        scores = metrics.summary(single.mean(0), images.test_y)
        wrong = (single.argmax(-1) != images.test_y).double().mean().item()
        return {**scores, "error": 1 - scores["accuracy"], "error_of_one": wrong, "seconds": seconds}
