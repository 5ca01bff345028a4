"""A one-dimensional posterior with a gap in the data: f-SVGD and SVGD beside HMC."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from torch import Tensor

from experiments.function_space.images import infinite_width
from experiments.function_space.networks import StackedMLP
from experiments.harness.figures import new_figure
from experiments.harness.options import RunOptions, at_least, at_least_one, positive
from experiments.harness.output import settings_of, write_outputs
from experiments.harness.run_store import RunStore
from experiments.harness.tables import markdown, spread
from learned_samplers import FSVGD, HMC, SVGD, diagnostics
from learned_samplers.particles import FittedPrior, GaussianProcessPrior, LinearScalarisation, measurement_set

RANGES = ((-4.0, -1.0), (1.0, 4.0))
GRID = (-6.0, 6.0)
#: Where the data are, between them, and beyond them.
REGIONS = ("at the data", "in the gap", "outside")
#: In the order of the tables; FSVGDFitted has the fitted prior on functions, FSVGD that of infinite width.
METHODS = ("HMC", "FSVGD", "FSVGDFitted", "SVGD", "DeepEnsemble")


@dataclass(frozen=True)
class SineProblem:
    """y = sin(x) + noise on two intervals, and networks with weights from N(0, variance)."""

    # Points, evenly many on each interval.
    data: int = 40
    # Standard deviation of the noise, known to the likelihood.
    noise: float = 0.1
    # Units of the hidden layers.
    hidden: tuple[int, ...] = (50,)
    # Of every weight under the prior.
    variance: float = 4.0
    # Particles of each particle sampler.
    particles: int = 50
    # Adam steps of the particle samplers, each on all data.
    steps: int = 3000
    # First learning rate of the particle samplers; it falls along a cosine.
    lr: float = 5e-2
    # Draws of ν, uniform on the plotted range, at each step of f-SVGD.
    extra: int = 40
    # Chains of HMC, which start from the ensemble's end.
    chains: int = 10
    # Trajectories of HMC's adaptation.
    burn_in: int = 200
    # Trajectories after it, a chain.
    trajectories: int = 500
    # Trajectories from one kept state to the next.
    thinning: int = 10
    # Steps of a trajectory.
    leapfrog_steps: int = 50

    def __post_init__(self) -> None:
        at_least_one(self, "steps", "burn_in", "chains", "thinning", "leapfrog_steps")
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
    # Folder of the table, the results and the figure.
    out: Path = Path("runs/function_space_sine")


class SineRuns:
    """The methods on the same data, in double precision."""

    def __init__(self, problem: SineProblem, seed: int):
        stream = torch.Generator().manual_seed(seed)
        half = problem.data // 2
        parts = [
            low + (high - low) * torch.rand(count, generator=stream, dtype=torch.double)
            for (low, high), count in zip(RANGES, (half, problem.data - half), strict=True)
        ]
        self.problem = problem
        self.x = torch.cat(parts)[:, None]
        noise = torch.randn(problem.data, generator=stream, dtype=torch.double)
        self.y = self.x[:, 0].sin() + problem.noise * noise
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

    def functions(self, method: str, seed: int) -> tuple[Tensor, float, float | None]:
        """Samples of the function on the grid (K, 241), seconds, and HMC's acceptance rate."""
        torch.manual_seed(seed)
        start = time.perf_counter()
        values, accepted = self._hmc() if method == "HMC" else (self._particles(method), None)
        return values, time.perf_counter() - start, accepted

    def _particles(self, method: str) -> Tensor:
        params = self._descend(method, [p.requires_grad_() for p in self.draw(self.problem.particles)])
        return self.outputs(params, self.grid).detach()

    def _descend(self, method: str, params: list[Tensor]) -> list[Tensor]:
        problem, count = self.problem, len(self.y)
        plain: dict[str, Any] = dict(prior_precision=1 / problem.variance, base_optimizer=torch.optim.Adam)
        sampler: FSVGD | SVGD | LinearScalarisation
        closure: Callable[[], Any]
        if method.startswith("FSVGD"):
            sampler = FSVGD(params, problem.lr, count, base_optimizer=torch.optim.Adam)
            prior = self._prior(method)

            def closure() -> tuple[Tensor, Tensor, Tensor]:
                inputs = measurement_set(self.x, self.grid, problem.extra, scale=0.0)
                outputs = self.outputs(params, inputs)
                return self.losses(outputs), outputs, prior.log_density(inputs, outputs)
        elif method == "SVGD":
            sampler = SVGD(params, problem.lr, count, **plain)

            def closure() -> Tensor:
                return self.losses(self.outputs(params, self.x))
        else:
            sampler = LinearScalarisation(params, problem.lr, count, **plain)

            def closure() -> Tensor:
                return self.losses(self.outputs(params, self.x))[None]

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
        sampler = HMC(
            params,
            1e-4,
            len(self.y),
            prior_precision=1 / problem.variance,
            leapfrog_steps=problem.leapfrog_steps,
            adapt_steps=problem.burn_in,
        )

        def closure() -> Tensor:
            sampler.zero_grad()
            losses = self.losses(self.outputs(params, self.x))
            losses.sum().backward()
            return losses.detach()

        kept = []
        for trajectory in range(1, problem.burn_in + problem.trajectories + 1):
            sampler.step(closure)
            if trajectory > problem.burn_in and (trajectory - problem.burn_in) % problem.thinning == 0:
                kept.append(self.outputs(params, self.grid).detach())
        return torch.cat(kept), sampler.acceptance_rate


def regions(grid: Tensor) -> dict[str, Tensor]:
    """Masks of the grid for each of `REGIONS`."""
    x = grid[:, 0]
    inside = torch.stack([(x >= low) & (x <= high) for low, high in RANGES]).any(0)
    gap = (x > RANGES[0][1]) & (x < RANGES[1][0])
    return dict(zip(REGIONS, (inside, gap, ~(inside | gap)), strict=True))


def summary(values: Tensor, reference: Tensor, grid: Tensor) -> dict[str, float]:
    """Mean standard deviation of the function over each region, and how far mean and deviation are from HMC's there."""
    scores = {}
    for name, where in regions(grid).items():
        scores[f"deviation {name}"] = values.std(0)[where].mean().item()
        scores[f"ratio {name}"] = scores[f"deviation {name}"] / reference.std(0)[where].mean().item()
        scores[f"mean {name}"] = (values.mean(0) - reference.mean(0))[where].abs().mean().item()
    return scores


def worst_rhat(values: Tensor, chains: int) -> float | None:
    """Largest split R̂ of the function over the grid, for HMC's states (draws·chains, 241), a draw of every chain after
    the other; None below four draws a chain."""
    draws = len(values) // chains
    if draws < diagnostics.MINIMUM_DRAWS:
        return None
    return float(diagnostics.split_rhat(values.view(draws, chains, -1).transpose(0, 1)).max())


def figure(path: Path, functions: Mapping[str, Tensor], runs: SineRuns) -> None:
    """Mean ± 2 standard deviations of the function under each method."""
    fig = new_figure(2.6 * len(functions) + 0.6, 3.2)
    x = runs.grid[:, 0]
    for axes, (name, values) in zip(fig.subplots(1, len(functions), sharey=True), functions.items(), strict=True):
        mean, spread = values.mean(0), 2 * values.std(0)
        axes.fill_between(x, mean - spread, mean + spread, alpha=0.3, linewidth=0, label="± 2 standard deviations")
        axes.plot(x, mean, label="mean")
        axes.plot(x, x.sin(), color="black", linestyle="--", linewidth=1, label="sin x")
        axes.plot(runs.x[:, 0], runs.y, ".", color="#D55E00", markersize=4, label="data")
        axes.set(title=name, xlabel="x", xlim=GRID, ylim=(-3.5, 3.5))
    fig.axes[0].set_ylabel("f(x)")
    handles, labels = fig.axes[0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    fig.savefig(path, dpi=110)


def sine(options: Sine, command: str) -> None:
    """Run every method on every data set and write; the figure shows the first."""
    problem = options.problem
    store, results = RunStore(options.out, fresh=options.fresh), dict[str, list[dict[str, Any]]]()
    for seed in options.seed_list():
        runs, name = SineRuns(problem, seed), f"seed{seed}"

        def make(runs: SineRuns = runs, seed: int = seed, name: str = name) -> dict[str, Any]:
            store.begin(name, "samples")
            entries, functions = run_all(runs, seed)
            store.write_tensors(name, "samples", functions)
            return entries

        for method, entry in store.run(name, {"problem": asdict(problem), "seed": seed}, make).items():
            results.setdefault(method, []).append(entry)
        if seed == options.seed:
            functions = store.read_tensors(name, "samples")
            figure(options.out / "figure.png", {method: functions[method] for method in METHODS}, runs)
    text = markdown([row(method, each) for method, each in results.items()])
    content = {"settings": settings_of(options), "torch": torch.__version__, "methods": results}
    write_outputs(options.out, command, text, content)
    print(f"\n{text}\nwritten to {options.out}")


def run_all(runs: SineRuns, seed: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Of every method its scores, and samples of the function; HMC comes first, to which the others are compared."""
    entries, functions = dict[str, Any](), dict[str, Tensor]()
    for method in METHODS:
        functions[method], seconds, accepted = runs.functions(method, seed)
        scores = summary(functions[method], functions["HMC"], runs.grid)
        rhat = worst_rhat(functions[method], runs.problem.chains) if method == "HMC" else None
        entries[method] = {"seconds": seconds, "acceptance_rate": accepted, "worst_rhat": rhat, **scores}
        print(f"seed {seed}, {method}: {seconds:.0f} s{'' if rhat is None else f', R̂ {rhat:.3f}'}", flush=True)
    return entries, functions


def row(method: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Standard deviation of the function by region, and distance of its mean from HMC's."""
    cells = {"method": method} | {f"deviation {r}": spread([run[f"deviation {r}"] for run in runs], 3) for r in REGIONS}
    for region in REGIONS:
        distances = [run[f"mean {region}"] for run in runs]
        cells[f"mean's distance from HMC's {region}"] = spread(distances, 3) if any(distances) else ""
    return {**cells, "seconds": spread([run["seconds"] for run in runs], 0, with_std=False)}
