"""Declaration of active learning: which images are labelled next, and what a network then knows.

Fashion-MNIST at 14×14, an MLP with 64 hidden units, a pool of 2,000 images; twenty labels by chance, then twenty more a
round. Every method has `GRADIENTS` gradients of all labelled rows a round, from fresh weights, the same prior
N(0, 1/λ), and is scored by its own predictions: samples (`SGHMC`, half of the steps are left out) that label by chance
(``random``), by `mutual_information` (``bald``) or by `batch_bald`; one network that labels by its entropy
(``entropy``); and five networks that share the gradients and label by their mutual information (``ensemble``). Nothing
was tuned.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from experiments.harness.figures import band, grid_lines, new_figure
from experiments.harness.options import DataOptions, RunOptions, at_least, names_once, one_of
from experiments.harness.output import counted
from experiments.harness.study import Experiment, Findings, Job, Measure, carry_out
from learned_samplers import SGHMC, PosteriorSamples, metrics
from learned_samplers.plots import PALETTE
from meta_tasks.datasets import load

A_ROUND, POOL, TEST, GRADIENTS, MEMBERS, SAMPLES = 20, 2000, 2000, 1000, 5, 20
LR, MOMENTUM_DECAY, PRECISION = 0.02, 0.1, 1.0
METHODS = ("random", "bald", "batch_bald", "entropy", "ensemble")


def network(seed: int) -> nn.Sequential:
    """Make a network with fresh weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(196, 64), nn.ReLU(), nn.Linear(64, 10))


def trained(x: Tensor, y: Tensor, steps: int, seed: int) -> nn.Module:
    """Return a network at the mode of its posterior, by as many gradients of all rows."""
    model = network(seed)
    settings: dict[str, Any] = {"lr": LR, "momentum": 1 - MOMENTUM_DECAY, "weight_decay": PRECISION / len(x)}
    optimizer = torch.optim.SGD(model.parameters(), **settings)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def sample_probs(method: str, x: Tensor, y: Tensor, inputs: Tensor, seed: int) -> Tensor:
    """Return probabilities (sample, row, class) of the inputs, after a training on (x, y)."""
    if method in ("entropy", "ensemble"):
        members = MEMBERS if method == "ensemble" else 1
        models = [trained(x, y, GRADIENTS // members, 100 * seed + k) for k in range(members)]
        with torch.no_grad():
            return torch.stack([model(inputs).softmax(1) for model in models])
    model, generator = network(100 * seed), torch.Generator().manual_seed(seed)
    settings: dict[str, Any] = {"lr": LR, "momentum_decay": MOMENTUM_DECAY, "prior_precision": PRECISION}
    sampler = SGHMC(model.parameters(), num_data=len(x), generator=generator, **settings)
    posterior = PosteriorSamples(model, sampler, burn_in=GRADIENTS // 2, thinning=GRADIENTS // 2 // SAMPLES)
    for _ in range(GRADIENTS):
        sampler.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        sampler.step()
    return posterior.predict_samples(inputs, sample_chunk=SAMPLES)


def chosen(method: str, probs: Tensor, generator: torch.Generator) -> Tensor:
    """Return indices of the rows (sample, row, class) to label next."""
    if method == "random":
        return torch.randperm(probs.shape[1], generator=generator)[:A_ROUND]
    if method == "batch_bald":
        return metrics.batch_bald(probs, A_ROUND, num_labellings=200, generator=generator)
    scores = torch.special.entr(probs[0]).sum(-1) if method == "entropy" else metrics.mutual_information(probs)
    return scores.topk(A_ROUND).indices


def curve(method: str, pool: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], rounds: int, seed: int) -> list[float]:
    """Return the accuracies on the test rows after each round."""
    generator, (x, y) = torch.Generator().manual_seed(seed), pool
    labelled = torch.randperm(len(x), generator=generator)[:A_ROUND]
    accuracies = []
    for number in range(rounds):
        left = torch.tensor(sorted({*range(len(x))} - {*labelled.tolist()}))
        probs = sample_probs(method, x[labelled], y[labelled], torch.cat([test[0], x[left]]), seed + 1000 * number)
        accuracies.append(metrics.accuracy(probs[:, : len(test[0])].mean(0), test[1]))
        if number < rounds - 1:
            labelled = torch.cat([labelled, left[chosen(method, probs[:, len(test[0]) :], generator)]])
    return accuracies


def part(data: tuple[Tensor, Tensor], rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return so many rows, drawn by chance, with images of half the side."""
    order = torch.randperm(len(data[0]), generator=generator)[:rows]
    return nn.functional.avg_pool2d(data[0][order], 2), data[1][order]


@dataclass(frozen=True)
class LabellingOptions(DataOptions, RunOptions):
    """Active learning on Fashion-MNIST by samples, one network and an ensemble."""

    method: tuple[Annotated[str, one_of(METHODS)], ...] = METHODS  # Methods.
    rounds: int = 10  # Rounds, of twenty labels each.
    out: Path = Path("runs/labelling")  # Folder of the runs, the table, the results and the figure.

    def __post_init__(self) -> None:
        super().__post_init__()
        names_once(self, "method")
        at_least(2, self, "rounds")


class OnFashion(Experiment):
    """An experiment on Fashion-MNIST with the methods of its options, whose rows are a seed's."""

    seeds_first = True

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.note = f"Mean ± standard error over {counted(options.seeds, 'seed')}"
        data = load("fashion_mnist", options.data)
        self.train, self.test = (data.train_x, data.train_y), (data.test_x, data.test_y)

    def problems(self) -> Sequence[str]:
        return ("Fashion-MNIST",)

    def methods(self, problem: str) -> Sequence[str]:
        return self.options.method


class Labelling(OnFashion):
    """Accuracy after each round of every method; pool, test rows and the first labels are a seed's."""

    measures = (
        Measure("half", "accuracy in the middle, %", 1, 100, error=True),
        Measure("last", "accuracy at the end, %", 1, 100, error=True),
        Measure("mean", "mean of the curve, %", 1, 100, error=True),
        Measure("seconds", "CPU-seconds", 0),
    )

    def made_of(self, job: Job) -> dict[str, Any]:
        settings = [A_ROUND, POOL, TEST, GRADIENTS, MEMBERS, SAMPLES, LR, MOMENTUM_DECAY, PRECISION]
        return {"rounds": self.options.rounds, "settings": settings}

    def run(self, job: Job, store: Any) -> dict[str, Any]:
        """Accuracies after each round, in the middle, at the end and on average, and the CPU-seconds."""
        start, generator = time.process_time(), torch.Generator().manual_seed(job.seed)
        pool, test = part(self.train, POOL, generator), part(self.test, TEST, generator)
        accuracies = curve(job.method, pool, test, self.options.rounds, job.seed)
        numbers = {"half": accuracies[len(accuracies) // 2], "last": accuracies[-1]}
        numbers |= {"mean": sum(accuracies) / len(accuracies), "seconds": time.process_time() - start}
        return {"accuracies": accuracies, **numbers}

    def figure(self, path: Path, findings: Findings, store: Any) -> None:
        """Draw accuracy against labels, the mean over seeds with a band of a standard error."""
        fig = new_figure(6.0, 3.6)
        ax = fig.subplots()
        for colour, (method, runs) in zip(PALETTE, findings.runs["Fashion-MNIST"].items()):
            labels = [A_ROUND * (k + 1) for k in range(self.options.rounds)]
            accuracies = [[100 * value for value in run["accuracies"]] for run in runs]
            band(ax, labels, accuracies, {"color": colour}, error=True, label=method)
        ax.set(xlabel="labels", ylabel="accuracy, %")
        grid_lines(ax)
        ax.legend(frameon=False)
        fig.savefig(path, dpi=120)


def label(options: LabellingOptions, command: str) -> Findings:
    """Carry out every curve, and write table, figure and numbers."""
    return carry_out(Labelling(options), options, command)
