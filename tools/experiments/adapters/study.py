"""Declaration of the rivals on an adapter: film reviews, few labels, and what each says about its errors.

A transformer of two layers of width 64 learns to say hidden words of the reviews' first 64 (without labels); its
weights stay in the folder of the runs; 2,000 training reviews are held out from it. LoRA of rank 4 on queries and
values, and the head, then learn from 100 or 1,000 labels. Every method has as many gradients of 16 rows, four
settings (two learning rates of its own, prior precision 10 or 100), chosen by the NLL of 500 validation reviews on
one seed that no table has, and at most ten samples; an ensemble's five members share the gradients. Temperature
scaling is fitted on the validation reviews; where no finite temperature is best, the run has no result. Chains leave
out their first half, at T = 1. Labelled rows, adapter, minibatches and noise are a seed's; the 1,000 test reviews
never change. The doubt of AURC is 1 − the largest mean probability. The protocol was written before any adapter was
trained.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor

from experiments.adapters.base import BaseSettings, pretrained, with_adapter
from experiments.adapters.methods import METHODS, Fine, in_chunks
from experiments.harness.options import DataOptions, RunOptions, at_least, names_once, one_of
from experiments.harness.output import counted
from experiments.harness.study import Experiment, Findings, Job, Measure, carry_out
from experiments.harness.tuning import Choice
from learned_samplers import metrics
from meta_tasks.datasets import load_text

PRECISIONS, HELD_OUT, VALIDATION, TEST = (10.0, 100.0), 2000, 500, 1000


@dataclass(frozen=True, order=True)
class Setting(Choice):
    """A learning rate and a prior precision."""

    precision: float = 0.0

    def __str__(self) -> str:
        return f"lr {self.lr:g}, λ {self.precision:g}"


@dataclass(frozen=True)
class AdapterOptions(DataOptions, RunOptions):
    """LoRA on few film reviews: chains of the adapter and their rivals."""

    labels: tuple[int, ...] = (100, 1000)  # Labelled reviews.
    method: tuple[Annotated[str, one_of(METHODS, "METHOD")], ...] = tuple(METHODS)  # Methods.
    steps: int = 200  # Gradients of a run, of 16 reviews.
    base: BaseSettings = field(default_factory=BaseSettings)  # The transformer that is adapted.
    out: Path = Path("runs/adapters")  # Folder of the base's weights, the runs, the table and the results.

    def __post_init__(self) -> None:
        super().__post_init__()
        names_once(self, "labels", "method")
        at_least(20, self, "steps")


def drawn(x: Tensor, y: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return so many rows, drawn by chance."""
    rows = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:count]
    return x[rows], y[rows]


class Adapters(Experiment):
    """A problem is a number of labels."""

    measures = (
        Measure("nll", "NLL", 4, error=True),
        Measure("ece", "ECE, %", 1, 100, error=True),
        Measure("accuracy", "accuracy, %", 1, 100, error=True),
        Measure("aurc", "AURC, %", 1, 100, error=True),
        Measure("seconds", "CPU-seconds", 1),
    )

    def __init__(self, options: AdapterOptions) -> None:
        super().__init__(options)
        base = options.base
        self.note = f"{options.steps} gradients; mean ± standard error over {counted(options.seeds, 'seed')}"
        sizes: dict[str, Any] = {"length": base.length, "vocabulary": base.vocabulary, "validation": HELD_OUT}
        self.reviews = load_text("imdb", options.data, **sizes)
        self.validation = drawn(self.reviews.val_x, self.reviews.val_y, VALIDATION, 0)
        self.test = drawn(self.reviews.test_x, self.reviews.test_y, TEST, 0)
        self.weights = pretrained(base, self.reviews.train_x, options.out / "base.safetensors")

    def problems(self) -> Sequence[str]:
        return [f"{count} labels" for count in self.options.labels]

    def methods(self, problem: str) -> Sequence[str]:
        return self.options.method

    def choices(self, problem: str, method: str) -> Sequence[Choice]:
        return [Setting(lr, precision) for lr in METHODS[method][1] for precision in PRECISIONS]

    def made_of(self, job: Job) -> dict[str, Any]:
        return {"base": asdict(self.options.base), "steps": self.options.steps}

    def run(self, job: Job, store: Any) -> dict[str, Any]:
        """Validation NLL of a trial; the measures on the test reviews of another run."""
        assert isinstance(job.choice, Setting)
        start, reviews = time.process_time(), self.reviews
        labelled = drawn(reviews.train_x, reviews.train_y, int(job.problem.split()[0]), job.seed)
        setting: dict[str, Any] = {"lr": job.choice.lr, "precision": job.choice.precision, "seed": job.seed}
        fine = Fine(*labelled, *self.validation, steps=self.options.steps, fresh=self.fresh, **setting)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(job.seed)
            predict = METHODS[job.method][0](fine)
            x, y = self.validation if job.tuning else self.test
            probs = in_chunks(predict, x).mean(0)
        if job.tuning:
            return {"score": metrics.nll(probs, y)}
        best, chosen = probs.max(1)
        numbers = {"nll": metrics.nll(probs, y), "ece": metrics.ece(probs, y), "accuracy": metrics.accuracy(probs, y)}
        return {**numbers, "aurc": metrics.aurc(1 - best, chosen != y), "seconds": time.process_time() - start}

    def fresh(self, seed: int) -> Any:
        """Return the classifier with an adapter that has learned nothing."""
        return with_adapter(self.options.base, self.weights, seed)


def compare(options: AdapterOptions, command: str) -> Findings:
    """Carry out every run, and write the table and the numbers."""
    return carry_out(Adapters(options), options, command)
