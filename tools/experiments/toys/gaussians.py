"""Meta-SGMCMC, SGLD and SGHMC on correlated Gaussians: tuning, runs, scores and figure."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from experiments.harness.figures import new_figure
from experiments.harness.options import at_least_one, not_negative
from experiments.harness.output import settings_of, write_outputs
from experiments.harness.tables import markdown
from learned_samplers.learned import weights
from learned_samplers.learned.network import flatten, layers_of
from learned_samplers.plots import PALETTE
from meta_tasks.random_streams import derive_seed, generator
from meta_tasks.rules.base import Hyperparameters, MemberStep, SamplerRule
from meta_tasks.rules.classical import SGHMCRule
from meta_tasks.rules.learned import MetaSGMCMCRule, rule_from_card
from meta_tasks.tasks.gaussians import GaussianFamily, GaussianTask

LRS = (0.02, 0.05, 0.1, 0.2, 0.5)
DECAYS = (0.1, 0.2, 0.3, 0.5, 0.7)


@dataclass(frozen=True)
class Options:
    """Meta-SGMCMC against SGLD and SGHMC on correlated Gaussians with gradient noise."""

    # The learned sampler's weights: a path or the name of shipped ones.
    network: str
    # Dimension of the posteriors.
    dimension: int = 10
    # Largest b, where the gradient noise has variance b·N.
    noise: float = 0.5
    # Steps of a run, of one gradient each.
    steps: int = 200
    # Parallel chains of a task; the KL is computed from their states.
    chains: int = 1000
    # Number of tasks to tune the baselines on, and of other tasks to test on.
    tasks: int = 5
    # Folder for the results.
    out: Path = Path("runs/gaussians")

    def __post_init__(self) -> None:
        at_least_one(self, "dimension", "steps", "tasks")
        not_negative(self, "noise")
        if self.chains <= self.dimension:
            raise ValueError(f"chains must exceed dimension={self.dimension}, got {self.chains}")


@dataclass(frozen=True)
class Sampler:
    """A rule with its meta-parameters and settings."""

    label: str
    rule: SamplerRule
    lr: float
    momentum_decay: float
    weights: Tensor | None = None


def run(sampler: Sampler, task: GaussianTask, options: Options, label: int) -> tuple[list[float], Tensor]:
    """KL of the chains' states after each step, and the states after a tenth of the steps, (C, d)."""
    stream = generator("gaussians", label)
    count, d = options.chains, len(task.mean)
    hyper = Hyperparameters(sampler.lr, task.hyperparameters.num_data, momentum_decay=sampler.momentum_decay)
    parameter = torch.stack([task.initial(derive_seed("start", label, chain)) for chain in range(count)])
    state = sampler.rule.initial_state(parameter, task.segments)
    own = torch.zeros(1, 0) if sampler.weights is None else sampler.weights
    prepared, curve, early = sampler.rule.prepare(own), [], parameter.clone()
    for step in range(options.steps):
        indices = torch.randint(int(hyper.num_data), (count, 1), generator=stream)
        loss, gradient = task.loss_and_gradient(parameter, indices)
        noise = torch.randn(count, d, generator=stream)
        at = MemberStep(parameter, gradient, noise, state, task.segments, hyper, step, loss)
        parameter, state = sampler.rule.update(prepared, at)
        if step + 1 == max(1, options.steps // 10):
            early = parameter.clone()  # rules may move it in place
        curve.append(task.divergence(parameter) if bool(parameter.isfinite().all()) else float("inf"))
    return curve, early


def scores(curves: list[list[float]]) -> dict[str, float]:
    """Mean KL over tasks: geometric over all steps, that at a third of them, and that of the last fifth."""
    values = torch.tensor(curves, dtype=torch.float64)
    steps = values.shape[1]
    return {
        "log": values.log().mean().item(),
        "third": values[:, max(1, steps // 3) - 1].mean().item(),
        "last": values[:, -steps // 5 :].mean().item(),
    }


def tuned(label: str, decays: tuple[float, ...], tasks: list[GaussianTask], options: Options) -> Sampler:
    """The best of the grid on these tasks, by the geometric mean of the KL over steps and tasks."""
    found = {}
    for lr, decay in itertools.product(LRS, decays):
        candidate = Sampler(label, SGHMCRule(), lr, decay)
        found[candidate] = scores([run(candidate, task, options, i)[0] for i, task in enumerate(tasks)])["log"]
    return min(found, key=lambda each: found[each] if found[each] == found[each] else float("inf"))


def learned(options: Options) -> Sampler:
    """The sampler of a weight file of Meta-SGMCMC.

    Raises:
        ValueError, FileNotFoundError: it is no such file.
    """
    network, card = weights.load(weights.find(options.network))
    if card["sampler"] != MetaSGMCMCRule.name:
        raise ValueError(f"network={options.network!r} is of {card['sampler']}, not of MetaSGMCMC")
    missing = {"lr", "momentum_decay"} - card["defaults"].keys()
    if missing:
        raise ValueError(
            f"network={options.network!r} has no {' and no '.join(sorted(missing))} in its card's defaults"
        )
    lr, decay = card["defaults"]["lr"], card["defaults"]["momentum_decay"]
    return Sampler("Meta-SGMCMC", rule_from_card(card), lr, decay, flatten(layers_of(network)).detach())


def exact(tasks: list[GaussianTask], options: Options) -> float:
    """Mean KL of as many exact draws, which is not zero: moments of a finite number of states."""
    values = []
    for i, task in enumerate(tasks):
        noise = torch.randn(options.chains, len(task.mean), generator=generator("exact", i))
        values.append(task.divergence(task.mean + noise @ torch.linalg.cholesky(task.covariance).T))
    return sum(values) / len(values)


def tilted(noise: float) -> GaussianTask:
    """A strongly correlated posterior in the plane, away from the initial states."""
    precision = torch.tensor([[1.65, -1.35], [-1.35, 1.65]])  # eigenvalues .3 and 3
    return GaussianTask(torch.tensor([0.04, -0.02]), precision, Hyperparameters(num_data=10_000), noise=noise)


def figure(
    path: Path,
    plane: GaussianTask,
    states: dict[str, Tensor],
    curves: dict[str, list[list[float]]],
    floor: float,
    early: int,
) -> None:
    fig = new_figure(3.1 * len(states) + 4.6, 3.3)
    axes = fig.subplots(1, len(states) + 1, width_ratios=[1.0] * len(states) + [1.5])
    width = 4 * plane.covariance.diagonal().max().sqrt().item()
    x, y = torch.meshgrid(torch.linspace(-1, 1, 101) * width, torch.linspace(-1, 1, 101) * width, indexing="xy")
    grid = torch.stack([x.flatten(), y.flatten()], 1)
    energy = 0.5 * plane.hyperparameters.num_data * (grid @ plane.precision * grid).sum(1).view_as(x)
    for ax, (label, points) in zip(axes, states.items(), strict=False):
        ax.contour(x.numpy(), y.numpy(), energy.numpy(), levels=[0.5, 2.0, 4.5], colors="0.45", linewidths=0.9)
        away = (points - plane.mean).numpy()
        ax.plot(away[:, 0], away[:, 1], ".", color=PALETTE[1], markersize=3, alpha=0.6, mew=0)
        ax.plot(*-plane.mean.numpy(), "x", color=PALETTE[0])
        ax.set(
            title=f"{label}, step {early}",
            xlim=(-width, width),
            ylim=(-width, width),
            xticks=[],
            yticks=[],
            aspect="equal",
        )
    for (label, values), color, dash in zip(curves.items(), PALETTE, ("-", "--", "-."), strict=False):
        lines = torch.tensor(values)
        axes[-1].plot(range(1, lines.shape[1] + 1), lines.mean(0).numpy(), color=color, linestyle=dash, label=label)
    axes[-1].axhline(floor, color="0.4", linestyle=":", label="exact draws")
    axes[-1].set(xlabel="steps (one gradient each)", ylabel="KL from the chains' moments (nats)", yscale="log")
    axes[-1].grid(True, color="0.9", linewidth=0.8)
    axes[-1].legend(frameon=False)
    fig.savefig(path, dpi=110)


def row(sampler: Sampler, own: dict[str, float], won: int, third: int) -> dict[str, str]:
    """Of the table; `won` tasks on which its mean log KL is below SGHMC's."""
    return {
        "sampler": sampler.label,
        "lr, a": f"{sampler.lr:g}, {sampler.momentum_decay:g}",
        "geometric mean KL": f"{math.exp(own['log']):.3f}",
        f"KL after {third}": f"{own['third']:.3f}",
        "KL in the last fifth": f"{own['last']:.3f}",
        "tasks won": str(won),
    }


@torch.no_grad()
def write(options: Options, meta: Sampler, command: str) -> str:
    """Tune the baselines, run all three on other tasks, write table, numbers and both figures; returns the table."""
    family = GaussianFamily(dimensions=(options.dimension,), noise=options.noise, correlated=True)
    other = [family.task("tuning", i) for i in range(options.tasks)]
    test = [family.task("test", i) for i in range(options.tasks)]
    samplers = [tuned("SGLD", (1.0,), other, options), tuned("SGHMC", DECAYS, other, options), meta]
    curves = {s.label: [run(s, task, options, i)[0] for i, task in enumerate(test)] for s in samplers}
    plane = tilted(options.noise)
    states = {s.label: run(s, plane, options, 0)[1] for s in samplers}
    results = {s.label: scores(curves[s.label]) for s in samplers}
    logs = {s.label: torch.tensor(curves[s.label], dtype=torch.float64).log().mean(1) for s in samplers}
    won = {label: int((each < logs["SGHMC"]).sum()) for label, each in logs.items()}
    rows = [row(s, results[s.label], won[s.label], options.steps // 3) for s in samplers]
    floor = exact(test, options)
    rows.append(dict.fromkeys(rows[0], "") | {"sampler": "exact draws", "KL in the last fifth": f"{floor:.3f}"})
    options.out.mkdir(parents=True, exist_ok=True)
    figure(options.out / "figure.png", plane, states, curves, floor, max(1, options.steps // 10))
    assert meta.weights is not None
    meta.rule.figures(meta.weights)["contours"].savefig(options.out / "contours.png", dpi=110)
    table = markdown(rows)
    finite = {name: {k: v if math.isfinite(v) else None for k, v in each.items()} for name, each in results.items()}
    write_outputs(options.out, command, table, {"settings": settings_of(options), "scores": finite})
    return table
