"""f-SVGD beside SVGD, deep ensembles and Monte Carlo: the experiments of function-space particle optimisation.

    python tools/function_space.py uci                     # nine regression sets; see docs/function_space.md for times
    python tools/function_space.py uci --preset paper
    python tools/function_space.py mnist                   # classification error
    python tools/function_space.py attack                  # accuracy on adversarial examples of those networks
    python tools/function_space.py sine                    # a one-dimensional posterior beside HMC

Each writes table.md and results.json (attack and sine also figure.png) under --out. Runs are kept there, so that a
command that was interrupted goes on where it was.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import tyro
from experiments.common.output import command_line, settings_of, write_outputs
from experiments.function_space.attacks import robust_accuracy, share_without_gradient
from experiments.function_space.image_ensembles import LABELS as IMAGE_LABELS
from experiments.function_space.image_ensembles import ImageProtocol, ImageRuns
from experiments.function_space.report import accuracy_figure, attack_tables, error_rows, sine_rows
from experiments.function_space.sine import LABELS as SINE_LABELS
from experiments.function_space.sine import SineProblem, SineRuns, summary, worst_rhat
from experiments.function_space.sine import figure as sine_figure
from experiments.function_space.uci import LABELS, Protocol
from experiments.function_space.uci_data import NAMES, load
from experiments.function_space.uci_runs import Comparison, OutOfTime, compare, tables
from experiments.images.report import markdown

from meta_tasks.datasets import load as load_images

#: "paper": 500 epochs in minibatches of 100 below 1,000 training rows, 3,000 in minibatches of 1,000 above. "cpu":
#: 2,000 steps in minibatches of 100 for every set.
UCI_PRESETS: dict[str, dict[str, Any]] = {"cpu": {"small": (100, 2000, 0), "large": (100, 2000, 0)}, "paper": {}}


#: Nothing that we have of the paper gives the networks or epochs of its 1.21 %.
IMAGE_PRESETS: dict[str, dict[str, Any]] = {
    "cpu": {}, "full": {"particles": 20, "epochs": 100, "tuning_epochs": 10},
}  # fmt: skip


@dataclass(frozen=True)
class UCI:
    """UCI regression: RMSE and log-likelihood of f-SVGD, SVGD, a deep ensemble, SGHMC and (small sets) HMC."""

    # "cpu": 2,000 steps in minibatches of 100. "paper": 500 epochs of minibatches of 100 below 1,000 training rows,
    # 3,000 of minibatches of 1,000 above.
    preset: Literal["cpu", "paper"] = "cpu"
    # Sets, in the order of the tables.
    sets: tuple[Literal[NAMES], ...] = NAMES
    # Methods, in the order of the tables.
    methods: tuple[Literal[tuple(LABELS)], ...] = tuple(LABELS)
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
    # Begin no further run after so many minutes; the same command goes on from there.
    minutes: float | None = None
    # Do finished runs again.
    fresh: bool = False
    # The data folder; by default LEARNED_SAMPLERS_DATA.
    data: Path | None = None
    # Folder of the runs, the table and the results.
    out: Path = Path("runs/uci")

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
class Networks:
    """What says which networks of MNIST are meant."""

    # "cpu": 5 networks, 10 epochs. "full": 20 networks, 100 epochs, for a GPU or patience.
    preset: Literal["cpu", "full"] = "cpu"
    # Methods, in the order of the tables; "plain" is the deep ensemble without prior.
    methods: tuple[Literal[tuple(IMAGE_LABELS)], ...] = tuple(IMAGE_LABELS)
    # Seeds, counted up from 0; each has its own weights and minibatches.
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
    # The data folder; by default LEARNED_SAMPLERS_DATA.
    data: Path | None = None
    # Folder of the networks' runs.
    runs: Path = Path("runs/function_space_mnist")

    def image_runs(self, *, fresh: bool = False) -> ImageRuns:
        given = {key: getattr(self, key) for key in ("particles", "epochs", "tuning_epochs")}
        chosen = IMAGE_PRESETS[self.preset] | {key: value for key, value in given.items() if value is not None}
        images = load_images(self.dataset, self.data, limit=self.limit, validation=1 / 6, download=False)
        return ImageRuns(self.runs, images, ImageProtocol(hidden=self.hidden, **chosen), fresh=fresh)


@dataclass(frozen=True)
class MNIST(Networks):
    """Classification error of f-SVGD, SVGD and a deep ensemble at the same budget."""

    # Do finished runs again.
    fresh: bool = False
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


@dataclass(frozen=True)
class Sine:
    """The posterior of a small network on sin(x) with a gap in the data: f-SVGD and SVGD beside HMC."""

    # Data sets, each with its own particles and chains.
    seeds: int = 3
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


def mnist(options: MNIST, command: str) -> None:
    runs = options.image_runs(fresh=options.fresh)
    results, tuning = {}, {}
    for method in options.methods:
        lr, trials = runs.tune(method)
        tuning[method] = {"lr": lr, "validation_nll": trials}
        results[method] = [runs.run(method, lr, seed) for seed in range(options.seeds)]
        errors = ", ".join(f"{100 * run['error']:.2f} %" for run in results[method])
        print(f"{IMAGE_LABELS[method]}: lr {lr:g}, test error {errors}", flush=True)
    text = markdown(error_rows(results, IMAGE_LABELS))
    write(options, command, {"tuning": tuning, "methods": results}, f"{text}\n")


def attack(options: Attack, command: str) -> None:
    runs = options.image_runs()
    x, y = runs.data.test_x[: options.images], runs.data.test_y[: options.images]
    results: dict[str, Any] = {}
    for method in options.methods:
        for seed in range(options.seeds):
            networks = runs.load(method, seed)
            targets = {IMAGE_LABELS[method]: networks}
            if method == "ensemble":
                targets["one network of it"] = networks.members(1)
            for label, target in targets.items():
                entry = results.setdefault(label, {"fgsm": [], "iterated": [], "without_gradient": []})
                for name, steps in (("fgsm", 1), ("iterated", options.attack_steps)):
                    accuracies = [
                        robust_accuracy(target.log_predictive, x, y, epsilon, steps=steps)
                        for epsilon in options.epsilons
                    ]
                    entry[name].append(accuracies)
                entry["without_gradient"].append(share_without_gradient(target.log_predictive, x, y))
                print(f"{label}, seed {seed}: done", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    accuracy_figure(options.out / "figure.png", results, options.epsilons)
    text = attack_tables(results, options.epsilons, options.attack_steps)
    write(options, command, {"methods": results}, text)


def sine(options: Sine, command: str) -> None:
    chosen = ("steps", "lr", "particles", "trajectories", "burn_in")
    problem = SineProblem(**{key: getattr(options, key) for key in chosen})
    results: dict[str, list[dict[str, Any]]] = {}
    for seed in range(options.seeds):
        runs, functions = SineRuns(problem, seed), {}
        for method, label in SINE_LABELS.items():
            functions[method], seconds, accepted = runs.functions(method, seed)
            scores = summary(functions[method], functions["hmc"], runs.grid)
            rhat = worst_rhat(functions[method], problem.chains) if method == "hmc" else None
            entry = {"seconds": seconds, "acceptance_rate": accepted, "worst_rhat": rhat, **scores}
            results.setdefault(label, []).append(entry)
            print(f"seed {seed}, {label}: {seconds:.0f} s{'' if rhat is None else f', R̂ {rhat:.3f}'}", flush=True)
        if seed == 0:
            options.out.mkdir(parents=True, exist_ok=True)
            sine_figure(options.out / "figure.png", functions, runs)
    write(options, command, {"methods": results}, f"{markdown(sine_rows(results))}\n")


def write(options: Any, command: str, results: dict[str, Any], text: str) -> None:
    """table.md and results.json, and the table on the screen."""
    content = {"settings": settings_of(options), "torch": torch.__version__, **results}
    write_outputs(options.out, command, text, content)
    print(f"\n{text}\nwritten to {options.out}")


COMMANDS: dict[str, tuple[type, Callable[[Any, str], None]]] = {
    "uci": (UCI, uci), "mnist": (MNIST, mnist), "attack": (Attack, attack), "sine": (Sine, sine),
}  # fmt: skip
POSITIVE = (
    *("splits", "at_once", "steps", "particles", "hmc_trajectories", "seeds", "epochs", "tuning_epochs", "images"),
    *("attack_steps", "trajectories", "burn_in", "limit"),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; `arguments` None takes those of the process."""
    options = tyro.extras.subcommand_cli_from_dict(
        {name: kind for name, (kind, _) in COMMANDS.items()}, args=arguments, description=__doc__
    )
    for argument in POSITIVE:
        if (value := getattr(options, argument, None)) is not None and value < 1:
            sys.exit(f"error: {argument} must be at least 1, got {value}")
    torch.set_num_threads(1)
    command = command_line("function_space", arguments)
    action = next(action for kind, action in COMMANDS.values() if type(options) is kind)
    try:
        action(options, command)
    except (ValueError, FileNotFoundError, RuntimeError, FloatingPointError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
