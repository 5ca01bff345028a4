"""Declaration of the rivals on an adapter: two tasks, few labels, and what each says about its errors.

A transformer of three layers of width 128 keeps embeddings that are factorised from how often words are seen together,
and its layers learn to say hidden words, without labels; its weights stay in the folder of the runs. Its texts are
film reviews and the docstrings of eight packages (Python's standard library among them), as `corpus` says; what is
validated and tested on is held out from it. The tasks are the reviews' verdict, by their last 64 words, and the
documentation's package, by its first 64, with the packages' names hidden; a file's docstrings are all in one part.

LoRA of rank 4 on queries and values of the last layer, and a head on the mean of its attention's states (centred and
scaled, as they are over 1,000 texts of the base), then learn from 100 or 1,000 labels; the states below the last layer
are those of the base, so they are computed once. Every method has 200 gradients of 16 rows, at most ten samples, and
six settings (`METHODS`), chosen by the NLL of 400 validation rows on one seed that no table has. The chains' T = 0.1
was set after a dozen pilot runs on validation reviews; a first table gave MAP and its kin one learning rate, a second
had smaller rates for methods whose best one was then the largest. An ensemble's five members share the gradients. MAP,
its temperature scaling and both Laplace approximations begin with the same training, whose learning rate falls to zero,
as the ensemble's and IVON's does. Temperature scaling is fitted on the validation rows; where no finite temperature is
best, the run has no result. Chains leave out their first half. Labelled rows, adapter, minibatches, noise and the 500
test rows are a seed's. The doubt of AURC is 1 − the largest mean probability.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor

from experiments.adapters.base import BaseSettings, lower_states, pretrained, scale_of, with_adapter
from experiments.adapters.corpus import TASKS, corpus
from experiments.adapters.methods import METHODS, Fine, Setting, in_chunks
from experiments.harness.options import DataOptions, RunOptions, at_least, names_once, one_of
from experiments.harness.output import counted
from experiments.harness.study import Experiment, Findings, Job, Measure, carry_out
from experiments.harness.tuning import Choice
from learned_samplers import metrics

#: Texts that are validated on, tested on, and by which the base's features are scaled.
VALIDATION, TEST, SCALED = 400, 500, 1000


@dataclass(frozen=True)
class AdapterOptions(DataOptions, RunOptions):
    """LoRA on few labels: chains of the adapter and their rivals."""

    task: tuple[Annotated[str, one_of(TASKS, "TASK")], ...] = TASKS  # Tasks.
    labels: tuple[int, ...] = (100, 1000)  # Labelled texts.
    method: tuple[Annotated[str, one_of(METHODS, "METHOD")], ...] = tuple(METHODS)  # Methods.
    seeds: int = 5  # Number of seeds, counted up from --seed; tables give mean ± standard error over them.
    steps: int = 200  # Gradients of a run, of 16 texts.
    base: BaseSettings = field(default_factory=BaseSettings)  # The transformer that is adapted.
    out: Path = Path("runs/adapters")  # Folder of the base's weights, the runs, the table and the results.

    def __post_init__(self) -> None:
        super().__post_init__()
        names_once(self, "task", "labels", "method")
        at_least(20, self, "steps")


def drawn(x: Tensor, y: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return so many rows, drawn by chance."""
    rows = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:count]
    return x[rows], y[rows]


class Adapters(Experiment):
    """A problem is a task and a number of labels. Data and base are made when the first run needs them."""

    measures = (
        Measure("nll", "NLL", 3, error=True),
        Measure("ece", "ECE, %", 1, 100, error=True),
        Measure("accuracy", "accuracy, %", 1, 100, error=True),
        Measure("aurc", "AURC, %", 1, 100, error=True),
    )

    def __init__(self, options: AdapterOptions) -> None:
        super().__init__(options)
        self.note = f"{options.steps} gradients; mean ± standard error over {counted(options.seeds, 'seed')}"
        base, out = options.base, options.out
        self.corpus = cache(lambda: corpus(options.data, base.vocabulary, base.length, out))
        self.weights = cache(lambda: pretrained(base, self.corpus().unlabelled, out / "base.safetensors"))
        self.scale = cache(lambda task: scale_of(base, self.weights(), self.rows(task, "train", SCALED, 0)[0]))
        self.validation = cache(lambda task: self.rows(task, "val", VALIDATION, 0))
        self.test = lru_cache(4)(lambda task, seed: self.rows(task, "test", TEST, seed))
        self.labelled: Any = lru_cache(4)(lambda task, count, seed: (*self.rows(task, "train", count, seed), {}))

    def rows(self, task: str, part: str, count: int, seed: int) -> tuple[Tensor, Tensor]:
        """Return what the adapted layer reads of some texts, and their classes."""
        words, y = drawn(*self.corpus().tasks[task].split(part), count, seed)
        return lower_states(self.options.base, self.weights(), words), y

    def problems(self) -> Sequence[str]:
        return [f"{task}, {count} labels" for task in self.options.task for count in self.options.labels]

    def methods(self, problem: str) -> Sequence[str]:
        return self.options.method

    def choices(self, problem: str, method: str) -> Sequence[Choice]:
        return METHODS[method][1]

    def made_of(self, job: Job) -> dict[str, Any]:
        return {"base": asdict(self.options.base), "steps": self.options.steps}

    def run(self, job: Job, store: Any) -> dict[str, Any]:
        """Validation NLL of a trial; the measures on the test rows of another run."""
        assert isinstance(job.choice, Setting)
        task, labels = job.problem.split(", ")
        x, y, modes = self.labelled(task, int(labels.split()[0]), job.seed)
        held, classes = self.validation(task), self.corpus().tasks[task].num_classes

        def fresh(seed: int) -> Any:
            return with_adapter(self.options.base, self.weights(), classes, self.scale(task), seed)

        fine = Fine(x, y, *held, self.options.steps, job.choice, fresh, job.seed, modes)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(job.seed)
            predict = METHODS[job.method][0](fine)
            x, y = held if job.tuning else self.test(task, job.seed)
            probs = in_chunks(predict, x).mean(0)
        if job.tuning:
            return {"score": metrics.nll(probs, y)}
        best, chosen = probs.max(1)
        numbers = {"nll": metrics.nll(probs, y), "ece": metrics.ece(probs, y), "accuracy": metrics.accuracy(probs, y)}
        return {**numbers, "aurc": metrics.aurc(1 - best, chosen != y)}


def compare(options: AdapterOptions, command: str) -> Findings:
    """Carry out every run, and write the table and the numbers."""
    return carry_out(Adapters(options), options, command)
