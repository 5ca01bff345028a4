"""The particle samplers on two toy problems of MT-SGD's paper: mixtures that share a region, and a Pareto front."""

from __future__ import annotations

import math
import re
import textwrap
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.harness.figures import grid_lines, new_figure
from experiments.harness.options import RunOptions, at_least_one, not_negative, positive
from experiments.harness.output import counted, settings_of, write_outputs
from experiments.harness.run_store import RunStore
from experiments.harness.tables import markdown, spread
from learned_samplers import MOOSVGD, MTSGD
from learned_samplers.particles import MGDA, RBF, LinearScalarisation, ParetoMTL
from learned_samplers.particles.base import ParticleSampler
from meta_tasks.progress import progress

Maker = Callable[..., ParticleSampler]
_CODE: dict[str, Any] = {"target_weights": "gradients", "gradient_normalisation": "coordinate"}
_OTHERS: dict[str, Maker] = {
    "SVGD (equal weights)": partial(MTSGD, target_weights="equal"),
    "MOOSVGD, kernel on losses": MOOSVGD,
    "MOOSVGD, kernel on particles": partial(MOOSVGD, kernel_on="parameters"),
    "MGDA": MGDA,
    "LinearScalarisation": LinearScalarisation,
}
#: Name in the tables → what makes the sampler from parameters, lr and base optimizer.
METHODS: dict[str, Maker] = {"MTSGD, exact U": MTSGD, "MTSGD, code's rule": partial(MTSGD, **_CODE), **_OTHERS}
#: On a Pareto front MT-SGD is shown with settings that mend its collapse, and ParetoMTL is a further baseline; with
#: three targets it has no default preferences.
ON_A_FRONT: dict[str, Maker] = {
    "MTSGD, exact U": MTSGD,
    "MTSGD, exact U, scores normalised by particle": partial(MTSGD, gradient_normalisation="particle"),
    "MTSGD, exact U, bandwidth 10": partial(MTSGD, kernel=RBF(10.0)),
    "MTSGD, code's rule": partial(MTSGD, **_CODE),
    "MTSGD, code's rule, kernel on objectives": partial(MTSGD, **_CODE, kernel_on="features"),
    **_OTHERS,
    "ParetoMTL": ParetoMTL,
}

# ---------------------------------------------------------------- three mixtures

# Of two Gaussians each (Phan et al., NeurIPS 2022, §4.1.1): weights .7 and .3, covariance ½ I. The second component of
# each is near the origin, where all three targets are likely.
MEANS = torch.tensor([[[4.0, -4.0], [0.0, 0.5]], [[-4.0, 4.0], [0.5, 0.0]], [[-3.0, -3.0], [0.0, 0.0]]])
LOG_WEIGHTS = torch.tensor([0.7, 0.3]).log()
VARIANCE = 0.5
#: Particles within this distance of the centre of the common region count as being in it.
RADIUS = 2.2


def mixture_energies(x: Tensor) -> Tensor:
    """−log pₖ(x) of each target, (3, M), for points (M, 2)."""
    distances = (x - MEANS[:, :, None]).square().sum(-1)
    normalised = LOG_WEIGHTS[None, :, None] - distances / (2 * VARIANCE) - math.log(2 * math.pi * VARIANCE)
    return -torch.logsumexp(normalised, dim=1)


def share_in_common_region(x: Tensor) -> float:
    """Share of the particles within `RADIUS` of the mean of the three near components."""
    return (x.detach() - MEANS[:, 1].mean(0)).norm(dim=1).lt(RADIUS).double().mean().item()


# ---------------------------------------------------------------- ZDT3

#: The segments of f₁ that make up its Pareto front.
SEGMENTS = ((0.0, 0.0830), (0.1822, 0.2578), (0.4093, 0.4539), (0.6184, 0.6525), (0.8233, 0.8518))
#: Number of variables, and the point beyond which nothing counts for the hypervolume.
DIMENSIONS, REFERENCE = 30, (1.1, 1.1)
#: f₁ is kept this far from zero, where its gradient is infinite.
LEAST = 1e-6


class _InsideBox(torch.autograd.Function):
    """The identity; its gradient has no component along which descent would leave [0, 1]."""

    @staticmethod
    def forward(x: Tensor, low: float) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, low = inputs
        ctx.save_for_backward((x <= low), (x >= 1))

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        at_low, at_high = ctx.saved_tensors
        grad = upstream[0]
        return torch.where((at_low & (grad > 0)) | (at_high & (grad < 0)), 0.0, grad), None


def zdt3(x: Tensor, *, projected: bool = True) -> Tensor:
    """Both objectives, (2, M), for points (M, 30) of the unit box.

    With ``projected`` the gradients keep inside the box: without that, multiple gradient descent weighs components that
    cannot be followed, and every particle slides to the first segment.
    """
    if projected:
        x = _InsideBox.apply(x, LEAST)
    first = x[:, 0]
    g = 1 + 9 * x[:, 1:].mean(1)
    ratio = first / g
    return torch.stack([first, g * (1 - ratio.sqrt() - ratio * torch.sin(10 * math.pi * first))])


def zdt3_front(points: int = 400) -> list[Tensor]:
    """The Pareto front, one (points, 2) a segment."""
    front = []
    for low, high in SEGMENTS:
        first = torch.linspace(low, high, points, dtype=torch.double)
        front.append(torch.stack([first, 1 - first.sqrt() - first * torch.sin(10 * math.pi * first)], dim=1))
    return front


def hypervolume(points: Tensor, reference: tuple[float, float] = REFERENCE) -> float:
    """Area that points (n, 2) dominate below ``reference``, both objectives to be minimised."""
    best, area = reference[1], 0.0
    for first, second in sorted(points.double().tolist()):
        if first < reference[0] and second < best:
            area += (reference[0] - first) * (best - second)
            best = second
    return area


def segments_reached(points: Tensor, tolerance: float = 0.05) -> list[int]:
    """Number of points within ``tolerance`` of each segment of the front, nearest segment first."""
    distances = torch.stack([torch.cdist(points.double(), segment).amin(1) for segment in zdt3_front()])
    nearest = distances.argmin(0)
    return [int(((nearest == s) & (distances[s] < tolerance)).sum()) for s in range(len(SEGMENTS))]


# ---------------------------------------------------------------- the runs


@dataclass(frozen=True)
class Mixtures(RunOptions):
    """Three mixtures of two Gaussians that share a region (Figure 3 of MT-SGD): who finds it, and how fast."""

    # Steps of Adam.
    steps: int = 1000
    # Learning rate of Adam.
    lr: float = 3e-2
    # Weight of the repulsion.
    temperature: float = 1.0
    # Number of particles.
    particles: int = 50
    # Number of starting points, counted up from --seed; all methods have the same.
    seeds: int = 5
    # Folder for the results.
    out: Path = Path("runs/toy_mixtures")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "steps", "particles")
        positive(self, "lr")
        not_negative(self, "temperature")

    @property
    def methods(self) -> dict[str, Maker]:
        return METHODS

    @property
    def kept(self) -> tuple[int, ...]:
        """Steps whose particles the figure shows."""
        return (0, self.steps // 4, self.steps // 2, self.steps)

    def start(self, seed: int) -> Tensor:
        """5·N(0, I), clamped to ±10."""
        generator = torch.Generator().manual_seed(seed)
        return (5 * torch.randn(self.particles, 2, generator=generator)).clamp(-10, 10)

    def energies(self, x: Tensor) -> Tensor:
        return mixture_energies(x)

    def after(self, x: Tensor) -> None:
        """What happens to the particles after each step."""

    def scores(self, x: Tensor) -> dict[str, float]:
        away = x - x.mean(0)
        return {"share": share_in_common_region(x), "spread": away.square().sum(1).mean().sqrt().item()}

    def row(self, runs: list[dict[str, Any]]) -> dict[str, str]:
        columns = {"in the common region": "share", "RMS distance from their mean": "spread"}
        return {title: spread([run[key] for run in runs], 2) for title, key in columns.items()}


@dataclass(frozen=True)
class ZDT3(Mixtures):
    """ZDT3, 30 variables in the unit box (Figure 4 of MT-SGD): hypervolume and segments of the front."""

    # Steps of Adam.
    steps: int = 10_000
    # Learning rate of Adam.
    lr: float = 1e-3
    # Weight of the repulsion: at 1 it scatters particles over the box, in which the objectives differ by about 1.
    temperature: float = 1e-2
    # Number of starting points, counted up from --seed; all methods have the same.
    seeds: int = 3
    # Keep gradients that point out of the box; the particles are still clamped to it.
    unprojected: bool = False
    # Folder for the results.
    out: Path = Path("runs/toy_zdt3")

    @property
    def methods(self) -> dict[str, Maker]:
        return ON_A_FRONT

    @property
    def kept(self) -> tuple[int, ...]:
        return (0, self.steps)

    def start(self, seed: int) -> Tensor:
        """Uniform in the box."""
        generator = torch.Generator().manual_seed(seed)
        return torch.rand(self.particles, DIMENSIONS, generator=generator).clamp_min(LEAST)

    def energies(self, x: Tensor) -> Tensor:
        return zdt3(x, projected=not self.unprojected)

    @torch.no_grad()
    def after(self, x: Tensor) -> None:
        x.clamp_(LEAST, 1)

    def scores(self, x: Tensor) -> dict[str, float]:
        points = zdt3(x).T
        reached = {f"segment {i + 1}": n for i, n in enumerate(segments_reached(points))}
        return {"hypervolume": hypervolume(points), **reached}

    def row(self, runs: list[dict[str, Any]]) -> dict[str, str]:
        numbers = [[run[f"segment {i + 1}"] for run in runs] for i in range(len(SEGMENTS))]
        reached = " ".join(spread(each, 1, with_std=False) for each in numbers)
        return {
            f"hypervolume (of the front {hypervolume(torch.cat(zdt3_front())):.3f})": spread(
                [run["hypervolume"] for run in runs], 3
            ),
            "particles at each segment": reached,
        }


def run(make: Maker, options: Mixtures, seed: int) -> dict[str, Any]:
    """Scores and seconds of one method from one starting point, and where its particles were at the kept steps."""
    x = options.start(seed).requires_grad_()
    sampler = make([x], options.lr, base_optimizer=torch.optim.Adam)
    if "temperature" in sampler.param_groups[0]:
        sampler.param_groups[0]["temperature"] = options.temperature
    snapshots = {0: x.detach().tolist()}

    def losses() -> Tensor | tuple[Tensor, Tensor]:
        values = options.energies(x)
        # The features on which a kernel may act are the objectives.
        return (values, values.T) if getattr(sampler, "kernel_on", None) == "features" else values

    start = time.perf_counter()
    for step in range(1, options.steps + 1):
        sampler.step(losses)
        options.after(x)
        if step in options.kept:
            snapshots[step] = x.detach().tolist()
    return {"seconds": time.perf_counter() - start, **options.scores(x.detach()), "snapshots": snapshots}


def compare(options: Mixtures, command: str) -> None:
    """Run every method from every starting point, and write table, figure and numbers."""
    torch.set_num_threads(options.threads)
    about = ("seed", "seeds", "threads", "out", "fresh")
    settings = {f.name: getattr(options, f.name) for f in fields(options) if f.name not in about}
    store = RunStore(options.out, fresh=options.fresh)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in options.methods}
    with progress(total=len(found) * options.seeds) as bar:
        # Seed by seed, so that what else the machine does meets every method alike.
        for seed in options.seed_list():
            for name, make in options.methods.items():
                bar.set_description(f"{name}, seed {seed}")
                stem = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")
                of = {"method": name, "seed": seed, **settings}
                done = store.run(f"{stem}_seed{seed}", of, partial(run, make, options, seed))
                found[name].append({"seed": seed, **done})
                bar.update()
    seconds = f"seconds for {options.steps:,} steps"
    table = [
        {"method": name, **options.row(runs), seconds: spread([r["seconds"] for r in runs], 1)}
        for name, runs in found.items()
    ]
    first = {name: {int(k): torch.tensor(x) for k, x in runs[0]["snapshots"].items()} for name, runs in found.items()}
    (panels_figure if isinstance(options, ZDT3) else rows_figure)(options.out / "figure.png", first)
    numbers = {name: [{k: v for k, v in r.items() if k != "snapshots"} for r in runs] for name, runs in found.items()}
    text = f"{markdown(table)}\n\nmean ± standard deviation over {counted(options.seeds, 'starting point')}"
    write_outputs(options.out, command, text, {"settings": settings_of(options), "methods": numbers})
    print(f"\n{text}\nwritten to {options.out}")


# ---------------------------------------------------------------- figures

#: Method → step → particles.
Snapshots = Mapping[str, Mapping[int, Tensor]]
_DOTS: dict[str, Any] = {"color": "#D55E00", "markersize": 5, "markeredgecolor": "white", "mew": 0.4}


def rows_figure(path: Path, snapshots: Snapshots) -> None:
    """Mixtures: a row a method, a column a step."""
    steps = list(next(iter(snapshots.values())))
    fig = new_figure(2.3 * len(steps) + 0.6, 2.3 * len(snapshots) + 0.5)
    axes = fig.subplots(len(snapshots), len(steps), sharex=True, sharey=True, squeeze=False)
    grid = torch.linspace(-7, 7, 141)
    x, y = torch.meshgrid(grid, grid, indexing="xy")
    densities = (-mixture_energies(torch.stack([x.flatten(), y.flatten()], dim=1))).exp()
    for row, (name, taken) in zip(axes, snapshots.items(), strict=True):
        row[0].set_ylabel(name.replace(", ", ",\n") + "\n\nx₂")
        for ax, step in zip(row, steps, strict=True):
            for density, colour in zip(densities, ("Blues", "Greens", "Purples"), strict=True):
                ax.contour(x, y, density.view_as(x), levels=4, cmap=colour, linewidths=0.8, vmin=-0.05)
            ax.plot(*taken[step].T, ".", **_DOTS)
            ax.set(xlim=(-7, 7), ylim=(-7, 7), aspect="equal")
    for ax, step in zip(axes[0], steps, strict=True):
        ax.set_title(f"step {step:,}")
    for ax in axes[-1]:
        ax.set_xlabel("x₁")
    fig.savefig(path, dpi=100)


def panels_figure(path: Path, snapshots: Snapshots) -> None:
    """ZDT3: where the particles start, and a panel a method, where they are after the last step."""
    first = next(iter(snapshots.values()))
    panels = {"start": first[0]} | {name: taken[max(first)] for name, taken in snapshots.items()}
    columns = min(4, len(panels))
    rows = -(-len(panels) // columns)
    fig = new_figure(2.6 * columns + 0.3, 2.5 * rows + 0.2)
    axes = fig.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flatten()
    for ax, (name, x) in zip(axes, panels.items()):
        for segment in zdt3_front():
            ax.plot(segment[:, 0], segment[:, 1], color="#0072B2", linewidth=2)
        grid_lines(ax)
        ax.plot(*zdt3(x), ".", **_DOTS)
        ax.set(xlim=(-0.05, 1.05), ylim=(-1, 6), xlabel="f₁", ylabel="f₂")
        ax.set_title(textwrap.fill(name, 28), fontsize="medium")
    for ax in axes[len(panels) :]:
        ax.remove()
    fig.savefig(path, dpi=100)
