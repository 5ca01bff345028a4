"""The particle samplers on two toy problems, with the baselines beside them.

    python tools/toy.py mixtures    # three mixtures with a common region, five seeds: about a minute
    python tools/toy.py zdt3        # a Pareto front in five pieces, in its box: half an hour

Writes table.md, results.json and figure.png under --out, and every finished run, so that an interrupted command goes on
where it was.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
import tyro
from experiments.common.kept import kept
from experiments.common.output import command_line, counted, settings_of, write_outputs
from experiments.images.report import markdown, spread
from experiments.toys.figures import panels_figure, rows_figure
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
from torch import Tensor
from tqdm import tqdm

from learned_samplers import MGDA, MOOSVGD, MTSGD, LinearScalarisation, ParetoMTL
from learned_samplers.particles import RBF
from learned_samplers.particles.base import ParticleSampler

Maker = Callable[..., ParticleSampler]

#: Name in the tables → what makes the sampler from parameters, lr and base optimizer.
METHODS: dict[str, Maker] = {
    "MT-SGD, exact U": MTSGD,
    "MT-SGD, code's rule": lambda params, lr, **more: MTSGD(
        params, lr, target_weights="gradients", gradient_normalisation="coordinate", **more
    ),
    "equal weights (SVGD)": lambda params, lr, **more: MTSGD(params, lr, target_weights="equal", **more),
    "MOO-SVGD, kernel on losses": MOOSVGD,
    "MOO-SVGD, kernel on particles": lambda params, lr, **more: MOOSVGD(params, lr, kernel_on="parameters", **more),
    "MGDA": MGDA,
    "linear scalarisation": LinearScalarisation,
}
#: On a Pareto front MT-SGD is shown with settings that mend its collapse, and Pareto MTL is a further baseline; with
#: three targets it has no default preferences.
ON_A_FRONT: dict[str, Maker] = {
    "MT-SGD, exact U": MTSGD,
    "MT-SGD, exact U, scores normalised by particle": lambda params, lr, **more: MTSGD(
        params, lr, gradient_normalisation="particle", **more
    ),
    "MT-SGD, exact U, bandwidth 10": lambda params, lr, **more: MTSGD(params, lr, kernel=RBF(10.0), **more),
    "MT-SGD, code's rule": METHODS["MT-SGD, code's rule"],
    "MT-SGD, code's rule, kernel on objectives": lambda params, lr, **more: MTSGD(
        params, lr, target_weights="gradients", gradient_normalisation="coordinate", kernel_on="features", **more
    ),
    **{name: make for name, make in METHODS.items() if not name.startswith("MT-SGD")},
    "Pareto MTL": ParetoMTL,
}


@dataclass(frozen=True)
class Mixtures:
    """Three mixtures of two Gaussians that share a region (Figure 3 of MT-SGD): who finds it, and how fast."""

    # Steps of Adam.
    steps: int = 1000
    # Learning rate of Adam.
    lr: float = 3e-2
    # Weight of the repulsion.
    temperature: float = 1.0
    # Number of particles.
    particles: int = 50
    # Number of starting points, counted up from 0; all methods have the same.
    seeds: int = 5
    # CPU threads of torch; these tensors are too small for more than one.
    threads: int = 1
    # Folder for the results.
    out: Path = Path("runs/toy_mixtures")


@dataclass(frozen=True)
class ZDT3:
    """ZDT3, 30 variables in the unit box (Figure 4 of MT-SGD): hypervolume and segments of the front."""

    # Steps of Adam.
    steps: int = 10_000
    # Learning rate of Adam.
    lr: float = 1e-3
    # Weight of the repulsion: at 1 it scatters particles over the box, in which the objectives differ by about 1.
    temperature: float = 1e-2
    # Number of particles.
    particles: int = 50
    # Number of starting points, counted up from 0; all methods have the same.
    seeds: int = 3
    # CPU threads of torch.
    threads: int = 1
    # Leave the gradients that point out of the box as they are; the particles are still clamped to it.
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
    options: Mixtures | ZDT3,
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
    methods: Mapping[str, Maker], options: Mixtures | ZDT3, one: Callable[[Maker, int], Run]
) -> dict[str, list[Run]]:
    torch.set_num_threads(options.threads)
    runs: dict[str, list[Run]] = {name: [] for name in methods}
    with tqdm(total=len(methods) * options.seeds, mininterval=1) as bar:
        # Seed by seed, so that what else the machine does meets every method alike.
        for seed in range(options.seeds):
            for name, make in methods.items():
                bar.set_description(f"{name}, seed {seed}")
                runs[name].append(keep(name, make, options, seed, one))
                bar.update()
    return runs


def keep(name: str, make: Maker, options: Mixtures | ZDT3, seed: int, one: Callable[[Maker, int], Run]) -> Run:
    """One run, or what is on disk of it."""
    about = ("seeds", "threads", "out")
    settings = {f.name: getattr(options, f.name) for f in fields(options) if f.name not in about}

    def result() -> dict[str, Any]:
        done = one(make, seed)
        return {**asdict(done), "snapshots": {step: points.tolist() for step, points in done.snapshots.items()}}

    path = options.out / "runs" / f"{re.sub(r'[^a-z0-9]+', '_', name.lower()).strip('_')}_seed{seed}.json"
    found = kept(path, {"method": name, "seed": seed, **settings}, result)
    snapshots = {int(step): torch.tensor(points) for step, points in found["snapshots"].items()}
    return Run(**{**found, "snapshots": snapshots})


def mixtures(options: Mixtures) -> tuple[dict[str, list[Run]], list[dict[str, str]]]:
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


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; `arguments` None takes those of the process."""
    options = tyro.extras.subcommand_cli_from_dict(
        {"mixtures": Mixtures, "zdt3": ZDT3}, args=arguments, description=__doc__
    )
    for argument in ("steps", "particles", "seeds", "threads"):
        if getattr(options, argument) < 1:
            sys.exit(f"error: {argument} must be at least 1, got {getattr(options, argument)}")
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        runs, table = mixtures(options) if isinstance(options, Mixtures) else pareto(options)
    except ValueError as error:
        sys.exit(f"error: {error}")
    first = {name: results[0].snapshots for name, results in runs.items()}
    note = f"mean ± standard deviation over {counted(options.seeds, 'starting point')}"
    if isinstance(options, Mixtures):
        rows_figure(options.out / "figure.png", first)
    else:
        panels_figure(options.out / "figure.png", first)
        note += f"; hypervolume below {REFERENCE}"
    command = command_line("toy", arguments)
    text = markdown(table)
    methods = {name: [{"seed": r.seed, "seconds": r.seconds, **r.scores} for r in rs] for name, rs in runs.items()}
    content = {"settings": settings_of(options), "methods": methods}
    write_outputs(options.out, command, f"{text}\n\n{note}", content)
    print(f"\n{text}\n\n{note}\nwritten to {options.out}")


if __name__ == "__main__":
    main()
