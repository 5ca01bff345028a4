"""The runs of `toy.py`: every particle sampler on a toy problem, from several starting points."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.harness.options import RunOptions, at_least_one, not_negative, positive
from experiments.harness.output import counted, settings_of, write_outputs
from experiments.harness.run_store import RunStore
from experiments.harness.tables import markdown, spread
from experiments.toys.figures import panels_figure, rows_figure
from experiments.toys.methods import METHODS, ON_A_FRONT, Maker
from experiments.toys.problems import (
    REFERENCE,
    SEGMENTS,
    hypervolume,
    into_box,
    mixture_energies,
    mixture_start,
    segments_reached,
    share_in_common_region,
    zdt3,
    zdt3_front,
    zdt3_start,
)
from meta_tasks.progress import progress


@dataclass(frozen=True)
class ToyOptions(RunOptions):
    """What both toy problems share; a seed is a starting point, the same for all methods."""

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


@dataclass(frozen=True)
class Mixtures(ToyOptions):
    """Three mixtures of two Gaussians that share a region (Figure 3 of MT-SGD): who finds it, and how fast."""


@dataclass(frozen=True)
class ZDT3(ToyOptions):
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


@dataclass
class Run:
    """One method from one starting point."""

    seed: int
    seconds: float
    scores: dict[str, float]
    #: Step → particles, for the figure.
    snapshots: dict[int, Tensor]


def run(
    make: Maker,
    x: Tensor,
    closure: Callable[[Tensor], Tensor],
    options: ToyOptions,
    *,
    keep: Sequence[int],
    after: Callable[[Tensor], None] | None = None,
) -> tuple[float, dict[int, Tensor]]:
    """Seconds of all steps, and the particles after some of them."""
    sampler = make([x], options.lr, base_optimizer=torch.optim.Adam)
    # Those without a repulsion are at temperature 0.
    if sampler.param_groups[0]["temperature"]:
        sampler.param_groups[0]["temperature"] = options.temperature
    snapshots = {0: x.detach().clone()}
    start = time.perf_counter()

    def losses() -> Tensor | tuple[Tensor, Tensor]:
        values = closure(x)
        # The features on which a kernel may act are the objectives.
        return (values, values.T) if getattr(sampler, "kernel_on", None) == "features" else values

    for step in range(1, options.steps + 1):
        sampler.step(losses)
        if after is not None:
            after(x)
        if step in keep or step == options.steps:
            snapshots[step] = x.detach().clone()
    return time.perf_counter() - start, snapshots


def run_all(
    methods: Mapping[str, Maker], options: ToyOptions, one: Callable[[Maker, int], Run]
) -> dict[str, list[Run]]:
    torch.set_num_threads(options.threads)
    runs: dict[str, list[Run]] = {name: [] for name in methods}
    with progress(total=len(methods) * options.seeds) as bar:
        # Seed by seed, so that what else the machine does meets every method alike.
        for seed in options.seed_list():
            for name, make in methods.items():
                bar.set_description(f"{name}, seed {seed}")
                runs[name].append(keep(name, make, options, seed, one))
                bar.update()
    return runs


def keep(name: str, make: Maker, options: ToyOptions, seed: int, one: Callable[[Maker, int], Run]) -> Run:
    """One run, or what is on disk of it."""
    about = ("seed", "seeds", "threads", "out", "fresh")
    settings = {f.name: getattr(options, f.name) for f in fields(options) if f.name not in about}

    def result() -> dict[str, Any]:
        done = one(make, seed)
        return {**asdict(done), "snapshots": {step: points.tolist() for step, points in done.snapshots.items()}}

    store = RunStore(options.out, fresh=options.fresh)
    stem = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")
    found = store.run(f"{stem}_seed{seed}", {"method": name, "seed": seed, **settings}, result)
    snapshots = {int(step): torch.tensor(points) for step, points in found["snapshots"].items()}
    return Run(**{**found, "snapshots": snapshots})


def mixtures(options: ToyOptions) -> tuple[dict[str, list[Run]], list[dict[str, str]]]:
    keep = (0, options.steps // 4, options.steps // 2, options.steps)

    def one(make: Maker, seed: int) -> Run:
        x = mixture_start(options.particles, seed)
        seconds, snapshots = run(make, x, mixture_energies, options, keep=keep)
        centred = x.detach() - x.detach().mean(0)
        scores = {"share": share_in_common_region(x), "spread": centred.square().sum(1).mean().sqrt().item()}
        return Run(seed, seconds, scores, snapshots)

    runs = run_all(METHODS, options, one)
    table = [
        {
            "method": name,
            "in the common region": spread([r.scores["share"] for r in results], 2),
            "RMS distance from their mean": spread([r.scores["spread"] for r in results], 2),
            f"seconds for {options.steps:,} steps": spread([r.seconds for r in results], 1),
        }
        for name, results in runs.items()
    ]
    return runs, table


def pareto(options: ZDT3) -> tuple[dict[str, list[Run]], list[dict[str, str]]]:
    keep = (0, options.steps // 10, options.steps)

    def closure(x: Tensor) -> Tensor:
        return zdt3(x, projected=not options.unprojected)

    def one(make: Maker, seed: int) -> Run:
        x = zdt3_start(options.particles, seed)
        seconds, snapshots = run(make, x, closure, options, keep=keep, after=into_box)
        points = zdt3(x).detach().T
        reached = segments_reached(points)
        scores = {"hypervolume": hypervolume(points), **{f"segment {i + 1}": n for i, n in enumerate(reached)}}
        return Run(seed, seconds, scores, {step: zdt3(p).T for step, p in snapshots.items()})

    runs = run_all(ON_A_FRONT, options, one)
    table = [
        {
            "method": name,
            "hypervolume": spread([r.scores["hypervolume"] for r in results], 3),
            "particles at each segment": " ".join(
                spread([r.scores[f"segment {i + 1}"] for r in results], 1, with_std=False) for i in range(len(SEGMENTS))
            ),
            f"seconds for {options.steps:,} steps": spread([r.seconds for r in results], 1),
        }
        for name, results in runs.items()
    ]
    front = dict.fromkeys(table[0], "") | {
        "method": "the front itself",
        "hypervolume": f"{hypervolume(torch.cat(zdt3_front())):.3f}",
    }
    return runs, [*table, front]


def compare(options: ToyOptions, command: str) -> None:
    """Run everything, and write table, figure and numbers."""
    torch.set_num_threads(options.threads)
    options.out.mkdir(parents=True, exist_ok=True)
    runs, table = pareto(options) if isinstance(options, ZDT3) else mixtures(options)
    first = {name: results[0].snapshots for name, results in runs.items()}
    note = f"mean ± standard deviation over {counted(options.seeds, 'starting point')}"
    if isinstance(options, Mixtures):
        rows_figure(options.out / "figure.png", first)
    else:
        panels_figure(options.out / "figure.png", first)
        note += f"; hypervolume below {REFERENCE}"
    methods = {name: [{"seed": r.seed, "seconds": r.seconds, **r.scores} for r in rs] for name, rs in runs.items()}
    text = f"{markdown(table)}\n\n{note}"
    write_outputs(options.out, command, text, {"settings": settings_of(options), "methods": methods})
    print(f"\n{text}\nwritten to {options.out}")
