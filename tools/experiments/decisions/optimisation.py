"""Declaration of Bayesian optimisation: surrogates, problems, and the best value that each has come to."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor

from experiments.harness.figures import band, grid_lines, new_figure
from experiments.harness.options import RunOptions, at_least, names_once, one_of
from experiments.harness.output import counted
from experiments.harness.study import Experiment, Findings, Job, Measure, carry_out
from learned_samplers.base.optional import require
from learned_samplers.estimators import BayesianMLPRegressor
from learned_samplers.plots import PALETTE

FIRST = 10
#: A known small noise, and a prior under which functions are as wide as the targets.
SETTINGS: dict[str, Any] = {"noise": 0.05, "n_chains": 4, "n_samples": 20, "n_steps": 300, "hidden_layer_sizes": (64,)}
SETTINGS |= {"prior_precision": {"0.weight": 0.1, "0.bias": 0.1, "2.weight": 64.0, "*": 1.0}, "tuning_steps": 100}
SETTINGS |= {"warmup_steps": 1000, "validation_fraction": 0.0, "warn_unsettled": False}
#: Of the search for the maximum of the acquisition function.
RESTARTS, CANDIDATES, ITERATIONS = 4, 64, 40

Values = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Problem:
    """A function on the unit cube whose lowest value is wanted.

    Attributes:
        evaluate: values (N,) at points (N, d).
        size: d.
        binary: the first so many coordinates are 0 or 1.
    """

    evaluate: Values
    size: int
    binary: int = 0

    def rounded(self, x: Tensor) -> Tensor:
        """Points whose binary coordinates are 0 or 1."""
        return torch.cat([x[:, : self.binary].round(), x[:, self.binary :]], 1)


def _of_botorch(name: str, **options: Any) -> Callable[[int], Problem]:
    def make(seed: int) -> Problem:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(10_000 + seed)  # of the optimum, where it is drawn; another stream than the first points'
            function = getattr(require("botorch.test_functions.synthetic", "botorch"), name)(**options)
        low, high = function.bounds
        binary = len(getattr(function, "discrete_inds", ()))
        return Problem(lambda x: function.evaluate_true(low + (high - low) * x), function.dim, binary)

    return make


PROBLEMS: dict[str, Callable[[int], Problem]] = {
    "Branin": _of_botorch("Branin"),
    "Hartmann-6": _of_botorch("Hartmann", dim=6),
    "Ackley-10": _of_botorch("Ackley", dim=10, bounds=[(-5.0, 10.0)] * 10),
    "Ackley, 10 binary of 13": _of_botorch("AckleyMixed", dim=13, randomize_optimum=True),
}


class Network:
    """Networks that are sampled; a fit goes on from the chains of the fit before, with its scales."""

    def __init__(self, seed: int) -> None:
        self.regressor = BayesianMLPRegressor(**SETTINGS, warm_start=True, random_state=seed)

    def model(self, x: Tensor, y: Tensor) -> Any:
        """Return a BoTorch model of values (N,) at points (N, d)."""
        sampled = require("learned_samplers.integrations.botorch", "botorch").SampledFunctions
        self.regressor.fit(x.numpy(), y.numpy())
        return sampled(self.regressor.predict_samples)


class GaussianProcess:
    """BoTorch's Gaussian process, fitted anew."""

    def __init__(self, seed: int) -> None:
        pass

    def model(self, x: Tensor, y: Tensor) -> Any:
        """Return a BoTorch model of values (N,) at points (N, d)."""
        model = require("botorch.models", "botorch").SingleTaskGP(x, y[:, None])
        likelihood = require("gpytorch.mlls", "botorch").ExactMarginalLogLikelihood(model.likelihood, model)
        require("botorch.fit", "botorch").fit_gpytorch_mll(likelihood)
        return model


SURROGATES: dict[str, Any] = {"network": Network, "gp": GaussianProcess, "random": None}


def best_candidate(model: Any, best: Tensor, problem: Problem) -> Tensor:
    """Return the point (1, d) with the largest expected improvement over ``best``."""
    acquisition = require("botorch.acquisition.logei", "botorch").qLogExpectedImprovement(model, best)
    bounds = torch.stack([torch.zeros(problem.size), torch.ones(problem.size)]).double()
    search: dict[str, Any] = {"q": 1, "num_restarts": RESTARTS, "raw_samples": CANDIDATES}
    if problem.binary:
        optimise = require("botorch.optim.optimize_mixed", "botorch").optimize_acqf_mixed_alternating
        search |= {"discrete_dims": {k: [0.0, 1.0] for k in range(problem.binary)}}
        search |= {"options": {"num_spray_points": 0, "maxiter_alternating": 8}}
    else:
        optimise = require("botorch.optim", "botorch").optimize_acqf
        search |= {"options": {"maxiter": ITERATIONS}}
    return optimise(acquisition, bounds, **search)[0].detach()


def search(problem: Problem, method: str, evaluations: int, seed: int) -> tuple[Tensor, float]:
    """Return the values in the order of their evaluation, and the CPU-seconds of the choices."""
    generator = torch.Generator().manual_seed(seed)
    x = problem.rounded(torch.rand(FIRST, problem.size, generator=generator, dtype=torch.float64))
    y, surrogate, start = problem.evaluate(x), SURROGATES[method], time.process_time()
    fitted = surrogate and surrogate(seed)
    torch.manual_seed(seed)
    for _ in range(evaluations - FIRST):
        if fitted is None:
            point = torch.rand(1, problem.size, generator=generator, dtype=torch.float64)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of searches that end early
                values = -(y - y[:FIRST].mean()) / y[:FIRST].std()  # the larger the better
                point = best_candidate(fitted.model(x, values), values.max(), problem)
        point = problem.rounded(point)
        x, y = torch.cat([x, point]), torch.cat([y, problem.evaluate(point)])
    return y, time.process_time() - start


@dataclass(frozen=True)
class OptimisationOptions(RunOptions):
    """Bayesian optimisation over sampled networks, a Gaussian process, and by chance."""

    problem: tuple[Annotated[str, one_of(PROBLEMS)], ...] = tuple(PROBLEMS)  # Functions to minimise.
    method: tuple[Annotated[str, one_of(SURROGATES)], ...] = tuple(SURROGATES)  # Surrogates.
    evaluations: int = 60  # Evaluations of a function, the ten first points among them.
    seeds: int = 10  # Number of seeds, counted up from --seed; tables give mean ± standard error over them.
    out: Path = Path("runs/optimisation")  # Folder of the runs, the table, the results and the figure.

    def __post_init__(self) -> None:
        super().__post_init__()
        names_once(self, "problem", "method")
        at_least(FIRST + 1, self, "evaluations")


class Optimisation(Experiment):
    """A problem is a function; a run is a search from a seed's first points."""

    measures = (
        Measure("best_30", "lowest value after 30 evaluations", 3, error=True),
        Measure("best", "lowest value at the end", 3, error=True),
        Measure("seconds", "CPU-seconds", 0, error=True),
    )
    seeds_first = True

    def __init__(self, options: OptimisationOptions) -> None:
        super().__init__(options)
        self.note = f"{options.evaluations} evaluations; mean ± standard error over {counted(options.seeds, 'seed')}"

    def problems(self) -> Sequence[str]:
        return self.options.problem

    def methods(self, problem: str) -> Sequence[str]:
        return self.options.method

    def made_of(self, job: Job) -> dict[str, Any]:
        search = [RESTARTS, CANDIDATES, ITERATIONS]
        settings = SETTINGS if job.method == "network" else {}
        return {"evaluations": self.options.evaluations, "search": search, "settings": settings}

    def run(self, job: Job, store: Any) -> dict[str, Any]:
        """Lowest values after each evaluation, after 30 of them and at the end, and the CPU-seconds."""
        values, seconds = search(PROBLEMS[job.problem](job.seed), job.method, self.options.evaluations, job.seed)
        lowest = values.cummin(0).values.tolist()
        return {"lowest": lowest, "best_30": lowest[min(30, len(lowest)) - 1], "best": lowest[-1], "seconds": seconds}

    def figure(self, path: Path, findings: Findings, store: Any) -> None:
        """Draw a panel a problem: lowest value so far against evaluations."""
        fig = new_figure(3.4 * len(findings.runs), 3.2)
        for ax, (problem, methods) in zip(fig.subplots(1, len(findings.runs), squeeze=False)[0], findings.runs.items()):
            for colour, (method, runs) in zip(PALETTE, methods.items()):
                curves = [run["lowest"][FIRST - 1 :] for run in runs]
                x = range(FIRST, FIRST + len(curves[0]))
                band(ax, x, curves, {"color": colour}, error=True, label=method)
            ax.set(title=problem, xlabel="evaluations")
            grid_lines(ax)
        fig.axes[0].set(ylabel="lowest value so far")
        handles, labels = fig.axes[0].get_legend_handles_labels()
        fig.legend(handles, labels, loc="outside lower center", ncols=len(labels))
        fig.savefig(path, dpi=120)


def optimise(options: OptimisationOptions, command: str) -> Findings:
    """Carry out every search, and write table, figure and numbers."""
    return carry_out(Optimisation(options), options, command)
