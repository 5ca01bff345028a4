"""Declaration: a CNN on Fashion-MNIST, one chain against several at the same gradients.

Why are the members of a short ensemble too unsure, or too sure? Four variants of the most chains: each colder by its
share of the budget, a sampling phase cut to its last half, weights by stacking, and a temperature of the mixture, the
last two fitted on validation images.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from experiments.harness.options import DataOptions, RunOptions, at_least, positive
from experiments.harness.run_store import RunStore
from experiments.harness.runs.minibatches import batches
from experiments.harness.study import Experiment, Job, Measure
from learned_samplers import L2E, AdaptedSGHMC, PosteriorSamples, Restarts, SampleCollection, metrics
from meta_tasks.datasets import ImageData, load
from meta_tasks.networks import architectures

COLDER = ", T / m"


@dataclass(frozen=True)
class Budget(RunOptions, DataOptions):
    """One chain against several on Fashion-MNIST at 14×14, with a CNN, at the same gradients."""

    chains: tuple[int, ...] = (1, 3, 5)  # Numbers of chains.
    budgets: tuple[int, ...] = (800, 4000)  # Gradients in all.
    num_data: int = 10000  # Training images.
    validation: int = 2000  # Validation images, for stacking and for the temperature of the mixture.
    batch_size: int = 64  # Images in a minibatch.
    samples: int = 30  # Samples in all.
    temperature: float = 0.1  # T.
    prior_precision: float = 20.0  # λ.
    out: Path = Path("runs/chains")  # Folder for the results.

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, self, "num_data", "validation", "batch_size", "samples")
        positive(self, "temperature")
        if not self.chains or not self.budgets or min(*self.chains, *self.budgets) < 1:
            raise ValueError(f"chains and budgets must be positive, got {self.chains} and {self.budgets}")


@cache
def _data(root: str | None, num_data: int, validation: int) -> ImageData:
    return load("fashion_mnist", root, size=14, limit=num_data, validation=validation, download=False)


def _sureness(probabilities: Tensor, labels: Tensor) -> float:
    """Mean confidence minus accuracy: below 0 a prediction is too unsure."""
    return probabilities.amax(1).mean().item() - metrics.accuracy(probabilities, labels)


class OneOrSeveral(Experiment):
    """Every number of chains at every budget."""

    measures = (
        Measure("nll", "NLL", 4),
        Measure("ece", "ECE", 4),
        Measure("accuracy", "accuracy %", 2, factor=100),
        Measure("sureness", "confidence − accuracy", 4),
        Measure("member_nll", "NLL of a chain", 4),
        Measure("member_sureness", "conf. − acc. of a chain", 4),
        Measure("late_nll", "NLL, last half of each chain", 4),
        Measure("stacked_nll", "NLL, stacked", 4),
        Measure("mixture_temperature", "temperature of the mixture", 3),
        Measure("tempered_nll", "NLL at it", 4),
        Measure("tempered_ece", "ECE at it", 4),
        Measure("seconds", "seconds", 0),
    )
    seeds_first = True

    def problems(self) -> Sequence[str]:
        return [f"{budget} gradients" for budget in self.options.budgets]

    def methods(self, problem: str) -> Sequence[str]:
        counts = [str(count) for count in self.options.chains]
        return [*counts, *([f"{max(self.options.chains)}{COLDER}"] if max(self.options.chains) > 1 else [])]

    def made_of(self, job: Job) -> dict[str, Any]:
        left_out = ("out", "fresh", "seed", "seeds", "threads", "data", "chains", "budgets")
        return {key: value for key, value in asdict(self.options).items() if key not in left_out}

    def run(self, job: Job, store: RunStore) -> dict[str, Any]:
        options, start = self.options, time.perf_counter()
        data = _data(options.data, options.num_data, options.validation)
        count, budget = int(job.method.removesuffix(COLDER)), int(job.problem.split()[0])
        torch.manual_seed(job.seed)
        model = architectures.build("cnn", data.input_shape, data.num_classes)
        sampler = Restarts(
            model,
            count,
            AdaptedSGHMC,
            total_steps=budget,
            num_data=data.num_data,
            warmup=L2E,
            temperature=options.temperature / (count if job.method.endswith(COLDER) else 1),
            prior_precision=options.prior_precision,
        )
        posterior = PosteriorSamples(model, sampler, thinning=sampler.thinning(options.samples))
        order = torch.Generator().manual_seed(job.seed)
        minibatches = batches(data.num_data, options.batch_size, data.train_x.device, order)
        for _ in range(budget):
            index = next(minibatches)
            sampler.zero_grad()
            nn.functional.cross_entropy(model(data.train_x[index]), data.train_y[index]).backward()
            sampler.step()
        seconds = time.perf_counter() - start
        posterior.detach()
        return {**scores(posterior, data), "seconds": seconds, "samples": len(posterior)}


def scores(posterior: SampleCollection, data: ImageData) -> dict[str, float]:
    """Scores on the test images, with stacking weights and a temperature fitted on the validation images."""
    x, y = data.test_x, data.test_y
    by_sample = [chain.predict_samples(x) for chain in posterior.split()]
    members = [values.mean(0) for values in by_sample]
    mixture = torch.stack(members).mean(0)
    late = torch.stack([values[len(values) // 2 :].mean(0) for values in by_sample]).mean(0)
    weights = posterior.stack(data.val_x, data.val_y).to(mixture)
    temperature = metrics.fit_temperature(posterior.by_chain(data.val_x).mean, data.val_y)
    tempered = metrics.with_temperature(mixture, temperature)
    return {
        "nll": metrics.nll(mixture, y),
        "ece": metrics.ece(mixture, y),
        "accuracy": metrics.accuracy(mixture, y),
        "sureness": _sureness(mixture, y),
        "member_nll": sum(metrics.nll(member, y) for member in members) / len(members),
        "member_sureness": sum(_sureness(member, y) for member in members) / len(members),
        "late_nll": metrics.nll(late, y),
        "stacked_nll": metrics.nll(torch.tensordot(weights, torch.stack(members), 1), y),
        "mixture_temperature": temperature,
        "tempered_nll": metrics.nll(tempered, y),
        "tempered_ece": metrics.ece(tempered, y),
    }
