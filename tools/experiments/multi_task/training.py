"""A run: train the particles, keep those of the best epoch, score them."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

from experiments.harness.devices import synchronize
from experiments.multi_task.methods import METHODS, Settings, make_sampler
from experiments.multi_task.networks import LeNet, SeparateNetworks
from learned_samplers import metrics
from meta_tasks.datasets import MultiTaskData
from meta_tasks.progress import progress

BINS = 10  # of the calibration error, as in the paper
CHUNK = 500  # images predicted at a time
CONSTANT = 1e-4  # a probability that differs by less over all images says nothing about them


def make_network(settings: Settings, method: str, data: MultiTaskData, seed: int) -> LeNet:
    """Network of a run with its initial weights, the same for all methods with the run's seed."""
    torch.manual_seed(seed)
    cls, shape = SeparateNetworks if METHODS[method].separate else LeNet, data.input_shape
    network = cls(shape, len(data.tasks), data.num_classes, settings.particles)  # type: ignore[arg-type]
    network.to(data.train_x.device).standardise(data.train_x)
    return network


def train(
    network: LeNet, settings: Settings, method: str, lr: float, energy: str, data: MultiTaskData, seed: int
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Numbers of the training, and the parameters of the epoch with the lowest validation NLL, mean over the tasks."""
    size = min(settings.batch_size, data.num_data)
    per_epoch = data.num_data // size
    total = per_epoch * settings.epochs
    sampler = make_sampler(method, network.groups(), lr, energy, data.num_data, settings)
    factor = partial(schedule, total=total, warm_up=settings.warm_up, halve_every=settings.halve_every)
    rates, batches = LambdaLR(sampler, factor), torch.Generator().manual_seed(seed)
    weights: list[Tensor] = []
    best: dict[str, Tensor] = {}
    numbers: dict[str, Any] = {"curve": [], "best_epoch": 0, "score": float("inf"), "constant": 0, "seconds": 0.0}
    with progress(total=total, unit="step", leave=False, desc=f"{method}, lr {lr:g}") as bar:
        for epoch in range(settings.epochs):
            start = time.perf_counter()
            order = torch.randperm(data.num_data, generator=batches).to(data.train_y.device)
            for index in order.split(size)[:per_epoch]:
                x, y = network.inputs(data.train_x[index]), data.train_y[index]
                sampler.step(lambda: closure(network, x, y, METHODS[method].features))  # noqa: B023
                rates.step()
                if sampler.weights is not None:
                    weights.append(sampler.weights.reshape(-1, len(data.tasks)).mean(0))
                bar.update()
            synchronize(data.train_x.device)
            numbers["seconds"] += time.perf_counter() - start
            predicted = predict(network, data.val_x)
            scores = score(predicted.mean(1), data.val_y)
            numbers["curve"].append(scores)
            nll = sum(scores["nll"]) / len(scores["nll"])
            if nll < numbers["score"]:
                best = network.state()
                numbers |= {"score": nll, "best_epoch": epoch + 1, "constant": constant_particles(predicted)}
    return numbers | {"weights": torch.stack(weights).mean(0).tolist() if weights else None}, best


def scores_of(network: LeNet, data: MultiTaskData) -> dict[str, Any]:
    """Scores of the ensemble on the test images, a number a task; of its particles alone; and its confidence."""
    predicted = predict(network, data.test_x)
    ensemble = score(predicted.mean(1), data.test_y)
    alone = [score(particle, data.test_y)["accuracy"] for particle in predicted.unbind(1)]
    confidence = predicted.mean(1).amax(-1).mean(1)
    over = (confidence - torch.tensor(ensemble["accuracy"], device=confidence.device)).mean().item()
    by_task = {f"{key} {task}": v for key, vs in ensemble.items() for task, v in zip(data.tasks, vs, strict=True)}
    return {**by_task, "accuracy_of_one": torch.tensor(alone).mean().item(), "overconfidence": over}


def closure(network: LeNet, x: Tensor, y: Tensor, with_features: bool) -> Any:
    """Mean losses (K, M), and if they are wanted features: the logits of all tasks, (M, K, B, classes)."""
    latents = network.latents(x)
    outputs = network.outputs(latents)
    size = latents.shape[:2]
    losses = [
        F.cross_entropy(logits.flatten(0, 1), target.repeat(size[0]), reduction="none").view(size).mean(1)
        for logits, target in zip(outputs, y.T, strict=True)
    ]
    return (torch.stack(losses), torch.stack(outputs, 1)) if with_features else torch.stack(losses)


def schedule(step: int, total: int, warm_up: float, halve_every: float) -> float:
    """Factor of the learning rate at a step, from 0: a ramp over a share `warm_up` of the run, and ½ for each time that
    a share `halve_every` has passed."""
    ramp = min(1.0, (step + 1) / (warm_up * total)) if warm_up > 0 else 1.0
    return ramp * 0.5 ** int(step / total / halve_every + 1e-9)


def predict(network: LeNet, x: Tensor) -> Tensor:
    """Probabilities (K, M, n, classes) of images in uint8."""
    probabilities = torch.cat([network.predict(network.inputs(part)) for part in x.split(CHUNK)], 2)
    if not probabilities.isfinite().all():
        raise FloatingPointError("the predictions are not finite")
    return probabilities


def constant_particles(probabilities: Tensor) -> int:
    """Number of particles that predict the same for every image, of (K, M, n, classes): their latent units are dead."""
    return int(((probabilities.amax(2) - probabilities.amin(2)) < CONSTANT).flatten(2).all(2).all(0).sum())


def score(probabilities: Tensor, labels: Tensor) -> dict[str, list[float]]:
    """Accuracy, Brier score, calibration error and NLL (nats) of every task, of (K, n, classes) and (n, K)."""
    pairs = list(zip(probabilities, labels.T, strict=True))
    return {
        "accuracy": [metrics.accuracy(p, y) for p, y in pairs],
        "brier": [metrics.brier(p, y) for p, y in pairs],
        "ece": [metrics.ece(p, y, num_bins=BINS) for p, y in pairs],
        "nll": [metrics.nll(p, y) for p, y in pairs],
    }
