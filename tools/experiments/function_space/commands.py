"""The commands of `function_space.py`: their options, and what each runs and writes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from experiments.common.methods import one_of
from experiments.common.options import DataOptions, OutputOptions, RunOptions, at_least_one
from experiments.common.output import settings_of, write_outputs
from experiments.common.run_store import RunStore
from experiments.common.tables import markdown
from experiments.function_space.attacks import robust_accuracy, share_without_gradient
from experiments.function_space.image_ensembles import METHODS as IMAGE_METHODS
from experiments.function_space.image_ensembles import Classifiers, ImageProtocol, ImageRuns
from experiments.function_space.report import accuracy_figure, attack_tables, error_rows, sine_rows
from experiments.function_space.sine import METHODS as SINE_METHODS
from experiments.function_space.sine import SineProblem, SineRuns, summary, worst_rhat
from experiments.function_space.sine import figure as sine_figure
from experiments.function_space.uci import METHODS, Protocol
from experiments.function_space.uci_data import NAMES, load
from experiments.function_space.uci_runs import Comparison, OutOfTime, compare, tables
from meta_tasks.datasets import load as load_images

#: "paper": 500 epochs in minibatches of 100 below 1,000 training rows, 3,000 in minibatches of 1,000 above. "cpu":
#: 2,000 steps in minibatches of 100 for every set.
UCI_PRESETS: dict[str, dict[str, Any]] = {"cpu": {"small": (100, 2000, 0), "large": (100, 2000, 0)}, "paper": {}}


#: Nothing that we have of the paper gives the networks or epochs of its 1.21 %.
IMAGE_PRESETS: dict[str, dict[str, Any]] = {
    "cpu": {}, "full": {"particles": 20, "epochs": 100, "tuning_epochs": 10},
}  # fmt: skip


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
    # Begin no further run after so many minutes; the same command goes on from there.
    minutes: float | None = None
    # Folder of the runs, the table and the results.
    out: Path = Path("runs/uci")

    def __post_init__(self) -> None:
        at_least_one(self, "splits", "at_once", "steps", "particles", "hmc_trajectories", "threads")

    def protocol(self) -> Protocol:
        chosen = dict(UCI_PRESETS[self.preset])
        if self.steps is not None:
            batches = {key: (chosen.get(key) or getattr(Protocol, key))[0] for key in ("small", "large")}
            chosen |= {key: (batch, self.steps, 0) for key, batch in batches.items()}
        burn_in = min(Protocol.hmc_burn_in, self.hmc_trajectories)
        return Protocol(particles=self.particles, hmc_trajectories=self.hmc_trajectories, hmc_burn_in=burn_in, **chosen)


def uci(options: UCI, command: str) -> None:
    comparison = Comparison(
        options.out, options.protocol(), at_once=options.at_once, folds=options.folds, seed=options.seed,
        minutes=options.minutes, fresh=options.fresh,
    )  # fmt: skip
    sets = [load(name, options.data) for name in options.sets]
    try:
        results = compare(comparison, sets, options.methods, options.splits, lambda line: print(line, flush=True))
    except OutOfTime:
        print(f"--minutes {options.minutes:g} are over; the same command goes on from here")
        sys.exit(3)
    write(options, command, {"sets": results}, tables(results, options.methods))


@dataclass(frozen=True)
class Networks(DataOptions, RunOptions):
    """What says which networks of MNIST are meant."""

    # "cpu": 5 networks, 10 epochs. "full": 20 networks, 100 epochs, for a GPU or patience.
    preset: Literal["cpu", "full"] = "cpu"
    # Methods, in the order of the tables, in any letter case; PlainEnsemble is the deep ensemble without prior.
    methods: tuple[Annotated[str, one_of(IMAGE_METHODS)], ...] = IMAGE_METHODS
    # Seeds, counted up from --seed; each has its own weights and minibatches.
    seeds: int = 1
    # Networks, instead of the preset's.
    particles: int | None = None
    # Units of their hidden layers.
    hidden: tuple[int, ...] = (400, 400)
    # Epochs, instead of the preset's.
    epochs: int | None = None
    # Epochs of the runs that choose the learning rate, instead of the preset's.
    tuning_epochs: int | None = None
    # Training images, of the 50,000 that are left beside 10,000 for validation.
    limit: int | None = None
    # A data set of images by its name in meta_tasks.datasets.
    dataset: str = "mnist"
    # Folder of the networks' runs.
    runs: Path = Path("runs/function_space_mnist")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "particles", "epochs", "tuning_epochs", "limit")

    def image_runs(self, *, fresh: bool = False) -> ImageRuns:
        given = {key: getattr(self, key) for key in ("particles", "epochs", "tuning_epochs")}
        chosen = IMAGE_PRESETS[self.preset] | {key: value for key, value in given.items() if value is not None}
        images = load_images(self.dataset, self.data, limit=self.limit, validation=1 / 6, download=False)
        return ImageRuns(self.runs, images, ImageProtocol(hidden=self.hidden, **chosen), fresh=fresh)


@dataclass(frozen=True)
class MNIST(Networks):
    """Classification error of f-SVGD, SVGD and a deep ensemble at the same budget."""

    # Folder of the table and the results.
    out: Path = Path("runs/function_space_mnist")


@dataclass(frozen=True)
class Attack(Networks):
    """Accuracy on adversarial examples (FGSM, and iterated) of the networks that the command mnist has trained."""

    # Largest change of a pixel, in [0, 1].
    epsilons: tuple[float, ...] = (0.0, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3)
    # Test images, the first ones.
    images: int = 1000
    # Steps of the iterated attack.
    attack_steps: int = 10
    # Folder of the table, the results and the figure.
    out: Path = Path("runs/function_space_attack")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "images", "attack_steps")


@dataclass(frozen=True)
class Sine(RunOptions):
    """The posterior of a small network on sin(x) with a gap in the data: f-SVGD and SVGD beside HMC.

    A seed is a data set with its own particles and chains.
    """

    # Adam steps of the particle samplers.
    steps: int = SineProblem.steps
    # Their first learning rate, which falls along a cosine.
    lr: float = SineProblem.lr
    # Particles of each of them.
    particles: int = SineProblem.particles
    # Trajectories of HMC after its adaptation, a chain.
    trajectories: int = SineProblem.trajectories
    # Trajectories of that adaptation.
    burn_in: int = SineProblem.burn_in
    # Folder of the table, the results and the figure.
    out: Path = Path("runs/function_space_sine")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "steps", "particles", "trajectories", "burn_in")


def mnist(options: MNIST, command: str) -> None:
    runs = options.image_runs(fresh=options.fresh)
    results, tuning = {}, {}
    for method in options.methods:
        lr, trials = runs.tune(method)
        tuning[method] = {"lr": lr, "validation_nll": trials}
        results[method] = [runs.run(method, lr, seed) for seed in options.seed_list()]
        errors = ", ".join(f"{100 * run['error']:.2f} %" for run in results[method])
        print(f"{method}: lr {lr:g}, test error {errors}", flush=True)
    text = markdown(error_rows(results))
    write(options, command, {"tuning": tuning, "methods": results}, f"{text}\n")


def attack(options: Attack, command: str) -> None:
    runs = options.image_runs()
    x, y = runs.data.test_x[: options.images], runs.data.test_y[: options.images]
    store = RunStore(options.out, runs.store.data, fresh=options.fresh)
    own = {"epsilons": options.epsilons, "images": options.images, "attack_steps": options.attack_steps}
    results: dict[str, Any] = {}
    for method in options.methods:
        for seed in options.seed_list():
            networks = runs.load(method, seed)
            targets = {method: networks}
            if method == "DeepEnsemble":
                targets["one network of it"] = networks.members(1)

            def make(targets: dict[str, Classifiers] = targets) -> dict[str, Any]:
                return {label: under_attack(target, x, y, options) for label, target in targets.items()}

            run = store.run(f"{method}_seed{seed}", {**runs.record(method, seed)["made_of"]["settings"], **own}, make)
            for label, scores in run.items():
                for key, value in scores.items():
                    results.setdefault(label, {}).setdefault(key, []).append(value)
                print(f"{label}, seed {seed}: done", flush=True)
    accuracy_figure(options.out / "figure.png", results, options.epsilons)
    text = attack_tables(results, options.epsilons, options.attack_steps)
    write(options, command, {"methods": results}, text)


def under_attack(target: Classifiers, x: Tensor, y: Tensor, options: Attack) -> dict[str, Any]:
    """Accuracies by epsilon under both attacks, and the share of images that neither can move."""

    def accuracies(steps: int) -> list[float]:
        return [robust_accuracy(target.log_predictive, x, y, epsilon, steps=steps) for epsilon in options.epsilons]

    dead = share_without_gradient(target.log_predictive, x, y)
    return {"fgsm": accuracies(1), "iterated": accuracies(options.attack_steps), "without_gradient": dead}


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


def write(options: Any, command: str, results: dict[str, Any], text: str) -> None:
    """table.md and results.json, and the table on the screen."""
    content = {"settings": settings_of(options), "torch": torch.__version__, **results}
    write_outputs(options.out, command, text, content)
    print(f"\n{text}\nwritten to {options.out}")


COMMANDS: dict[str, tuple[type, Callable[[Any, str], None]]] = {
    "uci": (UCI, uci), "mnist": (MNIST, mnist), "attack": (Attack, attack), "sine": (Sine, sine),
}  # fmt: skip
