"""A sampler's variance against that of a Gaussian posterior, over step sizes: a figure for every sampler's page."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.harness.figures import new_figure
from experiments.harness.options import OutputOptions, at_least
from experiments.harness.run_store import RunStore
from experiments.harness.study import Experiment, Findings, Job, Stores
from experiments.harness.tables import markdown
from learned_samplers.checks.linear import read_linear_step
from learned_samplers.checks.simulation import Simulation
from learned_samplers.classical.adapted import adapted_rule
from learned_samplers.plots import PALETTE
from learned_samplers.table import SAMPLERS

NUM_DATA, LR, DECAY = 100, 0.1, 0.1
#: h = lr/N: SGLD's step size in the energy. A Gaussian of curvature k has the dimensionless step size x = hk.
H = LR / NUM_DATA
#: Variance of the minibatches' noise on ∇U, that which heats SGLD by 2 %: hV/2T = 0.02.
NOISE = 0.02 * 2 / H
#: EntropyMCMC's η, ten times h.
GUIDE_VARIANCE = 10 * H
_RANGE = (0.02, 4.2)
_SEEN = (0.018, 4.5)  # marks at the ends of the range are seen whole
_SHOWN = (0.05, 0.2, 0.5, 1.0)
_GRID = sorted(
    {*torch.logspace(math.log10(_RANGE[0]), math.log10(_RANGE[1]), 40, dtype=torch.double).tolist(), *_SHOWN}
)
_SIMULATED = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
CYCLE = 200  # steps of CyclicalSGMCMC, of which the last fifth are samples
_MIXED = 12  # directions of a chain of MCLMC

Make = Callable[[list[Tensor]], Any]
#: Step size x, relative error of the variance, and its standard error (0 where it is exact).
Point = tuple[float, float, float]


@dataclass(frozen=True)
class Bias(OutputOptions):
    """Bias of every hand-designed sampler's variance against its step size: a figure each, for its page."""

    samplers: tuple[str, ...] = ()  # Samplers; none stands for all.
    coordinates: int = 5_000  # Independent coordinates (or chains) of a simulation, where a step is not linear.
    seed: int = 0  # Seed of the simulations.
    out: Path = Path("runs/bias")  # Folder for the figures and the table.

    def __post_init__(self) -> None:
        at_least(1, self, "coordinates")
        for name in self.samplers:
            if name not in CURVES:
                raise ValueError(f"samplers must be of {', '.join(CURVES)}, got {name!r}")


def exact(make: Make, options: Bias, *, noise: float = 0.0, gain: float = 1.0, guide: bool = False) -> list[Point]:
    """Curve of a linear step by the discrete Lyapunov equation, as `check_sampler` has it, until the step is unstable.

    ``noise`` is V, the variance of the minibatches' noise on ∇U; ``gain`` the step size of the coordinates in units of
    h; ``guide`` asks for the law of `EntropyMCMC`'s guide, whose variance is to be T/k + ηT.
    """

    def bias(x: float) -> float:
        k = x / (gain * H)
        step = read_linear_step(make, k / NUM_DATA, math.sqrt(noise) / NUM_DATA)
        if step is None:
            raise ValueError(f"the step of {make} is not linear")
        i = step.names.index("guide") if guide else 0
        return float(step.stationary_covariance()[i, i]) / (1 / k + GUIDE_VARIANCE * guide) - 1

    points: list[Point] = []
    for x in _GRID:
        error = bias(x)
        if not math.isfinite(error):
            return points + _up_to_the_limit(bias, points[-1][0], x)
        points.append((x, error, 0.0))
    return points


def _up_to_the_limit(bias: Callable[[float], float], stable: float, unstable: float) -> list[Point]:
    """Stable points between two of the grid, each halfway to the limit, the last within a thousandth of it."""
    points: list[Point] = []
    while unstable - stable > 1e-3 * unstable:
        x = (stable + unstable) / 2
        error = bias(x)
        if math.isfinite(error):
            stable = x
            points.append((x, error, 0.0))
        else:
            unstable = x
    return points


def simulated(
    make: Make,
    options: Bias,
    *,
    noise: float = 0.0,
    spectrum: int = 1,
    curvature: Callable[[float], float] = lambda x: x / H,
    per_chain: bool = False,
    steps: float = 10.0,
    least: int = 200,
) -> list[Point]:
    """Curve from exact draws on, ``steps`` relaxation times 1/x of burn-in and as many measured ones, ``least`` steps.

    A chain has ``spectrum`` directions, of curvatures from a tenth of the largest up, evenly on a log scale; reported
    is the stiffest, whose ``curvature`` is a function of x. ``per_chain``: coordinates are chains with losses each.
    """
    points: list[Point] = []
    for x in _SIMULATED:
        k = curvature(x)
        curvatures = [k * 10 ** (-i / max(1, spectrum - 1)) for i in reversed(range(spectrum))]
        targets = [1 / c for c in curvatures]
        push, shape = math.sqrt(noise) / NUM_DATA, (options.coordinates,)
        run = Simulation(make, curvatures, targets, NUM_DATA, 1.0, push, shape, per_chain, torch.float32, options.seed)
        end = run(max(least, math.ceil(steps / x)), 1.0, None)[-1]
        if math.isfinite(end["measured_variance"]):
            points.append((x, end["measured_variance"] * k - 1, end["standard_error"] * k))
    return points


def measured(make: Make, options: Bias, *, noise: float = 0.0) -> list[Point]:
    """Curve of a sampler: exact if its step is linear, else simulated."""
    linear = read_linear_step(make, 1.0 / NUM_DATA, 0.0) is not None
    return (exact if linear else simulated)(make, options, noise=noise)


def cyclical(make: Make, options: Bias, *, noise: float = 0.0) -> list[Point]:
    """Curve of the sampling steps of four cycles after a first one, which checks of a fixed step size cannot see."""
    points: list[Point] = []
    for x in _SIMULATED:
        k = x / H
        torch.manual_seed(options.seed)
        theta = (torch.randn(options.coordinates) / math.sqrt(k)).requires_grad_()
        sampler = make([theta])
        total, count = torch.zeros(options.coordinates), 0
        for step in range(5 * CYCLE):
            push = math.sqrt(noise) / NUM_DATA * torch.randn_like(theta) if noise else 0.0
            theta.grad = theta.detach() * (k / NUM_DATA) + push
            sampler.step()
            if step >= CYCLE and sampler.is_sampling:
                total, count = total + theta.detach().square() * k, count + 1
        mean = total / count
        points.append((x, float(mean.mean()) - 1, float(mean.std()) / math.sqrt(len(mean))))
    return points


class _Frozen(torch.optim.Optimizer):
    """`AdaptedSGHMC` with a mass that is constant, and so no part of the state: its rule, with G = a."""

    def __init__(self, params: list[Tensor]):
        super().__init__(params, {"lr": LR})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        if closure is not None:
            closure()
        for group in self.param_groups:
            for p in group["params"]:
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                root = torch.full_like(p, math.sqrt(DECAY))
                hyper: dict[str, Any] = {
                    "lr": group["lr"],
                    "num_data": NUM_DATA,
                    "temperature": 1.0,
                    "momentum_decay": DECAY,
                    "prior_precision": 0.0,
                }
                noise = torch.randn_like(p)
                *moved, _ = adapted_rule(p, p.grad, noise, momentum, root, **hyper)
                for before, after in zip((p, momentum), moved, strict=True):
                    before.copy_(after)


def maker(name: str, **settings: Any) -> Make:
    return lambda params: SAMPLERS[name](params, LR, NUM_DATA, **settings)


def _both(curve: Callable[..., list[Point]], make: Make, **how: Any) -> dict[str, Callable[[Bias], list[Point]]]:
    """Full gradients, and minibatches."""
    return {"full gradients": partial(curve, make, **how), "minibatches": partial(curve, make, noise=NOISE, **how)}


def _psgld_curvature(x: float) -> float:
    """Curvature at a step size: that of PSGLD is x = lr·G·k/N with G = 1/RMS(ĝ) = N/√(kT) at the posterior."""
    return (x / LR) ** 2


_GUIDED = maker("EntropyMCMC", guide_variance=GUIDE_VARIANCE)
_MASS = partial(exact, _Frozen, gain=DECAY)
_CHAIN: dict[str, Any] = {"spectrum": _MIXED, "per_chain": True, "steps": 6.0}
#: Sampler → its curves, by their labels; those that claim a law and are not here have the usual two.
CURVES: dict[str, dict[str, Callable[[Bias], list[Point]]]] = {
    "AdaptedSGHMC": {"full gradients": _MASS, "minibatches": partial(_MASS, noise=NOISE / DECAY)},
    "CyclicalSGMCMC": _both(cyclical, maker("CyclicalSGMCMC", cycle_length=CYCLE, exploration_ratio=0.8)),
    # Its preconditioner remembers 100 steps.
    "PSGLD": {"without Γ": partial(simulated, maker("PSGLD"), curvature=_psgld_curvature, least=1000)},
    "HMC": {"full gradients": partial(simulated, maker("HMC", leapfrog_steps=5), per_chain=True)},
    "MCLMC": {"stiffest of 12 directions": partial(simulated, maker("MCLMC"), **_CHAIN)},
    "EntropyMCMC": {
        "weights, full gradients": partial(exact, _GUIDED),
        "weights, minibatches": partial(exact, _GUIDED, noise=NOISE),
        "guide, full gradients": partial(exact, _GUIDED, guide=True),
    },
}
CURVES |= {
    name: _both(measured, maker(name))
    for name, entry in SAMPLERS.items()
    if name not in CURVES and not entry.is_learned and entry.law != "heuristic"
}


def figure(curves: dict[str, list[Point]], *, dark: bool) -> Any:
    """Bias in per cent against x; lines are exact, points are measured, with two standard errors."""
    ground, ink, pale = ("#1e2129", "#e6e6e6", "0.35") if dark else ("white", "black", "0.9")
    colours = ("#56B4E9", "#FF9F4A", "#4CD3A6") if dark else PALETTE[:3]
    fig = new_figure(5.4, 3.0)
    fig.set_facecolor(ground)
    ax = fig.add_subplot()
    ax.axhline(0, color=ink, linewidth=0.8)
    for (label, points), colour, mark, dash in zip(curves.items(), colours, "os^", ("-", "--", "-."), strict=False):
        x, bias, error = zip(*points, strict=True)
        percent = [100 * value for value in bias]
        if any(error):
            bars = [200 * value for value in error]
            ax.errorbar(x, percent, yerr=bars, fmt=mark + dash, color=colour, label=label, markersize=4, linewidth=1.2)
        else:
            ax.plot(x, percent, dash, color=colour, label=label, linewidth=2)
            if x[-1] < _GRID[-1]:
                ax.axvline(x[-1], color=colour, linestyle=":", linewidth=1)
    ax.set(xscale="log", xlim=_SEEN, ylim=(-100, 1000), facecolor=ground)
    ax.set_yscale("symlog", linthresh=1, linscale=0.5)
    ticks = (-100, -10, -1, 0, 1, 10, 100, 1000)
    ax.set_yticks(ticks, [f"{t:+d} %".replace("-", "−") if t else "0" for t in ticks])
    ax.set_xticks([0.02, 0.1, 0.5, 1, 2, 4], ["0.02", "0.1", "0.5", "1", "2", "4"])
    ax.minorticks_off()
    ax.set_xlabel("step size x", color=ink)
    ax.set_ylabel("bias of the variance", color=ink)
    ax.tick_params(colors=ink)
    ax.grid(color=pale, linewidth=0.8)
    ax.set_axisbelow(True)
    for spine in ax.spines.values():
        spine.set_color(ink)
    ax.legend(frameon=False, labelcolor=ink, loc="upper left", fontsize=9)
    return fig


class Biases(Experiment):
    """Every sampler once; its run is its curves."""

    def problems(self) -> Sequence[str]:
        return ("bias",)

    def methods(self, problem: str) -> Sequence[str]:
        return self.options.samplers or tuple(CURVES)

    def seeds(self, problem: str, method: str) -> Sequence[int]:
        return (self.options.seed,)

    def made_of(self, job: Job) -> dict[str, Any]:
        return {"coordinates": self.options.coordinates}

    def run(self, job: Job, store: RunStore) -> dict[str, Any]:
        return {"curves": {label: measure(self.options) for label, measure in CURVES[job.method].items()}}

    def report(self, findings: Findings) -> str:
        rows = []
        for name, (run,) in findings.runs["bias"].items():
            for label, points in run["curves"].items():
                at = {x: (bias, error) for x, bias, error in points}
                rows.append({"sampler": name, "curve": label} | {f"x = {x:g}": _cell(at.get(x)) for x in _SHOWN})
        return markdown(rows)

    def figure(self, path: Path, findings: Findings, store: Stores) -> None:
        """Draw NAME_light.png and NAME_dark.png of each sampler."""
        for name, (run,) in findings.runs["bias"].items():
            for theme in ("light", "dark"):
                fig = figure(run["curves"], dark=theme == "dark")
                fig.savefig(path.parent / f"{name}_{theme}.png", dpi=120, facecolor=fig.get_facecolor())


def _cell(point: tuple[float, float] | None) -> str:
    if point is None:
        return "unstable"
    bias, error = point
    return f"{100 * bias:+.2f} %" + (f" ± {100 * error:.2f} %" if error else "")
