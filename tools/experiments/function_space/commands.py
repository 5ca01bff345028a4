"""The commands of `function_space.py`: their options, and what each runs and writes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from safetensors.torch import load_file, save_file
from torch import Tensor

from experiments.function_space.image_commands import CIFAR10, MNIST, Attack, AttackCIFAR10, attack, mnist
from experiments.function_space.report import sine_rows, write
from experiments.function_space.sine import METHODS as SINE_METHODS
from experiments.function_space.sine import SineProblem, SineRuns, summary, worst_rhat
from experiments.function_space.sine import figure as sine_figure
from experiments.function_space.uci import METHODS, Protocol
from experiments.function_space.uci_data import NAMES, load
from experiments.function_space.uci_runs import Comparison, OutOfTime, compare, tables
from experiments.harness.methods import one_of
from experiments.harness.options import (
    DataOptions,
    OutputOptions,
    RunOptions,
    at_least,
    at_least_one,
    not_negative,
    positive,
)
from experiments.harness.run_store import RunStore
from experiments.harness.tables import markdown

#: "paper": 500 epochs in minibatches of 100 below 1,000 training rows, 3,000 in minibatches of 1,000 above. "cpu":
#: 2,000 steps in minibatches of 100 for every set.
UCI_PRESETS: dict[str, dict[str, Any]] = {"cpu": {"small": (100, 2000, 0), "large": (100, 2000, 0)}, "paper": {}}


@dataclass(frozen=True)
class UCI(DataOptions, OutputOptions):
    """UCI regression: RMSE and log-likelihood of f-SVGD, SVGD, a deep ensemble, SGHMC and (small sets) HMC."""

    # "cpu": 2,000 steps in minibatches of 100. "paper": 500 epochs of minibatches of 100 below 1,000 training rows,
    # 3,000 of minibatches of 1,000 above.
    preset: Literal["cpu", "paper"] = "cpu"
    # Sets, in the order of the tables.
    sets: tuple[Annotated[str, one_of(NAMES)], ...] = NAMES
    # Methods, in the order of the tables, in any letter case.
    methods: tuple[Annotated[str, one_of(METHODS)], ...] = tuple(METHODS)
    # Splits of each set, at most; the files hold 20, of protein 5.
    splits: int = 20
    # Splits that are trained together: more are faster as long as they fit the processor's cache.
    at_once: int = 5
    # Minibatch steps instead of the preset's.
    steps: int | None = None
    # Networks of each method (chains of SGHMC).
    particles: int = 20
    # Trajectories of each HMC chain after its adaptation, which is as long but at most 100.
    hmc_trajectories: int = 100
    # Folds of split 0's training part that choose the learning rates, 1 to 5.
    folds: int = 2
    # Seed of weights, minibatches and noise.
    seed: int = 0
    # CPU threads of torch.
    threads: int = 1
    # Begin no new run after this many minutes; the same command continues.
    minutes: float | None = None
    # Folder of the runs, the table and the results.
    out: Path = Path("runs/uci")

    def __post_init__(self) -> None:
        at_least_one(self, "splits", "at_once", "steps", "particles", "hmc_trajectories", "threads")
        not_negative(self, "minutes")

    def protocol(self) -> Protocol:
        chosen = dict(UCI_PRESETS[self.preset])
        if self.steps is not None:
            batches = {key: (chosen.get(key) or getattr(Protocol, key))[0] for key in ("small", "large")}
            chosen |= {key: (batch, self.steps, 0) for key, batch in batches.items()}
        burn_in = min(Protocol.hmc_burn_in, self.hmc_trajectories)
        return Protocol(particles=self.particles, hmc_trajectories=self.hmc_trajectories, hmc_burn_in=burn_in, **chosen)


def uci(options: UCI, command: str) -> None:
    comparison = Comparison(
        options.out,
        options.protocol(),
        at_once=options.at_once,
        folds=options.folds,
        seed=options.seed,
        minutes=options.minutes,
        fresh=options.fresh,
    )
    sets = [load(name, options.data) for name in options.sets]
    try:
        results = compare(comparison, sets, options.methods, options.splits, lambda line: print(line, flush=True))
    except OutOfTime:
        print(f"--minutes {options.minutes:g} are over; the same command goes on from here")
        sys.exit(3)
    write(options, command, {"sets": results}, tables(results, options.methods))


@dataclass(frozen=True)
class Sine(RunOptions):
    """The posterior of a small network on sin(x) with a gap in the data: f-SVGD and SVGD beside HMC.

    A seed is a data set with its own particles and chains.
    """

    # Adam steps of the particle samplers.
    steps: int = SineProblem.steps
    # First learning rate of the particle samplers; it falls along a cosine.
    lr: float = SineProblem.lr
    # Particles of each particle sampler.
    particles: int = SineProblem.particles
    # Trajectories of HMC after its adaptation, a chain.
    trajectories: int = SineProblem.trajectories
    # Trajectories of that adaptation.
    burn_in: int = SineProblem.burn_in
    # Folder of the table, the results and the figure.
    out: Path = Path("runs/function_space_sine")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "steps", "trajectories", "burn_in")
        at_least(2, self, "particles")  # whose standard deviation is compared
        positive(self, "lr")


def sine(options: Sine, command: str) -> None:
    chosen = ("steps", "lr", "particles", "trajectories", "burn_in")
    problem = SineProblem(**{key: getattr(options, key) for key in chosen})
    store = RunStore(options.out, fresh=options.fresh)
    results: dict[str, list[dict[str, Any]]] = {}
    for seed in options.seed_list():
        runs, name = SineRuns(problem, seed), f"seed{seed}"
        path = store.path(name, "samples", ".safetensors")

        def make(runs: SineRuns = runs, seed: int = seed, name: str = name, path: Path = path) -> dict[str, Any]:
            store.begin(name, "samples")
            entries, functions = run_sine(runs, seed)
            save_file({method: values.contiguous() for method, values in functions.items()}, path)
            return entries

        for method, entry in store.run(name, {"problem": asdict(problem), "seed": seed}, make).items():
            results.setdefault(method, []).append(entry)
        if seed == options.seed:
            functions = load_file(path)
            sine_figure(options.out / "figure.png", {method: functions[method] for method in SINE_METHODS}, runs)
    write(options, command, {"methods": results}, f"{markdown(sine_rows(results))}\n")


def run_sine(runs: SineRuns, seed: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Of every method its scores, and samples of the function; HMC comes first, to which the others are compared."""
    entries, functions = dict[str, Any](), dict[str, Tensor]()
    for method in SINE_METHODS:
        functions[method], seconds, accepted = runs.functions(method, seed)
        scores = summary(functions[method], functions["HMC"], runs.grid)
        rhat = worst_rhat(functions[method], runs.problem.chains) if method == "HMC" else None
        entries[method] = {"seconds": seconds, "acceptance_rate": accepted, "worst_rhat": rhat, **scores}
        print(f"seed {seed}, {method}: {seconds:.0f} s{'' if rhat is None else f', R̂ {rhat:.3f}'}", flush=True)
    return entries, functions


COMMANDS: dict[str, tuple[type, Callable[[Any, str], None]]] = {
    "uci": (UCI, uci),
    "mnist": (MNIST, mnist),
    "attack": (Attack, attack),
    "cifar10": (CIFAR10, mnist),
    "attack_cifar10": (AttackCIFAR10, attack),
    "sine": (Sine, sine),
}
