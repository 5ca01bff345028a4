"""The options of `compare.py`."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro

from experiments.compare.corruptions import check_images
from experiments.compare.presets import PRESETS
from experiments.harness.devices import prepare_torch
from experiments.harness.options import (
    DataOptions,
    DeviceOptions,
    RunOptions,
    at_least,
    names_once,
    not_negative,
    one_of,
    parse,
    positive,
    refuse_changed,
)
from experiments.harness.runs.measures import CONVERGENCE_DRAWS, HALVES
from experiments.harness.runs.methods import METHODS, Row, RunMethod
from experiments.harness.runs.settings import Settings
from experiments.harness.runs.training import validate_run
from experiments.harness.runs.trials import Setting, candidates
from learned_samplers.base.validation import one_of as check_one_of
from meta_tasks.datasets import ImageData
from meta_tasks.datasets.files import read_npy

#: Names of rows; the help text has them once, not in the place of a metavariable.
ROW_NAMES = dict.fromkeys((*METHODS, *(name for preset in PRESETS.values() for name in preset.rows)))
RowName = Annotated[str, one_of(ROW_NAMES, metavar="METHOD")]
TUNING_SEEDS = 1000  # the first seed of the tuning, with --seed 0
#: Values that are tried beside learning rates. Of weight decays that of the posterior's mode, λ/N, is among them: the
#: mode of a deep network with a narrow prior can be useless where its posterior is not.
VALUES = {
    "momentum_decay": (0.05, 0.1, 0.3),
    "temperature": (1.0, 0.1, 0.01),
    "exploration_ratio": (0.5, 0.8, 0.9),
    "weight_decay": (0.0, 5e-4),
}
#: Those of which several values are tried on request alone.
MORE_VALUES = ("burn_in", "final_lr")


@dataclass(frozen=True)
class CompareOptions(DeviceOptions, DataOptions, RunOptions):
    """Compare samplers at equal gradient evaluations, each tuned on validation data, at one or several budgets."""

    # Data, network, posterior and budget.
    settings: Annotated[Settings, tyro.conf.OmitArgPrefixes] = field(default_factory=Settings)
    # Predictive probabilities to compare with, HMC's for instance: an .npy file (test images, classes).
    reference: Path | None = None
    # A preset of data, network, posterior and budgets; options given beside it override its values.
    preset: Annotated[str, one_of(PRESETS)] | None = None
    # Rows to compare, in the order of the tables: methods, or rows of the preset.
    sampler: tuple[RowName, ...] = (
        *("SGHMC", "PSGLD", "CyclicalSGMCMC", "AdaptedSGHMC", "L2E", "AdaptedWhitenedSGHMC"),
        *("SGD", "Adam", "AdamEMA", "AdamAverage", "SWAG", "IVON", "DeepEnsemble", "AdamEnsemble"),
    )
    # Budgets in minibatch gradients, each for every run; by default that of --steps or --epochs.
    budgets: tuple[int, ...] | None = None
    tune_budget: int | None = None  # Budget at which settings are tuned, in the place of the budgets themselves.
    # Score of a setting: the validation NLL, or the distance of its test predictions from HMC's, a row before the
    # others; what a sampler can reach, and no comparison of methods that a user could tune.
    tune_by: Literal["validation", "distance"] = "validation"
    # Learning rate of every method, for the mean loss (the start for HMC): nothing is tuned then.
    lr: float | None = None
    # Tune nothing: every method has its own learning rate, or --lr, and the settings that are given.
    given_settings: bool = False
    tries: int = 18  # Settings that every method tries at the smallest budget.
    grid: int = 6  # Learning rates among them, 1, 2, 5, 10, … around the method's own.
    extensions: int = 4  # Further settings, near the best ones, that every method tries at each budget.
    keep: int = 4  # The best settings of a budget that are tried again at the next larger one.
    tune_seeds: int = 3  # Seeds over which the validation NLL of a setting is averaged; not those of the final runs.
    # Values that are tuned beside the learning rate, such as temperature=1,0.1 weight_decay=0 burn_in=0.5,0.8.
    values: tuple[str, ...] = ()
    # So many test images under the 15 corruptions × 5 severities of CIFAR-10-C, made by this project's own code.
    corruptions: int = 0
    # Share of the weights with cR̂ < 1.1 between the halves of each final chain, layer by layer.
    convergence: bool = False
    # Folder of the states of unfinished runs; by default in --out. A run goes on from its state.
    state: Path | None = None
    state_minutes: float = 5.0  # Minutes between two states of a run.
    minutes: float | None = None  # Stop after so many minutes, with a table of the runs that are finished.
    jobs: int = 1  # Runs side by side, each a process.
    # The names of the options that stand on the command line.
    on_command_line: tyro.conf.Suppress[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        names_once(self, "sampler")
        if (steps := self.settings.steps) is not None:
            refuse_changed(self.settings, "epochs", why=f"and steps={steps} exclude each other")
        learned = {name.lower(): name for name, method in METHODS.items() if method.network is not None}
        for name in self.settings.named_networks:
            check_one_of("networks", name, learned)
        at_least(1, self, "grid", "tries", "tune_seeds", "keep", "tune_budget", "jobs")
        not_negative(self, "extensions", "corruptions", "minutes")
        positive(self, "lr", "state_minutes")
        for name in self.sampler:
            self.row(name)
        if self.convergence and (count := self.settings.num_samples) < CONVERGENCE_DRAWS:
            raise ValueError(f"convergence needs num_samples of at least {CONVERGENCE_DRAWS}, got {count}")
        self.tried()
        if self.budgets is not None:
            if not self.budgets or min(self.budgets) < 1 or len(set(self.budgets)) < len(self.budgets):
                raise ValueError(f"budgets must be positive and differ, got {self.budgets}")
            for name, its in (("steps", None), ("epochs", self._usual().epochs)):
                if (value := getattr(self.settings, name)) != its:
                    raise ValueError(f"budgets={self.budgets} and {name}={value} exclude each other")

    def _usual(self) -> Settings:
        return Settings() if self.preset is None else PRESETS[self.preset.lower()].settings

    def row(self, name: str) -> Row:
        """The row of that name: one of the preset, or a method."""
        rows = {} if self.preset is None else PRESETS[self.preset.lower()].rows
        if name in rows:
            return rows[name]
        if name not in METHODS:
            raise ValueError(f"sampler: {name!r} is a row of another preset")
        return Row(name)

    def method(self, name: str) -> RunMethod:
        """The method of a row."""
        return METHODS[self.row(name).method]

    def run_settings(self, name: str, budget: int) -> Settings:
        """Settings of a row's runs at a budget, but for what is tuned."""
        return self.row(name).settings(replace(self.settings, steps=budget))

    def is_given(self, name: str) -> bool:
        """True if nothing of a row is tuned."""
        row = self.row(name)
        fixed = row.lr is not None or row.rate_of or self.method(name).as_it_comes
        return bool(self.given_settings or self.lr is not None or fixed)

    def tried(self) -> dict[str, tuple[float, ...]]:
        """Values that are tried beside learning rates, by name: those of --values, or else the usual ones; of an option
        that is given, or has another value than its usual one, that one alone.
        """
        tried: dict[str, tuple[float, ...]] = dict(VALUES)
        for name in VALUES:
            single = getattr(self.settings, name, None)
            if single is not None and (name in self.on_command_line or single != getattr(self._usual(), name)):
                tried[name] = (single,)
        for text in self.values:
            name, _, values = text.partition("=")
            name = name.strip().replace("-", "_")
            if name not in (*VALUES, *MORE_VALUES):
                names = ", ".join((*VALUES, *MORE_VALUES))
                raise ValueError(f"values must be NAME=VALUE,VALUE,… with one of {names} as NAME, got {text!r}")
            tried[name] = tuple(dict.fromkeys(_number(text, value) for value in values.split(",")))
            for number in tried[name] if name != "weight_decay" else ():
                change: Any = {name: number}
                replace(self.settings, **change)  # refuses a value out of range
        return tried

    def folder(self) -> Path:
        """Folder of the results."""
        dataset = Path(self.settings.dataset.removeprefix("npz:")).stem
        model = self.settings.model.rpartition(":")[2]
        return self.out or Path("runs") / f"compare_{self.preset or f'{dataset}_{model}'}"

    def all_budgets(self, data: ImageData) -> list[int]:
        """From the smallest to the largest."""
        return sorted(self.budgets or (self.settings.budget(data.num_data),))

    def alternatives(self, data: ImageData) -> dict[str, tuple[float, ...]]:
        """Values of the settings that `RunMethod.tunes` names."""
        values = self.tried()
        precisions = [self.settings.prior_precision]
        for precision in (decay * data.num_data for decay in values.pop("weight_decay")):
            # One that is as good as another would be tried in the place of another setting.
            if all(abs(precision - tried) > 0.1 * tried for tried in precisions):
                precisions.append(precision)
        return {**values, "prior_precision": tuple(dict.fromkeys(precisions))}

    def tries_at(self, budget: int, data: ImageData, name: str) -> int:
        """Settings that a row tries at a budget."""
        if self.is_given(name):
            return 0
        first = budget == (self.tune_budget or self.all_budgets(data)[0])
        if self.tune_budget is not None and not first:
            return 0
        return (self.tries if first else min(self.tries, self.keep)) + self.extensions

    def candidates(self, name: str, data: ImageData, budget: int) -> list[Setting]:
        """Settings that a row tries at a budget, before the further ones."""
        method, row = self.method(name), self.row(name)
        rate = method.rate(self.run_settings(name, budget), data.num_data)
        if self.is_given(name):
            return [Setting(next(lr for lr in (row.lr, self.lr, rate) if lr is not None))]
        return candidates(method, self.tries, self.grid, self.alternatives(data), rate)

    def seeds_of(self, name: str) -> range:
        """Seeds of a row's final runs."""
        return self.seed_list(self.row(name).seeds)

    def tuning_seeds(self) -> range:
        """Seeds of the tuning's runs."""
        if self.tune_by == "distance":
            return self.seed_list()
        return range(TUNING_SEEDS + self.seed, TUNING_SEEDS + self.seed + self.tune_seeds)

    def load(self) -> tuple[ImageData, dict[str, ImageData]]:
        """The data and the out-of-distribution images on their device, for which torch is set up."""
        device = prepare_torch(self.device, self.threads)
        data = self.settings.load_data(self.data)
        return data.to(device), {
            name: images.to(device) for name, images in self.settings.load_ood(self.data, data).items()
        }

    def load_reference(self, data: ImageData) -> torch.Tensor | None:
        """The probabilities of --reference, in double precision; None without it."""
        if self.reference is None:
            return None
        try:
            probabilities = torch.from_numpy(read_npy(self.reference)).double()
        except (ValueError, TypeError) as error:
            raise ValueError(f"reference {self.reference} is no .npy file of numbers: {error}") from error
        wanted = (len(data.test_y), data.num_classes)
        if (shape := tuple(probabilities.shape)) != wanted:
            raise ValueError(f"reference {self.reference} must have the shape {wanted}, got {shape}")
        # Half precision is how large predictions are handed round.
        sums = probabilities.sum(1, keepdim=True)
        if not probabilities.isfinite().all() or probabilities.min() < 0 or (sums - 1).abs().max() > 0.01:
            raise ValueError(f"reference {self.reference} must hold probabilities that sum to 1 for each image")
        return (probabilities / sums)[HALVES[self.settings.half]]

    def describe(self, data: ImageData) -> str:
        """Data, network and posterior, for the terminal."""
        settings = self.settings
        return (
            f"{settings.dataset}: {data.num_data} training, {len(data.val_y)} validation, {len(data.test_y)} test "
            f"examples of {'×'.join(map(str, data.input_shape))}, {data.num_classes} classes\n{settings.model}, "
            f"T={settings.temperature:g}, prior precision {settings.prior_precision:g}, {data.train_x.device}"
        )

    def planned_gradients(self, data: ImageData) -> int:
        """Gradients of all runs."""
        budgets = self.all_budgets(data)
        tuned = budgets if self.tune_budget is None else [*budgets, self.tune_budget]
        trials = sum(b * self.tries_at(b, data, name) * self.tune_seeds for b in tuned for name in self.sampler)
        return trials + sum(b * self.row(n).times * len(self.seeds_of(n)) for b in budgets for n in self.sampler)

    def check(self, data: ImageData) -> None:
        """Raise whatever is wrong with the options before anything is trained."""
        if not len(data.val_y) and not all(map(self.is_given, self.sampler)):
            raise ValueError(f"tuning needs validation images, which {self.settings.dataset} lacks")
        if self.corruptions:
            check_images(data)
        for budget in self.all_budgets(data):
            for name in self.sampler:
                settings = self.candidates(name, data, budget)
                for setting in {setting.also: setting for setting in settings}.values():
                    tuned: dict[str, Any] = dict(setting.also)
                    validate_run(self.method(name), replace(self.run_settings(name, budget), **tuned), setting.lr, data)


def parse_compare(arguments: Sequence[str] | None, description: str | None = None) -> CompareOptions:
    """The options of `compare.py`; those of the preset, if one is named, are the defaults of the others."""
    presets = {}
    for name, preset in PRESETS.items():
        rows: Any = {"sampler": tuple(preset.rows)} if preset.rows else {}
        values: Any = {**rows, **preset.options}
        presets[name] = CompareOptions(settings=preset.settings, budgets=preset.budgets, preset=name, **values)
    words = sys.argv[1:] if arguments is None else arguments
    names = tuple(word[2:].partition("=")[0].replace("-", "_") for word in words if word.startswith("--"))
    return replace(parse(arguments, CompareOptions(), presets, description), on_command_line=names)


def _number(text: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"values={text!r}: {value!r} must be a number that is not negative")
    return number
