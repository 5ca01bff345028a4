"""The options of `multi_task.py`, and its runs: every method tuned and run, on one data set after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tqdm import tqdm

from experiments.harness import options as common
from experiments.harness.methods import one_of
from experiments.harness.options import DataOptions, DeviceOptions, RunOptions, at_least_one, each_once, not_negative
from experiments.harness.run_store import RunStore
from experiments.harness.tuning import Choice as Rate
from experiments.harness.tuning import Tuning, rates_around, score_text, tune
from experiments.multi_task.methods import ENERGIES, METHODS, Settings
from experiments.multi_task.runner import Result, new_result, run, store_for
from meta_tasks.datasets import MultiTaskData, load_overlaid


@dataclass(frozen=True, order=True)
class Choice(Rate):
    """What is tuned: the learning rate and the scale of the energies."""

    energy: str

    def __str__(self) -> str:
        return f"lr {self.lr:g}, {self.energy}"


@dataclass(frozen=True)
class TaskOptions(DeviceOptions, DataOptions, RunOptions):
    """Particle samplers on two tasks: ensemble accuracy, Brier score and calibration error of each task."""

    # A preset of all options; options given beside it override its values.
    preset: Literal["cpu", "paper"] | None = None
    # Folder for the results.
    out: Path = Path("runs/multi_task")
    # Data, network and training.
    settings: Annotated[Settings, tyro.conf.OmitArgPrefixes] = field(default_factory=Settings)
    # Data sets, in the order of the tables.
    dataset: tuple[Literal["multi_fashion_mnist", "multi_mnist", "multi_fashion"], ...] = (
        "multi_fashion_mnist",
        "multi_mnist",
        "multi_fashion",
    )
    # Methods, in the order of the tables, in any letter case.
    method: tuple[Annotated[str, one_of(METHODS)], ...] = tuple(
        n for n, method in METHODS.items() if not method.separate
    )
    # Number of learning rates to try, from 1, 2, 5, 10, …, around each method's own.
    grid: int = 3
    # Learning rates to try instead, the same for all methods; a single one is not tuned.
    rates: tuple[float, ...] | None = None
    # Scales of the energies to try with each rate, where particles repel each other: "posterior" is N times the mean
    # loss, "mean_loss" the mean loss, as in the published code; its repulsion is N times stronger.
    energies: tuple[Annotated[str, one_of(ENERGIES)], ...] = ENERGIES
    # How often the grid is extended while its best rate lies at an edge.
    extensions: int = 1
    # Epochs of a tuning run.
    tune_epochs: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "grid", "tune_epochs")
        not_negative(self, "extensions")
        each_once(self, "dataset", "method", "energies")
        if self.rates is not None and (not self.rates or min(self.rates) <= 0):
            raise ValueError(f"rates must be positive, got {self.rates}")

    def choices(self, method: str) -> list[Choice]:
        """What is tried of a method; a single one is not tuned."""
        rates = rates_around(METHODS[method].lr, self.grid) if self.rates is None else self.rates
        energies = self.energies if METHODS[method].repels else self.energies[:1]
        return [Choice(lr, energy) for lr in rates for energy in energies]

    def planned_epochs(self, method: str) -> int:
        """Of all runs of a method, if the grid is not extended."""
        count = len(self.choices(method))
        return self.settings.epochs * self.seeds + (self.tune_epochs * count if count > 1 else 0)

    def steps(self, images: int, epochs: int) -> int:
        return epochs * (images // min(self.settings.batch_size, images))

    def load(self, name: str) -> MultiTaskData:
        """A data set with as many images as the settings say."""
        own = self.settings
        limits: dict[str, Any] = {"limit": own.train, "limit_validation": own.validation, "limit_test": own.test}
        return load_overlaid(name, self.data, size=own.size, **limits)


def parse(arguments: Sequence[str] | None, description: str | None = None) -> TaskOptions:
    """The options; those of the preset, if one is named, are the defaults of the others."""
    cpu = Settings(train=10_000, validation=2000, test=10_000, epochs=4, batch_size=32)
    paper: Any = {"rates": (1e-3,), "energies": ("mean_loss",), "out": Path("runs/multi_task_paper")}
    presets = {
        "cpu": TaskOptions(preset="cpu", settings=cpu),
        "paper": TaskOptions(preset="paper", settings=Settings(epochs=100, batch_size=256), **paper),
    }
    return common.parse(arguments, TaskOptions(), presets, description)


class Comparison:
    """The runs of one call.

    Args:
        device: to compute on.
        bar: of all runs together, in steps.

    Attributes:
        tasks, tunings, finals: by data set its tasks, and by method what was tried and the final runs, one a seed.
    """

    def __init__(self, options: TaskOptions, device: str, bar: Any) -> None:
        self.options, self.device, self.bar = options, device, bar
        self.tasks: dict[str, tuple[str, ...]] = {}
        self.tunings: dict[str, dict[str, Tuning[Choice, Result]]] = {}
        self.finals: dict[str, dict[str, list[Result]]] = {}

    def run(
        self, method: str, choice: Choice, epochs: int, seed: int, data: MultiTaskData, store: RunStore, *, test: bool
    ) -> Result:
        """One run; what was read from disk leaves the bar's total."""
        before = self.bar.n
        self.bar.set_description(f"{data.name}, {method}, {choice}, seed {seed}")
        what = new_result(self.options.settings, data.name, method, choice.lr, choice.energy, epochs, seed)
        result = run(self.options.settings, what, data, store, bar=self.bar, test=test)
        self.bar.total -= self.options.steps(data.num_data, epochs) - (self.bar.n - before)
        self.bar.refresh()
        return result

    def tune(self, method: str, data: MultiTaskData, store: RunStore) -> Choice:
        """The choice with the lowest validation NLL.

        Raises:
            RuntimeError: all of them diverged.
        """
        options, choices = self.options, self.options.choices(method)
        if len(choices) == 1:
            return choices[0]

        def attempt(choice: Choice, seed: int) -> Result:
            if choice not in choices:
                self.bar.total += options.steps(data.num_data, options.tune_epochs)
            return self.run(method, choice, options.tune_epochs, seed, data, store, test=False)

        how: Any = {"seeds": options.seed_list(1), "extensions": options.extensions}
        try:
            tuning = tune(choices, attempt, lambda result: result.validation_nll, **how)
        except RuntimeError as error:
            raise RuntimeError(f"{method} on {data.name}: {error}") from error
        self.tunings.setdefault(data.name, {})[method] = tuning
        edge = " (at the edge of what was tried)" if tuning.edges() else ""
        tried = "; ".join(f"{choice}: {score_text(tuning.mean(choice))}" for choice in sorted(tuning.trials))
        tqdm.write(f"{data.name}, {method}: {tuning.chosen}{edge}. Validation NLL: {tried}")
        return tuning.chosen

    def compare(self, name: str) -> None:
        """Everything on one data set."""
        options = self.options
        data = options.load(name).to(self.device)
        store = store_for(options.out, data, fresh=options.fresh)
        self.tasks[name], self.finals[name] = data.tasks, {}
        planned = [options.steps(data.num_data, options.planned_epochs(method)) for method in options.method]
        self.bar.total = (self.bar.total or 0) + sum(planned)
        for method in options.method:
            choice = self.tune(method, data, store)
            self.finals[name][method] = [
                self.run(method, choice, options.settings.epochs, seed, data, store, test=True)
                for seed in options.seed_list()
            ]
