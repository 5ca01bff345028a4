"""One run of `multi_task.py`: train the particles, keep those of the best epoch, score them, put the result on disk."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.tensorboard import SummaryWriter

from experiments.harness.devices import synchronize
from experiments.harness.run_store import RunStore, data_fingerprint
from experiments.multi_task.methods import METHODS, Settings, make_sampler
from experiments.multi_task.networks import LeNet, SeparateNetworks
from learned_samplers import metrics
from meta_tasks.datasets import MultiTaskData

BINS = 10  # of the calibration error, as in the paper
CHUNK = 500  # images predicted at a time
CONSTANT = 1e-4  # a probability that differs by less over all images says nothing about them
POINTS = 100  # of a run's loss curves

Scores = dict[str, list[float]]  # score → one number a task


@dataclass
class Result:
    """The results of one run.

    Attributes:
        dataset, method, lr, energy, epochs, seed, settings: what was run.
        curve: after each epoch, scores of the ensemble on the validation images, see `score`.
        constant: after each epoch, how many particles predict the same for every validation image.
        best_epoch: from 1; that of the lowest validation NLL, mean over the tasks. Its particles are kept.
        validation_nll: that NLL, in nats; None for a run that diverged.
        scores: of the ensemble on the test images; empty until they are asked for.
        members: mean over the particles of each one's own test scores.
        confidence: of every task, the ensemble's mean largest probability on the test images.
        weights: of the targets in the shared direction, mean over steps and, where each has its own, particles; None
            where they are those that are given.
        seconds: of training, without validation.
        steps: minibatches.
        diverged: why there are no scores, or None.
    """

    dataset: str
    method: str
    lr: float
    energy: str
    epochs: int
    seed: int
    settings: dict[str, Any]
    curve: list[Scores] = field(default_factory=list)
    constant: list[int] = field(default_factory=list)
    best_epoch: int = 0
    validation_nll: float | None = None
    scores: Scores = field(default_factory=dict)
    members: Scores = field(default_factory=dict)
    confidence: list[float] = field(default_factory=list)
    weights: list[float] | None = None
    seconds: float = 0.0
    steps: int = 0
    diverged: str | None = None

    @property
    def name(self) -> str:
        """Stem of the run's files."""
        return f"{self.dataset}_{self.method}_lr{self.lr:g}_{self.energy}_epochs{self.epochs}_seed{self.seed}"

    @property
    def made_of(self) -> dict[str, Any]:
        """All that the run depends on beside its data."""
        keys = ("dataset", "method", "lr", "energy", "epochs", "seed", "settings")
        return {key: getattr(self, key) for key in keys}


def new_result(settings: Settings, dataset: str, method: str, lr: float, energy: str, epochs: int, seed: int) -> Result:
    """The run before it is run."""
    own = {name: value for name, value in asdict(settings).items() if name != "epochs"}
    return Result(dataset, method, lr, energy, epochs, seed, own)


def store_for(out: Path, data: MultiTaskData, *, fresh: bool = False) -> RunStore:
    """The store of runs on these data."""
    return RunStore(out, data_fingerprint(data), fresh=fresh)


def make_network(settings: Settings, result: Result, data: MultiTaskData) -> LeNet:
    """The network of a run with its initial weights, the same for all methods with the run's seed."""
    torch.manual_seed(result.seed)
    kind = SeparateNetworks if METHODS[result.method].separate else LeNet
    shape: Any = data.input_shape
    network = kind(shape, len(data.tasks), data.num_classes, settings.particles).to(data.train_x.device)
    network.standardise(data.train_x)
    return network


def run(settings: Settings, result: Result, data: MultiTaskData, store: RunStore, *, bar: Any, test: bool) -> Result:
    """Do one run, or read its result where it is on disk with the same settings.

    Files: ``runs/<name>.json`` (the result, written last), ``particles/<name>.safetensors`` (the parameters of the best
    epoch) and ``tensorboard/<name>/``.

    Args:
        settings: of the comparison.
        result: what to run, from `new_result`; the seed sets the initial weights and the minibatches, and the learning
            rate's schedule spans its epochs.
        data: on the device to run on.
        store: of the results, see `store_for`.
        bar: advances by one a step.
        test: whether to score the run on the test images; a run to be tuned by does without.
    """
    network = make_network(settings, result, data)
    finished = store.read(result.name, result.made_of)
    if finished is None:
        store.begin(result.name, "particles")
        with SummaryWriter(store.board(result.name)) as writer:
            best = train(network, settings, result, data, writer, bar)
        if best is not None:
            store.write_tensors(result.name, "particles", best)
    else:
        result = Result(**result.made_of, **finished)
    if test and result.diverged is None and not result.scores:
        network.load_state(store.read_tensors(result.name, "particles"))
        predicted = predict(network, data.test_x)
        result.scores = score(predicted.mean(1), data.test_y)
        each = [score(one, data.test_y) for one in predicted.unbind(1)]
        result.members = {key: torch.tensor([one[key] for one in each]).mean(0).tolist() for key in each[0]}
        result.confidence = predicted.mean(1).amax(-1).mean(1).tolist()
        finished = None
    if finished is None:
        own = {key: value for key, value in asdict(result).items() if key not in result.made_of}
        store.write(result.name, result.made_of, own)
    return result


def train(
    network: LeNet, settings: Settings, result: Result, data: MultiTaskData, writer: SummaryWriter, bar: Any
) -> dict[str, Tensor] | None:
    """Fill in the training's part of the result; the parameters of the best epoch, None where the run diverged."""
    size = min(settings.batch_size, data.num_data)
    per_epoch = data.num_data // size
    total = per_epoch * result.epochs
    sampler = make_sampler(result.method, network.groups(), result.lr, result.energy, data.num_data, settings)
    with_features = METHODS[result.method].features
    batches = torch.Generator().manual_seed(result.seed)
    best: dict[str, Tensor] | None = None
    weights: list[Tensor] = []
    lowest, begun = float("inf"), bar.n
    try:
        for epoch in range(1, result.epochs + 1):
            start = time.perf_counter()
            order = torch.randperm(data.num_data, generator=batches).to(data.train_y.device)
            for index in order.split(size)[:per_epoch]:
                factor = schedule(result.steps, total, settings.warm_up, settings.halve_every)
                for group in sampler.param_groups:
                    group["lr"] = result.lr * factor
                x, y = network.inputs(data.train_x[index]), data.train_y[index]
                losses = sampler.step(lambda: closure(network, x, y, with_features))  # noqa: B023
                if sampler.weights is not None:
                    weights.append(sampler.weights.reshape(-1, len(data.tasks)).mean(0))
                result.steps += 1
                bar.update()
                if result.steps % max(total // POINTS, 1) == 0:
                    log_losses(losses[0] if with_features else losses, data, writer, bar, result.steps)
            synchronize(data.train_x.device)
            result.seconds += time.perf_counter() - start
            predicted = predict(network, data.val_x)
            scores = score(predicted.mean(1), data.val_y)
            result.curve.append(scores)
            result.constant.append(constant_particles(predicted))
            writer.add_scalar("constant particles", result.constant[-1], result.steps)
            for key, values in scores.items():
                for task, value in zip(data.tasks, values, strict=True):
                    writer.add_scalar(f"validation {key}/{task}", value, result.steps)
            nll = sum(scores["nll"]) / len(scores["nll"])
            if nll < lowest:
                lowest, result.best_epoch, best = nll, epoch, network.state()
    except FloatingPointError as error:
        result.diverged = " ".join(str(error).split())[:200]
        bar.update(begun + total - bar.n)
        return None
    result.validation_nll = lowest
    if weights:
        result.weights = torch.stack(weights).mean(0).tolist()
    return best


def closure(network: LeNet, x: Tensor, y: Tensor, with_features: bool) -> Any:
    """Mean losses (K, M), and where they are wanted features: the logits of all tasks, (M, K, B, classes)."""
    latents = network.latents(x)
    outputs = network.outputs(latents)
    size = latents.shape[:2]
    losses = [
        F.cross_entropy(logits.flatten(0, 1), target.repeat(size[0]), reduction="none").view(size).mean(1)
        for logits, target in zip(outputs, y.T, strict=True)
    ]
    return (torch.stack(losses), torch.stack(outputs, 1)) if with_features else torch.stack(losses)


def schedule(step: int, total: int, warm_up: float, halve_every: float) -> float:
    """What the learning rate is multiplied by at a step, from 0: a ramp over a share `warm_up` of the run, and ½ for
    each time that a share `halve_every` has passed."""
    ramp = min(1.0, (step + 1) / (warm_up * total)) if warm_up > 0 else 1.0
    return ramp * 0.5 ** int(step / total / halve_every + 1e-9)


def log_losses(losses: Tensor, data: MultiTaskData, writer: SummaryWriter, bar: Any, step: int) -> None:
    means = losses.mean(1).tolist()
    for task, value in zip(data.tasks, means, strict=True):
        writer.add_scalar(f"training loss/{task}", value, step)
    bar.set_postfix_str("loss " + " ".join(f"{value:.3f}" for value in means[:2]), refresh=False)


def predict(network: LeNet, x: Tensor) -> Tensor:
    """Probabilities (K, M, n, classes) of images in uint8.

    Raises:
        FloatingPointError: one of them is not finite.
    """
    probabilities = torch.cat([network.predict(network.inputs(part)) for part in x.split(CHUNK)], 2)
    if not probabilities.isfinite().all():
        raise FloatingPointError("the predictions are not finite")
    return probabilities


def constant_particles(probabilities: Tensor) -> int:
    """How many particles predict the same for every image, of (K, M, n, classes): their latent units are dead."""
    return int(((probabilities.amax(2) - probabilities.amin(2)) < CONSTANT).flatten(2).all(2).all(0).sum())


def score(probabilities: Tensor, labels: Tensor) -> Scores:
    """Accuracy, Brier score, calibration error and NLL (nats) of every task, of (K, n, classes) and (n, K)."""
    pairs = list(zip(probabilities, labels.T, strict=True))
    return {
        "accuracy": [metrics.accuracy(p, y) for p, y in pairs],
        "brier": [metrics.brier(p, y) for p, y in pairs],
        "ece": [metrics.ece(p, y, num_bins=BINS) for p, y in pairs],
        "nll": [metrics.nll(p, y) for p, y in pairs],
    }
