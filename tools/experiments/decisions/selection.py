"""Declaration of selective prediction: how many predictions can be kept, at which share of errors?

Fashion-MNIST at 14×14, an MLP with 64 hidden units, 2,000 labelled images, the prior N(0, 1/λ) for all, `STEPS`
gradients of `BATCH` images. ``SGD``: one network, momentum and a cosine; ``SGHMC`` at T = 1, half of the steps
are left out; ``AdaptedSGHMC`` as README has it, T = 0.1; ``ensemble``: five networks as SGD's that share the
gradients; ``five``: five that have as many each, at five times the cost. Doubt is 1 − the largest averaged probability,
of all alike. The threshold is chosen on half of 10,000 test images, risk and coverage are those of the other half.
Nothing was tuned.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from experiments.decisions.labelling import OnFashion, network, part
from experiments.harness.figures import grid_lines, new_figure
from experiments.harness.options import DataOptions, RunOptions, names_once, one_of
from experiments.harness.study import Findings, Job, Measure, carry_out
from learned_samplers import L2E, SGHMC, AdaptedSGHMC, PosteriorSamples, metrics
from learned_samplers.plots import PALETTE

TRAIN, TEST, STEPS, BATCH, MEMBERS, SAMPLES = 2000, 10_000, 5000, 64, 5, 50
SGD_LR, SGHMC_LR, MOMENTUM_DECAY, PRECISION, RISK = 0.1, 0.02, 0.1, 1.0, 0.05
METHODS = ("SGD", "SGHMC", "AdaptedSGHMC", "ensemble", "five")
#: Points of the curves, of so many test rows each.
EVERY = 50


def train(model: nn.Module, optimizer: Any, x: Tensor, y: Tensor, steps: int, seed: int, schedule: Any = None) -> None:
    """Make so many steps on minibatches."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        rows = torch.randint(len(x), (BATCH,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()


def by_sgd(x: Tensor, y: Tensor, steps: int, seed: int) -> nn.Module:
    """Return a network at the end of a cosine."""
    model = network(seed)
    settings: dict[str, Any] = {"momentum": 1 - MOMENTUM_DECAY, "weight_decay": PRECISION / len(x)}
    optimizer = torch.optim.SGD(model.parameters(), lr=SGD_LR, **settings)
    cosine = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 0.5 * (1 + math.cos(math.pi * k / steps)))
    train(model, optimizer, x, y, steps, seed, cosine)
    return model


def probabilities(method: str, x: Tensor, y: Tensor, inputs: Tensor, seed: int) -> Tensor:
    """Return the averaged probabilities (row, class) of the inputs, after a training on (x, y)."""
    if method in ("SGD", "ensemble", "five"):
        members = 1 if method == "SGD" else MEMBERS
        steps = STEPS // members if method == "ensemble" else STEPS
        models = [by_sgd(x, y, steps, 100 * seed + k) for k in range(members)]
        with torch.no_grad():
            return torch.stack([model(inputs).softmax(-1) for model in models]).mean(0)
    model, generator = network(100 * seed), torch.Generator().manual_seed(seed)
    shared: dict[str, Any] = {"num_data": len(x), "prior_precision": PRECISION, "generator": generator}
    sampler: torch.optim.Optimizer
    if method == "SGHMC":
        sampler = SGHMC(model.parameters(), lr=SGHMC_LR, momentum_decay=MOMENTUM_DECAY, **shared)
    else:
        sampler = AdaptedSGHMC(model.parameters(), temperature=0.1, total_steps=STEPS, warmup=L2E, **shared)
    posterior = PosteriorSamples(model, sampler, burn_in=STEPS // 2, thinning=STEPS // 2 // SAMPLES)
    train(model, sampler, x, y, STEPS, seed)
    return posterior.predict(inputs)


def scores(probs: Tensor, y: Tensor) -> dict[str, Any]:
    """Risk, AURC and what a threshold for `RISK` keeps, of the second half of the rows, with the first's threshold."""
    doubt, wrong, half = 1 - probs.amax(1), probs.argmax(1) != y, len(y) // 2
    threshold = metrics.selective_threshold(doubt[:half], wrong[:half], risk=RISK)
    doubt, wrong = doubt[half:], wrong[half:]
    kept, curve = doubt < threshold, metrics.risk_coverage(doubt, wrong)
    numbers = {"error": wrong.float().mean().item(), "aurc": metrics.aurc(doubt, wrong)}
    numbers |= {"kept": kept.float().mean().item(), "wrong": wrong[kept].float().sum().item() / max(1, int(kept.sum()))}
    return {**numbers, "nll": metrics.nll(probs[half:], y[half:]), "risks": curve.risk[EVERY - 1 :: EVERY].tolist()}


@dataclass(frozen=True)
class SelectionOptions(DataOptions, RunOptions):
    """Selective prediction on Fashion-MNIST by SGD, samples and ensembles."""

    method: tuple[Annotated[str, one_of(METHODS)], ...] = METHODS  # Methods.
    seeds: int = 5  # Number of seeds, counted up from --seed; tables give mean ± standard error over them.
    out: Path = Path("runs/selection")  # Folder of the runs, the table, the results and the figure.

    def __post_init__(self) -> None:
        super().__post_init__()
        names_once(self, "method")


class Selection(OnFashion):
    """Risk against coverage of every method; training rows and the halves of the test rows are a seed's."""

    measures = (
        Measure("error", "errors, %", 1, 100, error=True),
        Measure("nll", "NLL", 3, error=True),
        Measure("aurc", "AURC, %", 2, 100, error=True),
        Measure("kept", f"kept at risk {RISK:.0%}, %", 1, 100, error=True),
        Measure("wrong", "errors among them, %", 2, 100, error=True),
        Measure("seconds", "CPU-seconds", 0),
    )

    def made_of(self, job: Job) -> dict[str, Any]:
        sizes = [TRAIN, TEST, STEPS, BATCH, MEMBERS, SAMPLES]
        return {"settings": [*sizes, SGD_LR, SGHMC_LR, MOMENTUM_DECAY, PRECISION, RISK]}

    def run(self, job: Job, store: Any) -> dict[str, Any]:
        """The scores, and the CPU-seconds of training and prediction."""
        start, generator = time.process_time(), torch.Generator().manual_seed(job.seed)
        (x, y), (inputs, labels) = part(self.train, TRAIN, generator), part(self.test, TEST, generator)
        probs = probabilities(job.method, x, y, inputs, job.seed)
        return {**scores(probs, labels), "seconds": time.process_time() - start}

    def figure(self, path: Path, findings: Findings, store: Any) -> None:
        """Draw risk against coverage, the mean over seeds."""
        fig = new_figure(6.0, 3.6)
        ax = fig.subplots()
        for colour, (method, runs) in zip(PALETTE, findings.runs["Fashion-MNIST"].items()):
            mean = 100 * torch.tensor([run["risks"] for run in runs]).mean(0)
            ax.plot([100 * (k + 1) / len(mean) for k in range(len(mean))], mean, color=colour, label=method)
        ax.set(xlabel="coverage: predictions kept, %", ylabel="risk: errors among them, %", xlim=(0, 100))
        ax.set_ylim(bottom=0)
        grid_lines(ax)
        ax.legend(frameon=False)
        fig.savefig(path, dpi=120)


def select(options: SelectionOptions, command: str) -> Findings:
    """Carry out every training, and write table, figure and numbers."""
    return carry_out(Selection(options), options, command)
