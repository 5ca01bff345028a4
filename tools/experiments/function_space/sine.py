"""Declaration of a one-dimensional posterior with a gap in the data: f-SVGD and SVGD beside HMC."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from torch import Tensor

from experiments.function_space.networks import StackedMLP, infinite_width
from experiments.harness.one_dimension import deviations, draw, training_points
from experiments.harness.options import RunOptions, at_least, positive
from experiments.harness.run_store import RunStore
from experiments.harness.study import Experiment, Findings, Job, Measure, carry_out
from learned_samplers import FSVGD, HMC, SVGD, diagnostics
from learned_samplers.particles import FittedPrior, GaussianProcessPrior, LinearScalarisation, measurement_set

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


class SineRuns:
    """The methods on the same data, in double precision."""

    def __init__(self, problem: SineProblem, seed: int) -> None:
        counts = (problem.data // 2, problem.data - problem.data // 2)
        self.problem = problem
        self.x, targets = training_points(RANGES, counts, problem.noise, seed, torch.double)
        self.y = targets[:, 0]
        self.grid = torch.linspace(*GRID, 241, dtype=torch.double)[:, None]
        self.mlp = StackedMLP((1, *problem.hidden, 1))

    def draw(self, count: int) -> list[Tensor]:
        return [self.problem.variance**0.5 * p.double() for p in self.mlp.draw(count)]

    def losses(self, outputs: Tensor) -> Tensor:
        """Mean negative log-likelihood without its constant, (M,); the first of the outputs (M, n) are the data's."""
        errors = outputs[:, : len(self.y)] - self.y
        return errors.square().mean(1) / (2 * self.problem.noise**2)

    def outputs(self, params: Sequence[Tensor], x: Tensor) -> Tensor:
        return self.mlp(params, x)[..., 0]

    def functions(self, method: str, seed: int) -> tuple[Tensor, float | None]:
        """Samples of the function on the grid (K, 241), and HMC's acceptance rate."""
        torch.manual_seed(seed)
        if method == "HMC":
            return self._hmc()
        params = self._descend(method, [p.requires_grad_() for p in self.draw(self.problem.particles)])
        return self.outputs(params, self.grid).detach(), None

    def _descend(self, method: str, params: list[Tensor]) -> list[Tensor]:
        problem, count = self.problem, len(self.y)
        plain: dict[str, Any] = {"prior_precision": 1 / problem.variance, "base_optimizer": torch.optim.Adam}
        closure: Callable[[], Any]
        if method.startswith("FSVGD"):
            sampler: Any = FSVGD(params, problem.lr, count, base_optimizer=torch.optim.Adam)
            prior = self._prior(method)

            def closure() -> tuple[Tensor, Tensor, Tensor]:
                inputs = measurement_set(self.x, self.grid, problem.extra, scale=0.0)
                outputs = self.outputs(params, inputs)
                return self.losses(outputs), outputs, prior.log_density(inputs, outputs)
        else:
            cls: Any = SVGD if method == "SVGD" else LinearScalarisation
            sampler = cls(params, problem.lr, count, **plain)

            def closure() -> Tensor:
                losses = self.losses(self.outputs(params, self.x))
                return losses if method == "SVGD" else losses[None]

        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(sampler, problem.steps)
        for _ in range(problem.steps):
            sampler.step(closure)
            schedule.step()
        return params

    def _prior(self, method: str) -> GaussianProcessPrior | FittedPrior:
        if method == "FSVGD":
            covariance = infinite_width(len(self.problem.hidden), self.problem.variance)
            return GaussianProcessPrior(covariance, jitter=1e-3)
        return FittedPrior(lambda inputs, count: self.outputs(self.draw(count), inputs))

    def _hmc(self) -> tuple[Tensor, float]:
        problem = self.problem
        params = self._descend("DeepEnsemble", [p.requires_grad_() for p in self.draw(problem.chains)])
        settings: Any = {"leapfrog_steps": problem.leapfrog_steps, "adapt_steps": problem.burn_in}
        sampler = HMC(params, 1e-4, len(self.y), prior_precision=1 / problem.variance, **settings)

        def closure() -> Tensor:
            sampler.zero_grad()
            losses = self.losses(self.outputs(params, self.x))
            losses.sum().backward()
            return losses.detach()

        states = []
        for trajectory in range(1, problem.burn_in + problem.trajectories + 1):
            sampler.step(closure)
            if trajectory > problem.burn_in and (trajectory - problem.burn_in) % problem.thinning == 0:
                states.append(self.outputs(params, self.grid).detach())
        return torch.cat(states), sampler.acceptance_rate


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

    def figure(self, path: Path, findings: Findings, store: Any) -> None:
        """Draw the first data set."""
        runs, seed = SineRuns(self.options.problem, self.options.seed), self.options.seed
        functions = {method: self.functions(method, seed, store("sine")) for method in METHODS}
        draw(path, functions, runs.grid, (runs.x[:, 0], runs.y), 3.5)


def sine(options: Sine, command: str) -> Findings:
    """Run every method on every data set and write; the figure shows the first."""
    return carry_out(SinePosteriors(options), options, command)
