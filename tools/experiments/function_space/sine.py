"""Declaration of a one-dimensional posterior with a gap in the data: f-SVGD and SVGD beside HMC."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from torch import Tensor

from experiments.function_space.networks import StackedMLP, infinite_width
from experiments.function_space.particles import Networks, hmc, stepper
from experiments.harness.one_dimension import deviations, draw, training_points
from experiments.harness.options import RunOptions, at_least, positive
from experiments.harness.run_store import RunStore
from experiments.harness.study import Experiment, Findings, Job, Measure, Stores
from learned_samplers import diagnostics
from learned_samplers.particles import FittedPrior, GaussianProcessPrior, measurement_set

RANGES, GRID = ((-4.0, -1.0), (1.0, 4.0)), (-6.0, 6.0)
#: In the order of the tables; FSVGDFitted has the fitted prior on functions, FSVGD that of infinite width.
METHODS = ("HMC", "FSVGD", "FSVGDFitted", "SVGD", "DeepEnsemble")


@dataclass(frozen=True)
class SineProblem:
    """y = sin(x) + noise on two intervals, and networks with weights from N(0, variance)."""

    data: int = 40  # Points, evenly many on each interval.
    noise: float = 0.1  # Standard deviation of the noise, known to the likelihood.
    hidden: tuple[int, ...] = (50,)  # Units of the hidden layers.
    variance: float = 4.0  # Variance of every weight under the prior.
    particles: int = 50  # Particles of each particle sampler.
    steps: int = 3000  # Adam steps of the particle samplers, each on all data.
    lr: float = 5e-2  # First learning rate of the particle samplers; it falls along a cosine.
    extra: int = 40  # Draws of ν, uniform on the plotted range, at each step of f-SVGD.
    chains: int = 10  # Chains of HMC, which start from the ensemble's end.
    burn_in: int = 200  # Trajectories of HMC's adaptation.
    trajectories: int = 500  # Trajectories after it, a chain.
    thinning: int = 10  # Trajectories from one kept state to the next.
    leapfrog_steps: int = 50  # Steps of a trajectory.

    def __post_init__(self) -> None:
        at_least(1, self, "steps", "burn_in", "chains", "thinning", "leapfrog_steps")
        at_least(self.thinning, self, "trajectories")  # else no state is kept
        at_least(2, self, "particles", "data")  # whose standard deviation is compared; a point on each interval
        positive(self, "lr", "noise", "variance")


@dataclass(frozen=True)
class Sine(RunOptions):
    """The posterior of a small network on sin(x) with a gap in the data: f-SVGD and SVGD beside HMC.

    A seed is a data set with its own particles and chains.
    """

    # Data, networks and budgets.
    problem: Annotated[SineProblem, tyro.conf.OmitArgPrefixes] = field(default_factory=SineProblem)
    out: Path = Path("runs/function_space_sine")  # Folder of the table, the results and the figure.


class SineRuns(Networks):
    """The methods on the same data, in double precision."""

    def __init__(self, problem: SineProblem, seed: int) -> None:
        counts = (problem.data // 2, problem.data - problem.data // 2)
        self.problem, self.num_data, self.prior_precision = problem, problem.data, 1 / problem.variance
        self.x, targets = training_points(RANGES, counts, problem.noise, seed, torch.double)
        self.y = targets[:, 0]
        self.grid = torch.linspace(*GRID, 241, dtype=torch.double)[:, None]
        self.mlp = StackedMLP((1, *problem.hidden, 1))

    def draw(self, count: int) -> list[Tensor]:
        return [self.problem.variance**0.5 * p.double() for p in self.mlp.draw(count)]

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Mean negative log-likelihood without its constant, (M,)."""
        return (outputs - y).square().mean(1) / (2 * self.problem.noise**2)

    def outputs(self, x: Tensor) -> Tensor:
        return self.mlp(self.params, x)[..., 0]

    def measured(self, x: Tensor) -> Tensor:
        return measurement_set(x, self.grid, self.problem.extra, scale=0.0)

    def density(self, inputs: Tensor, outputs: Tensor) -> Tensor:
        return self.prior.log_density(inputs, outputs)

    def functions(self, method: str, seed: int) -> tuple[Tensor, float | None]:
        """Samples of the function on the grid (K, 241), and HMC's acceptance rate."""
        torch.manual_seed(seed)
        problem = self.problem
        if method != "HMC":
            self._descend(method, problem.particles)
            return self.outputs(self.grid).detach(), None
        self._descend("DeepEnsemble", problem.chains)
        how = (problem.burn_in, problem.trajectories, problem.thinning)
        state = lambda: self.outputs(self.grid).detach()  # noqa: E731
        states, rate = hmc(self, 1e-4, self.x, self.y, state, how, leapfrog_steps=problem.leapfrog_steps)
        return torch.cat(states), rate

    def _descend(self, method: str, count: int) -> None:
        problem, self.params = self.problem, [p.requires_grad_() for p in self.draw(count)]
        covariance = infinite_width(len(problem.hidden), problem.variance)
        self.prior: Any = GaussianProcessPrior(covariance, jitter=1e-3)
        if method == "FSVGDFitted":
            self.prior = FittedPrior(lambda inputs, number: self.mlp(self.draw(number), inputs)[..., 0])
        sampler, step = stepper(method, self, problem.lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(sampler, problem.steps)
        for _ in range(problem.steps):
            step(self.x, self.y)
            schedule.step()


def worst_rhat(values: Tensor, chains: int) -> float | None:
    """Largest split R̂ of the function over the grid, for HMC's states (draws·chains, 241), a draw of every chain after
    the other; None below four draws a chain."""
    draws = len(values) // chains
    if draws < diagnostics.MINIMUM_DRAWS:
        return None
    return float(diagnostics.split_rhat(values.view(draws, chains, -1).transpose(0, 1)).max())


class SinePosteriors(Experiment):
    """Every method on every data set, HMC first; deviations are compared with HMC's."""

    seeds_first = True
    measures = (
        *(Measure(f"ratio {where}", f"σ / HMC's {where}", 2) for where in ("at the data", "in the gap", "outside")),
        *(Measure(f"mean {where}", f"|Δ mean| {where}", 3) for where in ("at the data", "in the gap", "outside")),
        Measure("acceptance_rate", "acceptance", 2),
        Measure("rhat", "worst R̂", 2),
        Measure("seconds", "seconds", 0),
    )

    def problems(self) -> Sequence[str]:
        return ("sine",)

    def methods(self, problem: str) -> Sequence[str]:
        return METHODS

    def made_of(self, job: Job) -> dict[str, Any]:
        return asdict(self.options.problem)

    def functions(self, method: str, seed: int, store: RunStore) -> Tensor:
        return store.read_tensors(Job("sine", method, self.choices("", method)[0], seed).name, "functions")["values"]

    def run(self, job: Job, store: RunStore) -> dict[str, Any]:
        runs, start = SineRuns(self.options.problem, job.seed), time.perf_counter()
        values, acceptance_rate = runs.functions(job.method, job.seed)
        costs = {"seconds": time.perf_counter() - start, "acceptance_rate": acceptance_rate}
        store.write_tensors(job.name, "functions", {"values": values})
        hmc = self.functions("HMC", job.seed, store)
        rhat = worst_rhat(values, self.options.problem.chains) if job.method == "HMC" else None
        return {**deviations(values, runs.grid, RANGES, hmc), "rhat": rhat, **costs}

    def figure(self, path: Path, findings: Findings, store: Stores) -> None:
        """Draw the first data set."""
        runs, seed = SineRuns(self.options.problem, self.options.seed), self.options.seed
        functions = {method: self.functions(method, seed, store("sine")) for method in METHODS}
        draw(path, functions, runs.grid, (runs.x[:, 0], runs.y), 3.5)
