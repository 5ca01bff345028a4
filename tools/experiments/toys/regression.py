"""One-dimensional regression with a gap in the data by HMC, L2E, AdaptedSGHMC, SGHMC and an ensemble."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from experiments.harness.figures import new_figure
from experiments.harness.options import at_least, at_least_one, not_negative, positive
from experiments.harness.output import settings_of, write_outputs
from experiments.harness.tables import markdown
from learned_samplers import HMC, L2E, SGHMC, AdaptedSGHMC, PosteriorSamples, SampleCollection, Sampler

RANGES = ((-5.0, -1.0), (1.0, 4.0))
GAP, GRID = (-1.0, 1.0), (-7.0, 6.0)
NOISE = 0.1  # standard deviation of the noise on y, known to the likelihood
ADAPTED = "AdaptedSGHMC(warmup=L2E)"
PRIOR_PRECISION = 10.0  # of the normal prior on every weight


@dataclass(frozen=True)
class Regression:
    """The posterior of a network on y = sin(x) + noise with a gap in the data: L2E beside HMC (L2E's Appendix G)."""

    # Training points, spread evenly over the two intervals by their length.
    num_data: int = 1000
    # Widths of the network's hidden layers (ReLU).
    hidden: tuple[int, ...] = (100, 100)
    # Posterior samples of every method; members of the ensemble.
    samples: int = 50
    # Steps of the samplers with minibatches before the first sample; AdaptedSGHMC's warm-up.
    burn_in: int = 1000
    # Their steps between samples.
    thinning: int = 50
    # Points in a minibatch.
    batch_size: int = 100
    # Learning rate of SGHMC; the others have their own. It is small because the loss is a squared error over noise².
    lr: float = 1e-4
    # L2E's network: a shipped name or a weight file.
    network: str = "l2e-gated"
    # Adam steps of each member of the ensemble.
    ensemble_steps: int = 300
    # Trajectories of HMC before the first sample; its step size adapts meanwhile.
    hmc_burn_in: int = 100
    # Trajectories of HMC between samples.
    hmc_thinning: int = 2
    # Leapfrog steps of a trajectory.
    leapfrog_steps: int = 100
    # Seed of the data, the initial weights and the noise.
    seed: int = 0
    # Folder for the results.
    out: Path = Path("runs/regression")

    def __post_init__(self) -> None:
        counts = ("num_data", "thinning", "batch_size", "ensemble_steps", "hmc_thinning", "leapfrog_steps")
        at_least_one(self, *counts)
        at_least(2, self, "samples")  # whose standard deviation is drawn
        positive(self, "lr")
        not_negative(self, "burn_in", "hmc_burn_in")
        if min(self.hidden, default=1) < 1:
            raise ValueError(f"hidden must hold positive integers, got {self.hidden}")
        if self.batch_size > self.num_data:
            raise ValueError(f"batch_size={self.batch_size} exceeds the {self.num_data} training points")


def training_data(options: Regression) -> tuple[Tensor, Tensor]:
    """x and y, (N, 1) each."""
    stream = torch.Generator().manual_seed(options.seed)
    lengths = [high - low for low, high in RANGES]
    first = round(options.num_data * lengths[0] / sum(lengths))
    parts = [
        low + length * torch.rand(count, generator=stream)
        for (low, _), length, count in zip(RANGES, lengths, (first, options.num_data - first))
    ]
    x = torch.cat(parts)[:, None]
    return x, x.sin() + NOISE * torch.randn(x.shape, generator=stream)


def network(options: Regression) -> nn.Sequential:
    layers = [layer for i, o in pairwise((1, *options.hidden, 1)) for layer in (nn.Linear(i, o), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


class Runs:
    """The methods on the same data.

    Raises:
        ValueError, OSError: there are no weights of that name, or not for these layers.
    """

    def __init__(self, options: Regression) -> None:
        self.options = options
        self.x, self.y = training_data(options)
        self.common: dict[str, Any] = {"num_data": options.num_data, "prior_precision": PRIOR_PRECISION}
        self.sampler("L2E", network(options))  # here already, before HMC has run for minutes

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Mean negative log-likelihood in nats, without its constant."""
        return (model(x) - y).square().mean() / (2 * NOISE**2)

    def minibatches(self, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, label: str) -> None:
        for _ in tqdm(range(steps), desc=label, unit="grad", leave=False):
            index = torch.randint(self.options.num_data, (self.options.batch_size,))
            optimizer.zero_grad()
            self.loss(model, self.x[index], self.y[index]).backward()
            optimizer.step()

    def sampler(self, label: str, model: nn.Module) -> Sampler:
        options, params = self.options, model.parameters()
        learned = partial(L2E, network=options.network)
        if label == ADAPTED:
            return AdaptedSGHMC(params, warmup_steps=max(1, options.burn_in), warmup=learned, **self.common)
        return learned(params, **self.common) if label == "L2E" else SGHMC(params, options.lr, **self.common)

    def stochastic(self, label: str) -> SampleCollection:
        options, model = self.options, network(self.options)
        sampler = self.sampler(label, model)
        steps = options.burn_in + options.samples * options.thinning
        with PosteriorSamples(model, sampler, burn_in=options.burn_in, thinning=options.thinning) as samples:
            self.minibatches(model, sampler, steps, label)
        return samples

    def ensemble(self) -> SampleCollection:
        options, states = self.options, []
        for member in range(options.samples):
            model = network(options)
            decay = PRIOR_PRECISION / options.num_data
            optimizer = torch.optim.Adam(model.parameters(), 0.01, weight_decay=decay)
            self.minibatches(model, optimizer, options.ensemble_steps, f"deep ensemble, member {member + 1}")
            states.append(model.state_dict())
        return PosteriorSamples.from_samples(model, states)

    def hmc(self) -> tuple[SampleCollection, float]:
        """The samples, and the share of accepted proposals."""
        options, model = self.options, network(self.options)
        own: Any = {"leapfrog_steps": options.leapfrog_steps, "adapt_steps": options.hmc_burn_in, **self.common}
        sampler = HMC(model.parameters(), 1e-5, **own)
        # A mode to start from: from random weights the first trajectories would only fall.
        self.minibatches(model, torch.optim.Adam(model.parameters(), 0.01), 500, "HMC, start")

        def closure() -> Tensor:
            sampler.zero_grad()
            loss = self.loss(model, self.x, self.y)
            loss.backward()
            return loss.detach()

        trajectories = options.hmc_burn_in + options.samples * options.hmc_thinning
        with PosteriorSamples(model, sampler, burn_in=options.hmc_burn_in, thinning=options.hmc_thinning) as samples:
            for _ in tqdm(range(trajectories), desc="HMC", unit="trajectory", leave=False):
                sampler.step(closure)
        return samples, sampler.acceptance_rate


def summary(functions: dict[str, Tensor], grid: Tensor, seconds: dict[str, float]) -> dict[str, dict[str, float]]:
    """Standard deviation of the function, mean over each region; and the error of the mean where the data are."""
    x = grid[:, 0]
    inside = torch.stack([(x >= low) & (x <= high) for low, high in RANGES]).any(0)
    regions = {"data": inside, "gap": (x > GAP[0]) & (x < GAP[1]), "outside": (x < RANGES[0][0]) | (x > RANGES[1][1])}
    table = {}
    for name, values in functions.items():
        spread = values.std(0)
        table[name] = {f"std_{region}": spread[where].mean().item() for region, where in regions.items()}
        error = (values.mean(0) - x.sin())[inside]
        table[name] |= {"rmse_data": error.square().mean().sqrt().item(), "seconds": seconds[name]}
    return table


def figure(path: Path, functions: dict[str, Tensor], grid: Tensor, data: tuple[Tensor, Tensor]) -> None:
    """Mean and 95 % interval of the function under each method."""
    fig = new_figure(13.0, 3.2)
    x = grid[:, 0]
    for axes, (name, values) in zip(fig.subplots(1, len(functions), sharey=True), functions.items()):
        low, high = torch.quantile(values, torch.tensor([0.025, 0.975]), dim=0)
        axes.fill_between(x, low, high, alpha=0.3, linewidth=0, label="95 % of the samples")
        axes.plot(x, values.mean(0), label="mean")
        axes.plot(x, x.sin(), color="black", linestyle="--", linewidth=1, label="sin x")
        axes.plot(data[0], data[1], ".", color="grey", markersize=1, alpha=0.5, zorder=0, label="data")
        axes.set(title=name.replace("(", "\n("), xlabel="x", ylim=(-4, 4), xlim=GRID)
    fig.axes[0].set_ylabel("y")
    handles, labels = fig.axes[0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=len(labels), markerscale=8)
    fig.savefig(path, dpi=150)


def regression(options: Regression, command: str) -> None:
    """Run the methods; write figure, table and numbers.

    Raises:
        FloatingPointError: a prediction is not finite.
    """
    torch.set_num_threads(1)
    runs, grid, acceptance = Runs(options), torch.linspace(*GRID, 261)[:, None], math.nan
    functions: dict[str, Tensor] = {}
    seconds: dict[str, float] = {}
    for label in ("HMC", "L2E", ADAPTED, "SGHMC", "deep ensemble"):
        torch.manual_seed(options.seed)
        started = time.perf_counter()
        if label == "HMC":
            samples, acceptance = runs.hmc()
        else:
            samples = runs.ensemble() if label == "deep ensemble" else runs.stochastic(label)
        seconds[label] = time.perf_counter() - started
        functions[label] = samples.predict_samples(grid, output="regression")[..., 0]
        if not functions[label].isfinite().all():
            raise FloatingPointError(f"{label}: the predictions are not finite")
    found = summary(functions, grid, seconds)
    text = markdown([{"method": name, **{key: f"{x:.3f}" for key, x in row.items()}} for name, row in found.items()])
    content = {"options": settings_of(options), "hmc_acceptance_rate": acceptance, "methods": found}
    write_outputs(options.out, command, text, content)
    figure(options.out / "regression.png", functions, grid, (runs.x, runs.y))
    print(f"{text}\nHMC accepts {acceptance:.2f} of its proposals; written to {options.out}")
