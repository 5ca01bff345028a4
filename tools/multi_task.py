"""Five particles on two or more tasks: MT-SGD beside its baselines on Multi-MNIST and its like, or on CelebA.

    python tools/multi_task.py --preset cpu       # small runs, the whole table with its tuning: 40 minutes
    python tools/multi_task.py --preset paper --device cuda
    python tools/multi_task.py --preset celeba --device cuda

The files of MNIST and Fashion-MNIST are needed (CelebA's for the last).

For each data set and method learning rates (and, where particles repel each other, two scales of the energies) are
tried on the first seed, in short runs. The choice with the lowest NLL on the validation images (of the ensemble, mean
over the tasks) is trained in full on all seeds; of every run the particles of the epoch with the lowest validation NLL
are kept and scored on the test images, which nothing else has seen. Where the best rate is the smallest or the largest
tried, the next one is tried too.

Under --out: table.md, results.json, figure.png, and every run, its particles and its TensorBoard curves. Runs are
kept: a command that was interrupted goes on where it was, and pieces may be run by themselves (--dataset, --method).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from experiments.common.checks import check_at_least_one
from experiments.common.output import command_line, counted
from experiments.images.comparison import best, prepare_torch, text
from experiments.images.tuning import at_edge, nearest, series, tune
from experiments.multi_task.methods import ENERGIES, METHODS, TWO_TASKS, Settings
from experiments.multi_task.report import SCORES, figure, run_table, score_table, tuning_table, write_results
from experiments.multi_task.runner import Result, run
from tqdm import tqdm

from meta_tasks.datasets import MultiTaskData, load_celeba, load_overlaid

PRESETS = ("cpu", "paper", "celeba")


@dataclass(frozen=True)
class Options:
    """Particle samplers on several tasks: ensemble accuracy, Brier score and calibration error of each task."""

    # Whole experiments. Options given beside it take their place.
    preset: Literal["cpu", "paper", "celeba"] | None = None
    # Data, network and training.
    settings: Annotated[Settings, tyro.conf.OmitArgPrefixes] = field(default_factory=Settings)
    # Data sets, in the order of the tables.
    dataset: tuple[Literal["multi_fashion_mnist", "multi_mnist", "multi_fashion", "celeba"], ...] = (
        "multi_fashion_mnist", "multi_mnist", "multi_fashion",
    )  # fmt: skip
    # Methods, in the order of the tables.
    method: tuple[
        Literal["linear", "mgda", "pareto_mtl", "moo_svgd", "mt_sgd", "mt_sgd_code", "svgd"], ...
    ] = tuple(METHODS)  # fmt: skip
    # Learning rates to try, of 1, 2, 5, 10, …, around each method's own.
    grid: int = 3
    # Learning rates to try instead, the same for all methods; a single one is not tuned.
    rates: tuple[float, ...] | None = None
    # Scales of the energies to try with each rate, where particles repel each other: "posterior" is N times the mean
    # loss, "mean_loss" that itself, as in the published code, which makes the repulsion N times stronger.
    energies: tuple[Literal["posterior", "mean_loss"], ...] = ENERGIES
    # Times that the grid is extended where its best rate lies at an edge.
    extensions: int = 1
    # Epochs of a run to tune by.
    tune_epochs: int = 1
    # First seed: of the initial weights and the minibatches. The data are always the same.
    seed: int = 0
    # Number of seeds; the tables give mean ± standard deviation over them.
    seeds: int = 3
    # Device, such as cpu or cuda:0; auto takes a GPU where there is one.
    device: str = "auto"
    # CPU threads of torch.
    threads: int = 1
    # Folder of the data files; by default the one that LEARNED_SAMPLERS_DATA names, else ~/.cache/learned_samplers.
    data: str | None = None
    # Folder for the results.
    out: Path = Path("runs/multi_task")
    # Run again what is already there with the same settings.
    fresh: bool = False

    def __post_init__(self) -> None:
        check_at_least_one(self, "grid", "tune_epochs", "seeds", "threads")
        if self.extensions < 0:
            raise ValueError(f"extensions must not be negative, got {self.extensions}")
        for name in ("dataset", "method", "energies"):
            if not getattr(self, name) or len(set(getattr(self, name))) < len(getattr(self, name)):
                raise ValueError(f"{name} must name some, each once, got {getattr(self, name)}")
        if self.settings.prior_precision > 0 and "mean_loss" in self.energies:
            raise ValueError("prior_precision would be N times stronger with mean_loss: give --energies posterior")
        if self.rates is not None and (not self.rates or min(self.rates) <= 0):
            raise ValueError(f"rates must be positive, got {self.rates}")
        if "celeba" in self.dataset and (both := set(self.method).intersection(TWO_TASKS)):
            raise ValueError(f"method {', '.join(both)} has preferences for two tasks only, and cannot run on celeba")


@dataclass(frozen=True, order=True)
class Choice:
    """What is tuned."""

    lr: float
    energy: str

    def __str__(self) -> str:
        return f"lr {self.lr:g}, {self.energy}"


def preset(name: str | None) -> Options:
    """The options that a preset stands for."""
    if name == "cpu":
        return Options("cpu", Settings(train=10_000, validation=2000, test=10_000, epochs=4, batch_size=32))
    if name == "paper":
        settings = Settings(epochs=100, batch_size=256)
        return Options("paper", settings, rates=(1e-3,), energies=("mean_loss",), out=Path("runs/multi_task_paper"))
    if name == "celeba":
        settings = Settings(size=64, train=40_000, network="resnet18", epochs=40, batch_size=256, halve_every=0.25)
        methods: Any = tuple(method for method in METHODS if method not in TWO_TASKS)
        return Options(
            "celeba", settings, ("celeba",), methods, rates=(1e-2, 1e-1, 1.0), tune_epochs=4,
            out=Path("runs/multi_task_celeba"),
        )  # fmt: skip
    return Options()


def parse(arguments: Sequence[str] | None) -> Options:
    """The options; those of the preset, if one is named, are the defaults of the others."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--preset", choices=PRESETS)
    name = first.parse_known_args(arguments)[0].preset
    return tyro.cli(Options, args=arguments, default=preset(name), description=__doc__)


def load(name: str, options: Options) -> MultiTaskData:
    """A data set with as many images as the settings say."""
    settings = options.settings
    limits = {"limit": settings.train, "limit_validation": settings.validation, "limit_test": settings.test}
    if name == "celeba":
        return load_celeba(options.data, attributes=settings.attributes, size=settings.size, **limits)
    return load_overlaid(name, options.data, size=settings.size, **limits)


class Comparison:
    """Tunes and runs every method on one data set after the other."""

    def __init__(self, options: Options, device: str, bar: tqdm) -> None:
        self.options, self.device, self.bar = options, device, bar
        self.tasks: dict[str, tuple[str, ...]] = {}
        self.trials: dict[str, dict[str, list[Result]]] = {}
        self.finals: dict[str, dict[str, list[Result]]] = {}
        self.done: set[str] = set()

    def choices(self, method: str) -> list[Choice]:
        options, centre = self.options, nearest(METHODS[method].lr)
        rates = options.rates
        if rates is None:
            rates = tuple(series(centre + offset) for offset in range(-(options.grid // 2), (options.grid + 1) // 2))
        energies = options.energies if METHODS[method].repels else options.energies[:1]
        return [Choice(lr, energy) for lr in rates for energy in energies]

    def epochs(self, method: str) -> int:
        """Of all runs of a method, if the grid is not extended."""
        options, count = self.options, len(self.choices(method))
        return options.settings.epochs * options.seeds + (options.tune_epochs * count if count > 1 else 0)

    def steps(self, data: MultiTaskData, epochs: int) -> int:
        return epochs * (data.num_data // min(self.options.settings.batch_size, data.num_data))

    def run(self, method: str, choice: Choice, epochs: int, seed: int, data: MultiTaskData, *, test: bool) -> Result:
        """One run; what was read from disk leaves the bar's total."""
        options, before = self.options, self.bar.n
        self.bar.set_description(f"{data.name}, {METHODS[method].label}, {choice}, seed {seed}")
        key = f"{data.name}, {method}, {choice}, {epochs}, {seed}"
        fresh = options.fresh and key not in self.done
        result = run(
            options.settings, method, choice.lr, choice.energy, epochs, seed, data, options.out,
            bar=self.bar, test=test, fresh=fresh,
        )  # fmt: skip
        self.done.add(key)
        self.bar.total -= self.steps(data, epochs) - (self.bar.n - before)
        self.bar.refresh()
        return result

    def tune(self, method: str, data: MultiTaskData) -> Choice:
        """The choice with the lowest validation NLL.

        Raises:
            RuntimeError: all of them diverged.
        """
        options, choices = self.options, self.choices(method)
        if len(choices) == 1:
            return choices[0]
        trials = self.trials.setdefault(data.name, {}).setdefault(method, [])

        def evaluate(choice: Choice) -> float | None:
            if choice not in choices:
                self.bar.total += self.steps(data, options.tune_epochs)
            trials.append(self.run(method, choice, options.tune_epochs, options.seed, data, test=False))
            return trials[-1].validation_nll

        try:
            scores: dict[Any, float | None] = tune(choices, evaluate, options.extensions)  # type: ignore[arg-type]
        except RuntimeError as error:
            raise RuntimeError(f"{METHODS[method].label} on {data.name}: {error}") from error
        chosen = best(scores)
        edge = " (at the edge of what was tried)" if at_edge(chosen, scores) else ""
        tried = "; ".join(f"{choice}: {text(scores[choice])}" for choice in sorted(scores))
        tqdm.write(f"{data.name}, {METHODS[method].label}: {chosen}{edge}. Validation NLL: {tried}")
        return chosen

    def compare(self, name: str) -> None:
        """Everything on one data set."""
        options = self.options
        data = load(name, options).to(self.device)
        self.tasks[name], self.finals[name] = data.tasks, {}
        self.bar.total = (self.bar.total or 0) + sum(self.steps(data, self.epochs(m)) for m in options.method)
        tqdm.write(
            f"{name}: {data.num_data} training, {len(data.val_y)} validation, {len(data.test_y)} test images of "
            f"{'×'.join(map(str, data.input_shape))}, {len(data.tasks)} tasks"
        )
        for method in options.method:
            choice = self.tune(method, data)
            seeds = range(options.seed, options.seed + options.seeds)
            self.finals[name][method] = [
                self.run(method, choice, options.settings.epochs, seed, data, test=True) for seed in seeds
            ]


def report(comparison: Comparison, options: Options, command: str) -> str:
    """Write tables, figure and numbers; the tables."""
    finals, tasks = comparison.finals, comparison.tasks
    parts = [f"### {heading}\n\n{score_table(finals, tasks, score)}" for score, (heading, _, _) in SCORES.items()]
    parts.append(f"### Runs\n\n{run_table(finals)}")
    if comparison.trials:
        parts.append(f"### Validation NLL by learning rate\n\n{tuning_table(comparison.trials)}")
    note = (
        f"Test scores of the ensemble of {options.settings.particles} particles, mean ± standard deviation over "
        f"{counted(options.seeds, 'seed')}; calibration error in 10 bins. Learning rates are tried on the first seed, "
        f"in {counted(options.tune_epochs, 'epoch')}. Seconds are of the clock, for training alone."
    )
    content = f"{note}\n\n" + "\n\n".join(parts)
    (options.out / "table.md").write_text(f"`{command}`\n\n{content}\n")
    write_results(options.out / "results.json", finals, comparison.trials, tasks, command)
    figure(options.out / "figure.png", finals, tasks)
    return content


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; `arguments` None takes those of the process."""
    command = command_line("multi_task", arguments)
    try:
        options = parse(arguments)
        device = prepare_torch(options.device, options.threads)
        with tqdm(unit="step", smoothing=0.02, mininterval=1) as bar:
            comparison = Comparison(options, device, bar)
            for name in options.dataset:
                comparison.compare(name)
    except KeyboardInterrupt:
        sys.exit("interrupted; finished runs are kept, the same command goes on from there")
    except (ValueError, TypeError, FileNotFoundError, RuntimeError) as error:
        sys.exit(f"error: {error}")
    print(f"\n{report(comparison, options, command)}\n\nin {options.out}: table.md, results.json, figure.png")
    print(f"TensorBoard: {sys.executable} -m tensorboard.main --logdir {options.out / 'tensorboard'}")


if __name__ == "__main__":
    main()
