"""Declaration of one-dimensional regression with a gap in the data: L2E beside HMC (L2E's Appendix G)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from experiments.harness.one_dimension import deviations, draw, regions, training_points
from experiments.harness.options import OutputOptions, at_least, not_negative, positive
from experiments.harness.run_store import RunStore
from experiments.harness.study import Experiment, Findings, Job, Measure, Stores
from learned_samplers import HMC, L2E, SGHMC, AdaptedSGHMC, PosteriorSamples, SampleCollection, Sampler
from meta_tasks.progress import progress

RANGES, GRID = ((-5.0, -1.0), (1.0, 4.0)), (-7.0, 6.0)
NOISE = 0.1  # standard deviation of the noise on y, known to the likelihood
PRIOR_PRECISION = 10.0  # of the normal prior on every weight
ADAPTED, ENSEMBLE = "AdaptedSGHMC(warmup=L2E)", "deep ensemble"
METHODS = ("HMC", "L2E", ADAPTED, "SGHMC", ENSEMBLE)


@dataclass(frozen=True)
class Regression(OutputOptions):
    """The posterior of a network on y = sin(x) + noise with a gap in the data: L2E beside HMC (L2E's Appendix G)."""

    num_data: int = 1000  # Training points, spread evenly over the two intervals by their length.
    hidden: tuple[int, ...] = (100, 100)  # Widths of the network's hidden layers (ReLU).
    samples: int = 50  # Posterior samples of every method; members of the ensemble.
    burn_in: int = 1000  # Steps of the samplers with minibatches before the first sample; AdaptedSGHMC's warm-up.
    thinning: int = 50  # Their steps between samples.
    batch_size: int = 100  # Points in a minibatch.
    # Learning rate of SGHMC; the others have their own. It is small because the loss is a squared error over noise².
    lr: float = 1e-4
    network: str = "l2e-gated"  # L2E's network: a shipped name or a weight file.
    ensemble_steps: int = 300  # Adam steps of each member of the ensemble.
    hmc_burn_in: int = 100  # Trajectories of HMC before the first sample; its step size adapts meanwhile.
    hmc_thinning: int = 2  # Trajectories of HMC between samples.
    leapfrog_steps: int = 100  # Leapfrog steps of a trajectory.
    seed: int = 0  # Seed of the data, the initial weights and the noise.
    out: Path = Path("runs/regression")  # Folder for the results.

    def __post_init__(self) -> None:
        at_least(1, self, "num_data", "thinning", "batch_size", "ensemble_steps", "hmc_thinning", "leapfrog_steps")
        at_least(2, self, "samples")  # whose standard deviation is drawn
        positive(self, "lr")
        not_negative(self, "burn_in", "hmc_burn_in")
        if min(self.hidden, default=1) < 1:
            raise ValueError(f"hidden must hold positive integers, got {self.hidden}")
        if self.batch_size > self.num_data:
            raise ValueError(f"batch_size={self.batch_size} exceeds the {self.num_data} training points")


class GapRegression(Experiment):
    """The methods on the same data."""

    measures = (
        *(Measure(f"deviation {where}", f"σ {where}", 3) for where in ("at the data", "in the gap", "outside")),
        Measure("rmse", "RMSE at the data", 3),
        Measure("seconds", "seconds", 1),
        Measure("acceptance_rate", "acceptance", 2),
    )

    def __init__(self, options: Regression) -> None:
        super().__init__(options)
        lengths = [high - low for low, high in RANGES]
        first = round(options.num_data * lengths[0] / sum(lengths))
        counts = (first, options.num_data - first)
        self.x, self.y = training_points(RANGES, counts, NOISE, options.seed, torch.float32)
        self.grid = torch.linspace(*GRID, 261)[:, None]
        self.posterior: dict[str, Any] = {"num_data": options.num_data, "prior_precision": PRIOR_PRECISION}
        self.sampler("L2E", self.network())  # refused before HMC has run for minutes

    def problems(self) -> Sequence[str]:
        return ("regression",)

    def methods(self, problem: str) -> Sequence[str]:
        return METHODS

    def seeds(self, problem: str, method: str) -> Sequence[int]:
        return (self.options.seed,)

    def made_of(self, job: Job) -> dict[str, Any]:
        return {key: value for key, value in asdict(self.options).items() if key not in ("out", "fresh")}

    def network(self) -> nn.Sequential:
        sizes = (1, *self.options.hidden, 1)
        layers = [layer for i, o in pairwise(sizes) for layer in (nn.Linear(i, o), nn.ReLU())]
        return nn.Sequential(*layers[:-1])

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Mean negative log-likelihood in nats, without its constant."""
        return (model(x) - y).square().mean() / (2 * NOISE**2)

    def minibatches(self, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
        for _ in progress(range(steps), unit="grad", leave=False):
            index = torch.randint(self.options.num_data, (self.options.batch_size,))
            optimizer.zero_grad()
            self.loss(model, self.x[index], self.y[index]).backward()
            optimizer.step()

    def sampler(self, method: str, model: nn.Module) -> Sampler:
        options, params = self.options, model.parameters()
        learned = partial(L2E, network=options.network)
        if method == ADAPTED:
            return AdaptedSGHMC(params, warmup_steps=max(1, options.burn_in), warmup=learned, **self.posterior)
        return learned(params, **self.posterior) if method == "L2E" else SGHMC(params, options.lr, **self.posterior)

    def run(self, job: Job, store: RunStore) -> dict[str, Any]:
        torch.manual_seed(job.seed)
        start, acceptance_rate = time.perf_counter(), None
        if job.method == "HMC":
            samples, acceptance_rate = self.hmc()
        else:
            samples = self.ensemble() if job.method == ENSEMBLE else self.chain(job.method)
        seconds = time.perf_counter() - start
        values = samples.predict_samples(self.grid, output="regression")[..., 0]
        if not values.isfinite().all():
            raise FloatingPointError("the predictions are not finite")
        store.write_tensors(job.name, "functions", {"values": values})
        inside = regions(self.grid, RANGES)["at the data"]
        rmse = (values.mean(0) - self.grid[:, 0].sin())[inside].square().mean().sqrt().item()
        costs = {"seconds": seconds, "acceptance_rate": acceptance_rate}
        return {**deviations(values, self.grid, RANGES), "rmse": rmse, **costs}

    def chain(self, method: str) -> SampleCollection:
        options, model = self.options, self.network()
        sampler = self.sampler(method, model)
        with PosteriorSamples(model, sampler, burn_in=options.burn_in, thinning=options.thinning) as samples:
            self.minibatches(model, sampler, options.burn_in + options.samples * options.thinning)
        return samples

    def ensemble(self) -> SampleCollection:
        states = []
        for _ in range(self.options.samples):
            model = self.network()
            decay = PRIOR_PRECISION / self.options.num_data
            self.minibatches(
                model, torch.optim.Adam(model.parameters(), 0.01, weight_decay=decay), self.options.ensemble_steps
            )
            states.append(model.state_dict())
        return PosteriorSamples.from_samples(model, states)

    def hmc(self) -> tuple[SampleCollection, float]:
        """Samples, and the share of accepted proposals."""
        options, model = self.options, self.network()
        settings: Any = {"leapfrog_steps": options.leapfrog_steps, "adapt_steps": options.hmc_burn_in}
        sampler = HMC(model.parameters(), 1e-5, **settings, **self.posterior)
        # A mode to start from: from random weights the first trajectories would only fall.
        self.minibatches(model, torch.optim.Adam(model.parameters(), 0.01), 500)

        def closure() -> Tensor:
            sampler.zero_grad()
            loss = self.loss(model, self.x, self.y)
            loss.backward()
            return loss.detach()

        trajectories = options.hmc_burn_in + options.samples * options.hmc_thinning
        with PosteriorSamples(model, sampler, burn_in=options.hmc_burn_in, thinning=options.hmc_thinning) as samples:
            for _ in progress(range(trajectories), desc="HMC", unit="trajectory", leave=False):
                sampler.step(closure)
        return samples, sampler.acceptance_rate

    def figure(self, path: Path, findings: Findings, store: Stores) -> None:
        names = {m: Job("regression", m, self.choices("", m)[0], self.options.seed).name for m in findings.methods()}
        functions = {m: store("regression").read_tensors(name, "functions")["values"] for m, name in names.items()}
        draw(path, functions, self.grid, (self.x, self.y), 4.0)
