"""Declaration of UCI regression by f-SVGD and its rivals; splits are trained side by side, and kept apart."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from experiments.function_space.networks import SeparateGroups, StackedMLP
from experiments.harness.options import DataOptions, OutputOptions, at_least, one_of
from experiments.harness.run_store import fingerprint
from experiments.harness.study import Experiment, Findings, Job, Measure, carry_out
from experiments.harness.tables import markdown, rectangular, with_error
from experiments.harness.tuning import Choice, next_by_ratio
from experiments.harness.uci_data import NAMES, RegressionData, Standardised, load, standardise, validation_folds
from learned_samplers import FSVGD, HMC, SGHMC, SVGD
from learned_samplers.metrics.regression import mixture_log_density
from learned_samplers.particles import RBF, FittedPrior, LinearScalarisation, measurement_set, regression_loss
from meta_tasks.progress import progress

HMC_LIMIT = 2000  # HMC takes gradients over all rows: for sets with fewer
LOG_NOISE_AT_START = math.log(0.5)
EXTRA, NOISE = 20, 0.1  # f-SVGD's draws of ν at each step: training inputs plus N(0, NOISE²), standardised
AT_ONCE = 5  # splits that are trained together; more are faster as long as they fit the processor's cache


@dataclass(frozen=True)
class Protocol:
    """Training of every method on a split.

    Attributes:
        particles: networks; chains of SGHMC.
        small, large: minibatch and, of the other two numbers, steps or (if that is 0) epochs, for fewer than 1,000
            training rows and for more.
        states: states of each SGHMC chain that predict, evenly spaced over the second half of its run.
        hmc_warmup: Adam steps before HMC's first trajectory.
        hmc_burn_in, hmc_trajectories, hmc_thinning: trajectories of adaptation, further ones, and from one kept state
            to the next.
    """

    particles: int = 20
    hidden: int = 50
    small: tuple[int, int, int] = (100, 0, 500)
    large: tuple[int, int, int] = (1000, 0, 3000)
    states: int = 5
    hmc_chains: int = 4
    hmc_warmup: int = 500
    hmc_burn_in: int = 100
    hmc_trajectories: int = 100
    hmc_thinning: int = 5
    leapfrog_steps: int = 30

    def __post_init__(self) -> None:
        at_least(self.hmc_thinning, self, "hmc_trajectories")  # else no state is kept

    def budget(self, num_data: int) -> tuple[int, int]:
        """Minibatch and steps."""
        batch, steps, epochs = self.small if num_data < 1000 else self.large
        batch = min(batch, num_data)
        return batch, steps or epochs * math.ceil(num_data / batch)


@dataclass
class Fit:
    """Predictions of K networks on the test rows: means (G, K, T), log σ (G, K), standardised; and their cost."""

    outputs: Tensor
    log_noise: Tensor
    seconds: float = 0.0
    acceptance_rate: float | None = None


class Networks:
    """P networks with a noise each on G splits, and the losses of all."""

    def __init__(self, data: Standardised, count: int, hidden: int) -> None:
        self.data, self.count = data, count
        self.mlp = StackedMLP((data.train_x.shape[2], hidden, 1))
        self.params = [layer.requires_grad_() for layer in self.mlp.draw(data.groups * count)]
        self.log_noise = torch.full((data.groups * count,), LOG_NOISE_AT_START).requires_grad_()
        self.everything = [*self.params, self.log_noise]

    def outputs(self, x: Tensor) -> Tensor:
        """(P, n) for inputs (n, G, d)."""
        return self.mlp(self.params, x.transpose(0, 1))[..., 0]

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Mean negative log-likelihood, (P,), of outputs (P, B) for targets (B, G)."""
        groups = self.data.groups
        by_group = outputs.view(groups, self.count, -1), y.T, self.log_noise.view(groups, self.count)
        return torch.vmap(regression_loss)(*by_group).flatten()

    def energies(self, x: Tensor, y: Tensor) -> Tensor:
        return self.losses(self.outputs(x), y)

    @torch.no_grad()
    def state(self) -> tuple[Tensor, Tensor]:
        groups = self.data.groups
        outputs = self.outputs(self.data.test_x).view(groups, self.count, -1)
        return outputs.clone(), self.log_noise.detach().view(groups, self.count).clone()


Step = Callable[[Tensor, Tensor], object]


def fit(method: str, data: Standardised, lr: float, protocol: Protocol, seed: int) -> Fit:
    """Train one method on all splits of ``data`` at once; they do not see each other."""
    torch.manual_seed(seed)
    start = time.perf_counter()
    if method == "HMC":
        states, acceptance_rate = _hmc(data, lr, protocol)
    else:
        networks = Networks(data, protocol.particles, protocol.hidden)
        batch, steps = protocol.budget(data.num_data)
        kept = {steps}
        if method == "SGHMC":
            kept = {steps - k * (steps // 2) // protocol.states for k in range(protocol.states)}
        states, acceptance_rate = _minibatches(networks, STEPS[method](networks, lr), batch, steps, kept), None
    outputs, log_noise = (torch.cat(parts, dim=1) for parts in zip(*states, strict=True))
    if not (outputs.isfinite().all() and log_noise.isfinite().all()):
        raise FloatingPointError("the predictions are not finite")
    return Fit(outputs, log_noise, time.perf_counter() - start, acceptance_rate)


def _minibatches(networks: Networks, step: Step, batch: int, steps: int, kept: set[int]) -> list[tuple[Tensor, Tensor]]:
    states, data = [], networks.data
    for count in progress(range(1, steps + 1), unit="step", leave=False):
        index = torch.randint(data.num_data, (batch,))
        step(data.train_x[index], data.train_y[index])
        if count in kept:
            states.append(networks.state())
    return states


def prior_by_group(prior: FittedPrior, inputs: Tensor, outputs: Tensor) -> Tensor:
    """Density of all splits' particles, (P,), whose gradient by the outputs (P, n) is that of each split's own prior.

    The splits, inputs (n, G, d), stand where a network has several outputs, which the prior takes as independent. The
    density of the particles at the same place in every split comes back G times, and is divided by G.
    """
    groups = inputs.shape[1]
    stacked = outputs.view(groups, -1, len(inputs)).permute(1, 2, 0)
    return prior.log_density(inputs, stacked).repeat(groups) / groups


def _fsvgd(networks: Networks, lr: float) -> Step:
    data, mlp = networks.data, networks.mlp

    def draws(inputs: Tensor, count: int) -> Tensor:
        return mlp(mlp.draw(count), inputs.flatten(0, 1)).view(count, len(inputs), data.groups)

    prior = FittedPrior(draws)
    params = [{"params": networks.params}, {"params": [networks.log_noise], "likelihood": True}]
    kernel = SeparateGroups(RBF(), data.groups)
    sampler = FSVGD(params, lr, data.num_data, kernel=kernel, base_optimizer=torch.optim.Adam)

    def step(x: Tensor, y: Tensor) -> None:
        def closure() -> tuple[Tensor, Tensor, Tensor]:
            inputs = measurement_set(x, data.train_x, EXTRA, scale=NOISE)
            outputs = networks.outputs(inputs)
            return networks.losses(outputs[:, : len(x)], y), outputs, prior_by_group(prior, inputs, outputs)

        sampler.step(closure)

    return step


def _svgd(networks: Networks, lr: float) -> Step:
    kernel = SeparateGroups(RBF(), networks.data.groups)
    settings: Any = {"kernel": kernel, "prior_precision": 1.0, "base_optimizer": torch.optim.Adam}
    sampler = SVGD(networks.everything, lr, networks.data.num_data, **settings)
    return lambda x, y: sampler.step(lambda: networks.energies(x, y))


def _ensemble(networks: Networks, lr: float, prior_precision: float = 1.0) -> Step:
    settings: Any = {"prior_precision": prior_precision, "base_optimizer": torch.optim.Adam}
    sampler = LinearScalarisation(networks.everything, lr, networks.data.num_data, **settings)
    return lambda x, y: sampler.step(lambda: networks.energies(x, y)[None])


def _sghmc(networks: Networks, lr: float) -> Step:
    sampler = SGHMC(networks.everything, lr, networks.data.num_data, prior_precision=1.0)

    def step(x: Tensor, y: Tensor) -> None:
        sampler.zero_grad()
        networks.energies(x, y).sum().backward()
        sampler.step()

    return step


def _hmc(data: Standardised, lr: float, protocol: Protocol) -> tuple[list[tuple[Tensor, Tensor]], float]:
    networks = Networks(data, protocol.hmc_chains, protocol.hidden)
    # Near a mode to start from: from the prior the first trajectories would only fall.
    batch, _ = protocol.budget(data.num_data)
    _minibatches(networks, _ensemble(networks, 1e-2), batch, protocol.hmc_warmup, set())
    settings: Any = {"leapfrog_steps": protocol.leapfrog_steps, "adapt_steps": protocol.hmc_burn_in}
    sampler = HMC(networks.everything, lr, data.num_data, prior_precision=1.0, **settings)

    def closure() -> Tensor:
        sampler.zero_grad()
        losses = networks.energies(data.train_x, data.train_y)
        losses.sum().backward()
        return losses.detach()

    states, burn_in = [], protocol.hmc_burn_in
    for count in progress(range(1, burn_in + protocol.hmc_trajectories + 1), unit="trajectory", leave=False):
        sampler.step(closure)
        if count > burn_in and (count - burn_in) % protocol.hmc_thinning == 0:
            states.append(networks.state())
    return states, sampler.acceptance_rate


#: A minibatch's step of a method: (networks, lr) → step. PlainEnsemble is the deep ensemble without prior.
STEPS: dict[str, Callable[[Networks, float], Step]] = {
    "FSVGD": _fsvgd,
    "SVGD": _svgd,
    "DeepEnsemble": _ensemble,
    "PlainEnsemble": partial(_ensemble, prior_precision=0.0),
    "SGHMC": _sghmc,
}
_ADAM = (4e-3, 1.6e-2, 6.4e-2)
#: Learning rates that are tried on validation rows, those of Adam around the paper's; HMC's step size adapts.
RATES = dict.fromkeys(STEPS, _ADAM) | {"SGHMC": (3e-3, 1e-2, 3e-2, 1e-1, 3e-1), "HMC": (1e-3,)}


def scores(fit: Fit, data: Standardised) -> tuple[Tensor, Tensor]:
    """RMSE of the mean prediction and mean log-density of the equally weighted mixture, (G,), in original units."""
    outputs, targets = fit.outputs.double(), data.test_y.T.double()
    rmse = (outputs.mean(1) - targets).square().mean(1).sqrt() * data.deviation
    variance = (2 * fit.log_noise.double()).exp()[:, :, None]
    mixture = mixture_log_density(outputs.transpose(0, 1), variance.transpose(0, 1), targets)
    return rmse, mixture.mean(1) - data.deviation.log()


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
    # Trajectories of each HMC chain after its adaptation, which is as long but at most 100.
    hmc_trajectories: int = 100
    folds: int = 2  # Folds of split 0's training part that choose the learning rates, 1 to 5.
    seed: int = 0  # Seed of weights, minibatches and noise.
    threads: int = 1  # CPU threads of torch.
    out: Path = Path("runs/uci")  # Folder of the runs, the table and the results.

    def __post_init__(self) -> None:
        at_least(1, self, "splits", "steps", "particles", "hmc_trajectories", "threads")
        if not 1 <= self.folds <= 5:
            raise ValueError(f"folds must lie in [1, 5], got {self.folds}")
        self.protocol()

    def protocol(self) -> Protocol:
        batch, steps = {"cpu": ((100, 100), 2000), "paper": ((100, 1000), 0)}[self.preset]
        steps = steps if self.steps is None else self.steps
        sizes: Any = {"small": (batch[0], steps, 500), "large": (batch[1], steps, 3000)}
        burn_in = min(Protocol.hmc_burn_in, self.hmc_trajectories)
        trajectories: Any = {"hmc_trajectories": self.hmc_trajectories, "hmc_burn_in": burn_in}
        return Protocol(particles=self.particles, **trajectories, **sizes)


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

    def seeds(self, problem: str) -> Sequence[int]:
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
        groups = len(self.rows(job)[1])
        return {"base_seed": self.options.seed, "groups": groups, "protocol": asdict(self.options.protocol())}

    def run(self, job: Job, store: Any) -> dict[str, Any]:
        rows = standardise(self.sets[job.problem], *self.rows(job))
        stream = self.options.seed * 10_000 + job.seed
        fitted = fit(job.method, rows, job.choice.lr, self.options.protocol(), stream)
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


def uci(options: UCI, command: str) -> Findings:
    """Run everything and write."""
    return carry_out(Regressions(options), options, command)
