"""The options of `multi_task.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from experiments.harness import options as common
from experiments.harness.methods import one_of
from experiments.harness.options import DataOptions, DeviceOptions, RunOptions, at_least_one, each_once, not_negative
from experiments.harness.tuning import Choice as Rate
from experiments.harness.tuning import rates_around
from experiments.multi_task.methods import ENERGIES, METHODS, Settings
from meta_tasks.datasets import MultiTaskData, load_celeba, load_overlaid


@dataclass(frozen=True, order=True)
class Choice(Rate):
    """What is tuned: the learning rate and the scale of the energies."""

    energy: str

    def __str__(self) -> str:
        return f"lr {self.lr:g}, {self.energy}"


@dataclass(frozen=True)
class TaskOptions(DeviceOptions, DataOptions, RunOptions):
    """Particle samplers on several tasks: ensemble accuracy, Brier score and calibration error of each task."""

    # A preset of all options; options given beside it override its values.
    preset: Literal["cpu", "paper", "celeba"] | None = None
    # Folder for the results.
    out: Path = Path("runs/multi_task")
    # Data, network and training.
    settings: Annotated[Settings, tyro.conf.OmitArgPrefixes] = field(default_factory=Settings)
    # Data sets, in the order of the tables.
    dataset: tuple[Literal["multi_fashion_mnist", "multi_mnist", "multi_fashion", "celeba"], ...] = (
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
    # Time a few steps of every method on random images, say what all runs will cost here, and stop.
    dry_run: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "grid", "tune_epochs")
        not_negative(self, "extensions")
        each_once(self, "dataset", "method", "energies")
        if self.settings.prior_precision > 0 and "mean_loss" in self.energies:
            raise ValueError("prior_precision would be N times stronger with mean_loss: give --energies posterior")
        if self.rates is not None and (not self.rates or min(self.rates) <= 0):
            raise ValueError(f"rates must be positive, got {self.rates}")
        if "celeba" in self.dataset and (both := [name for name in self.method if METHODS[name].two_tasks]):
            raise ValueError(f"method {', '.join(both)} has preferences for two tasks only, and cannot run on celeba")

    def choices(self, method: str) -> list[Choice]:
        """What is tried of a method; a single one is not tuned."""
        rates = rates_around(METHODS[method].lr, self.grid) if self.rates is None else self.rates
        energies = self.energies if METHODS[method].repels else self.energies[:1]
        return [Choice(lr, energy) for lr in rates for energy in energies]

    def load(self, name: str) -> MultiTaskData:
        """A data set with as many images as the settings say."""
        settings = self.settings
        limits: dict[str, Any] = {
            "limit": settings.train,
            "limit_validation": settings.validation,
            "limit_test": settings.test,
        }
        if name == "celeba":
            return load_celeba(self.data, attributes=settings.attributes, size=settings.size, **limits)
        return load_overlaid(name, self.data, size=settings.size, **limits)


def presets() -> dict[str, TaskOptions]:
    """The options that a preset stands for, by its name."""
    cpu = Settings(train=10_000, validation=2000, test=10_000, epochs=4, batch_size=32)
    celeba = Settings(size=64, train=40_000, network="resnet18", epochs=40, batch_size=256, halve_every=0.25)
    several: Any = tuple(name for name, method in METHODS.items() if not method.two_tasks)
    return {
        "cpu": TaskOptions(preset="cpu", settings=cpu),
        "paper": TaskOptions(
            preset="paper",
            settings=Settings(epochs=100, batch_size=256),
            rates=(1e-3,),
            energies=("mean_loss",),
            out=Path("runs/multi_task_paper"),
        ),
        "celeba": TaskOptions(
            preset="celeba",
            settings=celeba,
            dataset=("celeba",),
            method=several,
            rates=(1e-2, 1e-1, 1.0),
            tune_epochs=4,
            out=Path("runs/multi_task_celeba"),
        ),
    }


def parse(arguments: Sequence[str] | None, description: str | None = None) -> TaskOptions:
    """The options; those of the preset, if one is named, are the defaults of the others."""
    return common.parse(arguments, TaskOptions(), presets(), description)
