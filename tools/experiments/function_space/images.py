"""Classification error of f-SVGD, SVGD and deep ensembles on MNIST, at the same budget."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from torch import Tensor

from experiments.function_space.networks import StackedMLP
from experiments.harness.methods import one_of
from experiments.harness.options import DataOptions, RunOptions, at_least_one
from experiments.harness.output import settings_of, write_outputs
from experiments.harness.run_store import RunStore, data_fingerprint
from experiments.harness.tables import markdown, spread
from experiments.harness.tuning import Choice, tune
from learned_samplers import FSVGD, SVGD, metrics
from learned_samplers.particles import GaussianProcessPrior, LinearScalarisation, classification_loss, measurement_set
from learned_samplers.particles.function_space import Covariance
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
    """How every method is trained; Adam's rate falls to zero along a cosine."""

    # Networks of each method.
    particles: int = 5
    # Units of the hidden layers.
    hidden: tuple[int, ...] = (400, 400)
    # Epochs.
    epochs: int = 10
    # Epochs of the runs that choose the learning rate.
    tuning_epochs: int = 2
    # Images a step.
    batch: int = 250
    # Learning rates to try.
    rates: tuple[float, ...] = (1e-2, 3e-2, 1e-1)

    def __post_init__(self) -> None:
        at_least_one(self, "particles", "epochs", "tuning_epochs", "batch")
        if not self.rates or min(self.rates) <= 0:
            raise ValueError(f"rates must be positive, got {self.rates}")


class Classifiers:
    """The networks of a run: images in [0, 1] in, log-probabilities out.

    Pixels are standardised by the training images' mean and deviation.
    """

    def __init__(self, data: ImageData, protocol: ImageProtocol):
        self.mean, self.deviation = data.train_x.mean().item(), data.train_x.std().item()
        self.stack = StackedMLP((data.train_x[0].numel(), *protocol.hidden, data.num_classes))
        self.params: list[Tensor] = []

    def start(self, count: int) -> None:
        self.params = [(PRIOR_VARIANCE**0.5 * p).requires_grad_() for p in self.stack.draw(count)]

    def standardised(self, images: Tensor) -> Tensor:
        return (images.flatten(1) - self.mean) / self.deviation

    def logits(self, images: Tensor) -> Tensor:
        """(M, n, C)."""
        return self.stack(self.params, self.standardised(images))

    def log_predictive(self, images: Tensor) -> Tensor:
        """log of the average probabilities, (n, C)."""
        return self.logits(images).log_softmax(-1).logsumexp(0) - math.log(len(self.params[0]))

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
        prior = GaussianProcessPrior(infinite_width(len(protocol.hidden), PRIOR_VARIANCE))
        pixels = networks.standardised(data.train_x)

        def function_space(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            inputs = measurement_set(networks.standardised(x), pixels, EXTRA, scale=NOISE)
            outputs = networks.stack(params, inputs)
            chosen = torch.randperm(len(inputs))[:PRIOR_INPUTS]
            density = prior.log_density(inputs[chosen], outputs[:, chosen])
            return classification_loss(outputs[:, : len(x)], y), outputs, density

        return FSVGD(params, lr, count, base_optimizer=torch.optim.Adam), function_space
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
    start = time.perf_counter()
    networks = Classifiers(data, protocol)
    networks.start(protocol.particles)
    sampler, energies = _step(method, networks, data, lr, protocol)
    steps = protocol.epochs * math.ceil(len(data.train_y) / protocol.batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(sampler, steps)
    with progress(total=steps, unit="step", desc=label, leave=False) as bar:
        for _ in range(protocol.epochs):
            for index in torch.randperm(len(data.train_y)).split(protocol.batch):
                x, y = data.train_x[index], data.train_y[index]
                sampler.step(lambda x=x, y=y: energies(x, y))
                schedule.step()
                bar.update()
    return networks, time.perf_counter() - start


class ImageRuns:
    """Runs of a protocol on one data set, kept in a folder."""

    def __init__(self, out: Path, data: ImageData, protocol: ImageProtocol, *, fresh: bool = False):
        self.data, self.protocol = data, protocol
        self.store = RunStore(out, data_fingerprint(data), fresh=fresh)

    def settings(self, method: str, protocol: ImageProtocol, seed: int) -> dict[str, Any]:
        of = {"protocol": asdict(protocol), "data": self.data.name, "images": len(self.data.train_y)}
        return {"method": method, "seed": seed, **of}

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

            settings = {**self.settings(method, short, seed), "lr": choice.lr}
            return self.store.run(f"tune_{method}_lr{choice.lr:g}", settings, make)["nll"]

        try:
            tuning = tune([Choice(lr) for lr in self.protocol.rates], attempt, lambda nll: nll, seeds=[1000])
        except RuntimeError as error:
            raise RuntimeError(f"{method}: {error}") from error
        return tuning.chosen.lr, {f"{choice.lr:g}": tuning.mean(choice) for choice in tuning.trials}

    def run(self, method: str, lr: float, seed: int) -> dict[str, Any]:
        """Test scores of one run: those of the average, and the mean error of its networks alone."""
        name, data = f"{method}_seed{seed}", self.data

        def make() -> dict[str, Any]:
            networks, seconds = train(method, data, lr, self.protocol, seed, label=f"{method}, seed {seed}")
            with torch.no_grad():
                single = torch.cat([networks.logits(part).argmax(-1) for part in data.test_x.split(1000)], dim=1)
            wrong = (single != data.test_y).double().mean().item()
            summary = metrics.summary(networks.predict(data.test_x), data.test_y)
            return {"seconds": seconds, "error_of_one": wrong, "error": 1 - summary["accuracy"], **summary}

        return self.store.run(name, {**self.settings(method, self.protocol, seed), "lr": lr}, make)


@dataclass(frozen=True)
class MNIST(DataOptions, RunOptions):
    """Classification error of f-SVGD, SVGD and a deep ensemble at the same budget."""

    # Methods, in the order of the tables, in any letter case; PlainEnsemble is the deep ensemble without prior.
    methods: tuple[Annotated[str, one_of(METHODS)], ...] = METHODS
    # Seeds, counted up from --seed; each has its own weights and minibatches.
    seeds: int = 1
    # Networks and training. Nothing that we have of the paper gives the networks or epochs of its 1.21 %.
    protocol: Annotated[ImageProtocol, tyro.conf.OmitArgPrefixes] = field(default_factory=ImageProtocol)
    # A data set of images by its name in meta_tasks.datasets.
    dataset: str = "mnist"
    # Folder of the runs, the table and the results.
    out: Path = Path("runs/function_space_mnist")


def mnist(options: MNIST, command: str) -> None:
    """Tune, train, score and write; MNIST has no validation images of its own, a sixth is held out."""
    images = load_images(options.dataset, options.data, validation=1 / 6, download=False)
    runs = ImageRuns(options.out, images, options.protocol, fresh=options.fresh)
    results, tuning = {}, {}
    for method in options.methods:
        lr, trials = runs.tune(method)
        tuning[method] = {"lr": lr, "validation_nll": trials}
        results[method] = [runs.run(method, lr, seed) for seed in options.seed_list()]
        errors = ", ".join(f"{100 * run['error']:.2f} %" for run in results[method])
        print(f"{method}: lr {lr:g}, test error {errors}", flush=True)
    columns: dict[str, tuple[str, int, int]] = {
        "test error, %": ("error", 100, 2),
        "of one network, %": ("error_of_one", 100, 2),
    }
    columns |= {"NLL": ("nll", 1, 4), "ECE": ("ece", 1, 4), "Brier": ("brier", 1, 4), "seconds": ("seconds", 1, 0)}
    rows = []
    for method, each in results.items():
        cells = {c: spread([by * run[key] for run in each], digits) for c, (key, by, digits) in columns.items()}
        rows.append({"method": method, **cells})
    text = markdown(rows)
    content = {"settings": settings_of(options), "torch": torch.__version__, "tuning": tuning, "methods": results}
    write_outputs(options.out, command, text, content)
    print(f"\n{text}\nwritten to {options.out}")
