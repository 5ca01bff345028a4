"""Declaration of UCI regression by f-SVGD and its rivals; splits are trained side by side, and kept apart."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from experiments.function_space.networks import SeparateGroups, StackedMLP
from experiments.function_space.particles import Networks, Step, hmc, stepper
from experiments.harness.options import DataOptions, OutputOptions, at_least, one_of
from experiments.harness.run_store import RunStore, fingerprint
from experiments.harness.study import Experiment, Findings, Job, Measure
from experiments.harness.tables import markdown, rectangular, with_error
from experiments.harness.tuning import Choice, next_by_ratio
from experiments.harness.uci_data import NAMES, RegressionData, Standardised, load, standardise, validation_folds
from learned_samplers.metrics.regression import mixture_log_density
from learned_samplers.particles import RBF, FittedPrior, measurement_set, regression_loss
from meta_tasks.progress import progress

HMC_LIMIT = 2000  # HMC takes gradients over all rows: for sets with fewer
LOG_NOISE_AT_START = math.log(0.5)
EXTRA, NOISE = 20, 0.1  # f-SVGD's draws of ν at each step: training inputs plus N(0, NOISE²), standardised
STATES = 5  # of each SGHMC chain that predict, evenly spaced over the second half of its run
#: Of HMC: Adam steps before it, trajectories of adaptation at most, and trajectories from one kept state to the next.
HMC_WARMUP, HMC_BURN_IN, HMC_THINNING = 500, 100, 5
AT_ONCE = 5  # splits that are trained together; more are faster as long as they fit the processor's cache
_ADAM = (4e-3, 1.6e-2, 6.4e-2)
#: Learning rates that are tried on validation rows, those of Adam around the paper's; HMC's step size adapts.
RATES = {
    **dict.fromkeys(("FSVGD", "SVGD", "DeepEnsemble", "PlainEnsemble"), _ADAM),
    **{"SGHMC": (3e-3, 1e-2, 3e-2, 1e-1, 3e-1), "HMC": (1e-3,)},
}


@dataclass(frozen=True)
class UCI(DataOptions, OutputOptions):
    """UCI regression: RMSE and log-likelihood of f-SVGD, SVGD, a deep ensemble, SGHMC and (small sets) HMC."""

    # "cpu": 2,000 steps in minibatches of 100. "paper": 500 epochs of minibatches of 100 below 1,000 training rows,
    # 3,000 of minibatches of 1,000 above.
    preset: Literal["cpu", "paper"] = "cpu"
    sets: tuple[Annotated[str, one_of(NAMES)], ...] = NAMES  # Sets, in the order of the tables.
    # Methods, in the order of the tables, in any letter case.
    methods: tuple[Annotated[str, one_of(RATES)], ...] = tuple(RATES)
    splits: int = 20  # Splits of each set, at most; the files hold 20, of protein 5.
    steps: int | None = None  # Minibatch steps instead of the preset's.
    particles: int = 20  # Networks of each method (chains of SGHMC).
    hidden: int = 50  # Units of the hidden layer.
    hmc_chains: int = 4  # Chains of HMC.
    # Trajectories of each HMC chain after its adaptation, which is as long but at most 100.
    hmc_trajectories: int = 100
    leapfrog_steps: int = 30  # Leapfrog steps of a trajectory.
    folds: int = 2  # Folds of split 0's training part that choose the learning rates, 1 to 5.
    seed: int = 0  # Seed of weights, minibatches and noise.
    threads: int = 1  # CPU threads of torch.
    out: Path = Path("runs/uci")  # Folder of the runs, the table and the results.

    def __post_init__(self) -> None:
        at_least(1, self, "splits", "steps", "particles", "hidden", "hmc_chains", "leapfrog_steps", "threads")
        at_least(HMC_THINNING, self, "hmc_trajectories")  # else no state is kept
        if not 1 <= self.folds <= 5:
            raise ValueError(f"folds must lie in [1, 5], got {self.folds}")

    def budget(self, num_data: int) -> tuple[int, int]:
        """Minibatch and steps of a set with so many training rows."""
        large = num_data >= 1000
        batch = min(num_data, 1000 if large and self.preset == "paper" else 100)
        epochs = (3000 if large else 500) * math.ceil(num_data / batch)
        return batch, self.steps or (2000 if self.preset == "cpu" else epochs)


@dataclass
class Fit:
    """Predictions of K networks on the test rows: means (G, K, T), log σ (G, K), standardised; and their cost."""

    outputs: Tensor
    log_noise: Tensor
    seconds: float = 0.0
    acceptance_rate: float | None = None


class SplitNetworks(Networks):
    """``count`` networks with a noise each on each of G splits."""

    def __init__(self, data: Standardised, count: int, hidden: int) -> None:
        self.data, self.count, self.num_data = data, count, data.num_data
        self.mlp = StackedMLP((data.train_x.shape[2], hidden, 1))
        self.weights = [layer.requires_grad_() for layer in self.mlp.draw(data.groups * count)]
        self.log_noise = torch.full((data.groups * count,), LOG_NOISE_AT_START).requires_grad_()
        self.params = [*self.weights, self.log_noise]
        self.kernel, self.prior = SeparateGroups(RBF(), data.groups), FittedPrior(self._draws)

    def outputs(self, x: Tensor) -> Tensor:
        """(P, n) for inputs (n, G, d)."""
        return self.mlp(self.weights, x.transpose(0, 1))[..., 0]

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """(P,), of outputs (P, B) for targets (B, G)."""
        groups = self.data.groups
        by_group = outputs.view(groups, self.count, -1), y.T, self.log_noise.view(groups, self.count)
        return torch.vmap(regression_loss)(*by_group).flatten()

    def groups(self) -> Any:
        return [{"params": self.weights}, {"params": [self.log_noise], "likelihood": True}]

    def measured(self, x: Tensor) -> Tensor:
        return measurement_set(x, self.data.train_x, EXTRA, scale=NOISE)

    def density(self, inputs: Tensor, outputs: Tensor) -> Tensor:
        return prior_by_group(self.prior, inputs, outputs)

    def _draws(self, inputs: Tensor, count: int) -> Tensor:
        return self.mlp(self.mlp.draw(count), inputs.flatten(0, 1)).view(count, len(inputs), self.data.groups)

    @torch.no_grad()
    def state(self) -> tuple[Tensor, Tensor]:
        groups = self.data.groups
        outputs = self.outputs(self.data.test_x).view(groups, self.count, -1)
        return outputs.clone(), self.log_noise.detach().view(groups, self.count).clone()

    def train(self, step: Step, batch: int, steps: int, kept: set[int]) -> list[tuple[Tensor, Tensor]]:
        """Steps on minibatches; the states after those that are ``kept``."""
        states = []
        for count in progress(range(1, steps + 1), unit="step", leave=False):
            index = torch.randint(self.num_data, (batch,))
            step(self.data.train_x[index], self.data.train_y[index])
            if count in kept:
                states.append(self.state())
        return states


def prior_by_group(prior: FittedPrior, inputs: Tensor, outputs: Tensor) -> Tensor:
    """Density of all splits' particles, (P,), whose gradient by the outputs (P, n) is that of each split's own prior.

    The splits, inputs (n, G, d), stand where a network has several outputs, which the prior takes as independent. The
    density of the particles at the same place in every split comes back G times, and is divided by G.
    """
    groups = inputs.shape[1]
    stacked = outputs.view(groups, -1, len(inputs)).permute(1, 2, 0)
    return prior.log_density(inputs, stacked).repeat(groups) / groups


def fit(method: str, data: Standardised, lr: float, options: UCI, seed: int) -> Fit:
    """Train one method on all splits of ``data`` at once; they do not see each other."""
    torch.manual_seed(seed)
    start, (batch, steps), acceptance_rate = time.perf_counter(), options.budget(data.num_data), None
    networks = SplitNetworks(data, options.hmc_chains if method == "HMC" else options.particles, options.hidden)
    if method == "HMC":
        # Near a mode to start from: from the prior the first trajectories would only fall.
        networks.train(stepper("DeepEnsemble", networks, 1e-2)[1], batch, HMC_WARMUP, set())
        trajectories = (min(HMC_BURN_IN, options.hmc_trajectories), options.hmc_trajectories, HMC_THINNING)
        rows = (data.train_x, data.train_y, networks.state)
        states, acceptance_rate = hmc(networks, lr, *rows, trajectories, leapfrog_steps=options.leapfrog_steps)
    else:
        count = STATES if method == "SGHMC" else 1
        kept = {steps - k * (steps // 2) // count for k in range(count)}
        states = networks.train(stepper(method, networks, lr)[1], batch, steps, kept)
    outputs, log_noise = (torch.cat(parts, dim=1) for parts in zip(*states, strict=True))
    if not (outputs.isfinite().all() and log_noise.isfinite().all()):
        raise FloatingPointError("the predictions are not finite")
    return Fit(outputs, log_noise, time.perf_counter() - start, acceptance_rate)


def scores(fit: Fit, data: Standardised) -> tuple[Tensor, Tensor]:
    """RMSE of the mean prediction and mean log-density of the equally weighted mixture, (G,), in original units."""
    outputs, targets = fit.outputs.double(), data.test_y.T.double()
    rmse = (outputs.mean(1) - targets).square().mean(1).sqrt() * data.deviation
    variance = (2 * fit.log_noise.double()).exp()[:, :, None]
    mixture = mixture_log_density(outputs.transpose(0, 1), variance.transpose(0, 1), targets)
    return rmse, mixture.mean(1) - data.deviation.log()


class Regressions(Experiment):
    """Every method on every set; a run is one of up to `AT_ONCE` splits, and its seed is the first of them."""

    measures = (
        Measure("rmse", "Test RMSE, in the units of the target (lower is better)", 3, error=True),
        Measure("log_likelihood", "Test log-likelihood, nats a point (higher is better)", 3, error=True),
    )
    matrix, extensions, beyond = True, 2, staticmethod(next_by_ratio)
    note = "Mean ± standard error over the splits."

    def __init__(self, options: UCI) -> None:
        super().__init__(options)
        self.sets: dict[str, RegressionData] = {name: load(name, options.data) for name in options.sets}

    def problems(self) -> Sequence[str]:
        return tuple(self.sets)

    def methods(self, problem: str) -> Sequence[str]:
        small = len(self.sets[problem].y) < HMC_LIMIT
        return [method for method in self.options.methods if method != "HMC" or small]

    def seeds(self, problem: str, method: str) -> Sequence[int]:
        return range(0, min(self.options.splits, len(self.sets[problem].test_index)), AT_ONCE)

    def choices(self, problem: str, method: str) -> Sequence[Choice]:
        return [Choice(lr) for lr in RATES[method]]

    def data(self, problem: str) -> str:
        data = self.sets[problem]
        return fingerprint([data.x, data.y, data.test_index])

    def rows(self, job: Job) -> tuple[Tensor, Tensor]:
        """Rows to train and to test on, (G, n) and (G, T)."""
        data = self.sets[job.problem]
        if job.tuning:
            return validation_folds(data, self.options.folds)
        splits = slice(job.seed, min(job.seed + AT_ONCE, self.options.splits))
        return data.train_index()[splits], data.test_index[splits]

    def made_of(self, job: Job) -> dict[str, Any]:
        options, (fitted, tested) = self.options, self.rows(job)
        names = ("particles", "hidden", "hmc_chains", "hmc_trajectories", "leapfrog_steps")
        sizes = {"base_seed": options.seed, "groups": len(tested), "budget": options.budget(fitted.shape[1])}
        return sizes | {name: getattr(options, name) for name in names}

    def run(self, job: Job, store: RunStore) -> dict[str, Any]:
        rows = standardise(self.sets[job.problem], *self.rows(job))
        stream = self.options.seed * 10_000 + job.seed
        fitted = fit(job.method, rows, job.choice.lr, self.options, stream)
        rmse, log_likelihood = (values.tolist() for values in scores(fitted, rows))
        costs = {"seconds": fitted.seconds, "acceptance_rate": fitted.acceptance_rate}
        return {"rmse": rmse, "log_likelihood": log_likelihood, **costs}

    def score(self, run: dict[str, Any]) -> float:
        return -statistics.fmean(run["log_likelihood"])

    def report(self, findings: Findings) -> str:
        rows = []
        for name, methods in findings.runs.items():
            others = [method for method in methods if method != "FSVGD"] if "FSVGD" in methods else []
            rows += [{"set": name} | {m: difference(methods["FSVGD"], methods[m]) for m in others}] if others else []
        note = "### Log-likelihood of f-SVGD less that of each other method on the same splits\n\n"
        return "\n\n".join(filter(None, [super().report(findings), note + markdown(rectangular(rows)) if rows else ""]))


def difference(ours: Sequence[dict[str, Any]], theirs: Sequence[dict[str, Any]]) -> str:
    """Mean difference of two methods' log-likelihoods ± standard error, over the splits on which neither diverged."""
    ended = [(a, b) for a, b in zip(ours, theirs) if a["diverged"] is None and b["diverged"] is None]
    pairs = [pair for a, b in ended for pair in zip(a["log_likelihood"], b["log_likelihood"], strict=True)]
    return with_error([x - y for x, y in pairs], 3)
