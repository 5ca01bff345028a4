"""The options of `compare.py`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from experiments.compare.corruptions import check_images
from experiments.harness.methods import one_of
from experiments.harness.options import at_least_one, not_negative, parse, refuse_changed
from experiments.harness.runs.measures import CONVERGENCE_DRAWS
from experiments.harness.runs.methods import METHODS, RunMethod, Setting, candidates
from experiments.harness.runs.options import MethodName, NetworkOptions
from experiments.harness.runs.presets import PRESETS
from experiments.harness.runs.settings import Settings
from experiments.harness.runs.training import validate_run
from meta_tasks.datasets import ImageData, find_corrupted

TUNING_SEEDS = 1000  # the first seed of the tuning, with --seed 0
#: What is tried beside learning rates. Of weight decays that of the posterior's mode, λ/N, is always among them: the
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
class CompareOptions(NetworkOptions):
    """Compare samplers at equal gradient evaluations, each tuned on validation data, at one or several budgets."""

    # A preset of data, network, posterior and budgets; options given beside it override its values.
    preset: Annotated[str, one_of(PRESETS)] | None = None
    # Methods to compare, in the order of the tables.
    sampler: tuple[MethodName, ...] = (
        *("SGHMC", "BAOA", "PSGLD", "CyclicalSGMCMC", "AdaptedSGHMC", "L2E", "AdaptedWhitenedSGHMC"),
        *("SGD", "Adam", "AdamEMA", "AdamAverage", "SWAG", "IVON", "DeepEnsemble", "AdamEnsemble"),
    )
    # Budgets in minibatch gradients, each for every run; by default that of --steps or --epochs.
    budgets: tuple[int, ...] | None = None
    # Settings that every method tries at the smallest budget.
    tries: int = 18
    # Learning rates among them, 1, 2, 5, 10, … around the method's own.
    grid: int = 6
    # Further settings, near the best ones, that every method tries at each budget.
    extensions: int = 4
    # The best settings of a budget that are tried again at the next larger one.
    keep: int = 4
    # Seeds over which the validation NLL of a setting is averaged; not those of the final runs.
    tune_seeds: int = 3
    # Values that are tuned beside the learning rate, such as temperature=1,.1 weight_decay=0 burn_in=.5,.8.
    values: tuple[str, ...] = ()
    # Settings to try in the place of a balanced choice, such as SGHMC:lr=.05,temperature=1 SGD:lr=.1,weight_decay=0;
    # with one of each method and --extensions 0 nothing is tuned.
    given: tuple[str, ...] = ()
    # Tune and stop, as validation.md, before anything looks at test images.
    tune_only: bool = False
    # Do a few steps of every method, say what all runs will cost, and stop.
    dry_run: bool = False
    # Run every method once more, with as many gradients as the first one's seconds allow.
    equal_time: bool = False
    # So many test images under the 15 corruptions × 5 severities of CIFAR-10-C, made by this project's own code.
    corruptions: int = 0
    # Take them from the published CIFAR-10-C (CIFAR-100-C), unpacked in the folder of the data files.
    corruption_files: bool = False
    # Share of the weights with cR̂ < 1.1 between the halves of each final chain, layer by layer.
    convergence: bool = False
    # Draw the test error on the plane through three samples of each method's first seed.
    plane: bool = False
    # Times that a run's curves get the validation scores of its current weights.
    validations: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "grid", "tries", "tune_seeds", "keep", "validations")
        not_negative(self, "extensions", "corruptions")
        for name, least in {"convergence": CONVERGENCE_DRAWS, "plane": 3}.items():
            if getattr(self, name) and self.settings.num_samples < least:
                raise ValueError(f"{name} needs num_samples of at least {least}, got {self.settings.num_samples}")
        count_given(self.given, self.sampler)
        if self.tune_only and self.nothing_to_tune():
            raise ValueError("tune_only=True leaves nothing to do where one setting is taken over as it is")
        if not self.corruptions:
            why = "says which images --corruptions takes, which is not given"
            refuse_changed(self, "corruption_files", why=why)
        if self.given:
            refuse_changed(self, "tries", "grid", why="is of a balanced choice of settings, and given names them")
        self.tried()
        if self.budgets is not None:
            if not self.budgets or min(self.budgets) < 1 or len(set(self.budgets)) < len(self.budgets):
                raise ValueError(f"budgets must be positive and differ, got {self.budgets}")
            for name, its in (("steps", None), ("epochs", self._usual().epochs)):
                if (value := getattr(self.settings, name)) != its:
                    raise ValueError(f"budgets={self.budgets} and {name}={value} exclude each other")

    def _usual(self) -> Settings:
        return Settings() if self.preset is None else PRESETS[self.preset.lower()][0]

    def tried(self) -> dict[str, tuple[float, ...]]:
        """What is tried beside learning rates, by name: the values of --values, or else the usual ones; where an option
        has another value than its usual one, that one alone.

        Raises:
            ValueError: one cannot be read, or is out of range.
        """
        found: dict[str, tuple[float, ...]] = dict(VALUES)
        for name in VALUES:
            single = getattr(self.settings, name, None)
            if single is not None and single != getattr(self._usual(), name):
                found[name] = (single,)
        for text in self.values:
            name, _, values = text.partition("=")
            name = name.strip().replace("-", "_")
            if name not in (*VALUES, *MORE_VALUES):
                names = ", ".join((*VALUES, *MORE_VALUES))
                raise ValueError(f"values must be NAME=VALUE,VALUE,… with one of {names} as NAME, got {text!r}")
            found[name] = tuple(dict.fromkeys(_number("values", text, each) for each in values.split(",")))
            for number in found[name] if name != "weight_decay" else ():
                given: Any = {name: number}
                replace(self.settings, **given)  # which refuses what is out of range
        return found

    def folder(self) -> Path:
        return self.out or Path("runs") / f"compare_{self.preset or super().folder().name}"

    def all_budgets(self, data: ImageData) -> list[int]:
        """From the smallest to the largest."""
        return sorted(self.budgets or (self.settings.budget(data.num_data),))

    def alternatives(self, data: ImageData) -> dict[str, tuple[float, ...]]:
        """What is tried beside learning rates: values of the settings that `RunMethod.tunes` names."""
        found = self.tried()
        precisions = [self.settings.prior_precision]
        for precision in (decay * data.num_data for decay in found.pop("weight_decay")):
            # One that is as good as another would be tried in the place of another setting.
            if all(abs(precision - other) > 0.1 * other for other in precisions):
                precisions.append(precision)
        return {**found, "prior_precision": tuple(dict.fromkeys(precisions))}

    def tries_at(self, budget: int, data: ImageData) -> int:
        """Settings that every method tries at a budget."""
        first = count_given(self.given, self.sampler) or self.tries
        return (first if budget == self.all_budgets(data)[0] else min(first, self.keep)) + self.extensions

    def nothing_to_tune(self) -> bool:
        """Whether every method takes over one setting as it is."""
        return count_given(self.given, self.sampler) == 1 and not self.extensions

    def settings_note(self) -> str:
        """The sentence of a table on where its settings come from."""
        if self.nothing_to_tune():
            return "Nothing was tuned here: the settings are those that the command names (--given)."
        source = "those that the command names (--given)" if self.given else "a balanced choice"
        return (
            f"Settings are tuned by validation NLL: {source} at the smallest budget, its best again at the larger ones."
        )

    def candidates(self, method: str, data: ImageData) -> list[Setting]:
        """The settings that a method tries at the smallest budget, before the further ones."""
        if self.given:
            return given_settings(self.given, METHODS[method], data.num_data)
        rate = METHODS[method].rate(self.settings)
        return candidates(METHODS[method], self.tries, self.grid, self.alternatives(data), rate)

    def tuning_seeds(self) -> range:
        """Seeds of the tuning's runs."""
        return range(TUNING_SEEDS + self.seed, TUNING_SEEDS + self.seed + self.tune_seeds)

    def load(self) -> tuple[ImageData, dict[str, ImageData]]:
        """The data on their device, `validated`, and the out-of-distribution images that are asked for."""
        data, ood = self.load_on_device(self.settings.ood)
        return self.validated(data), ood

    def validated(self, data: ImageData) -> ImageData:
        """The same data; raises whatever is wrong with the options before anything is trained."""
        if not len(data.val_y):
            raise ValueError(f"tuning needs validation images, which {self.settings.dataset} lacks")
        if self.corruptions:
            check_images(data)
        if self.corruption_files:
            find_corrupted(self.settings.dataset, self.data)
        if self.plane and not data.num_classes:
            raise ValueError("plane shows the share of wrong classes, and this is a regression")
        for budget in self.all_budgets(data):
            for name in self.sampler:
                method = METHODS[name]
                for also in dict.fromkeys(setting.also for setting in self.candidates(name, data)):
                    own: dict[str, Any] = dict(also)
                    settings = replace(self.settings, steps=budget, **own)
                    validate_run(method, settings, method.rate(settings), data)
        return data


def parse_compare(arguments: Sequence[str] | None, description: str | None = None) -> CompareOptions:
    """The options of `compare.py`; those of the preset, if one is named, are the defaults of the others."""
    presets = {
        name: CompareOptions(settings=settings, budgets=budgets, preset=name)
        for name, (settings, budgets) in PRESETS.items()
    }
    return parse(arguments, CompareOptions(), presets, description)


def count_given(given: Sequence[str], methods: Sequence[str]) -> int:
    """How many settings are given for each of the methods; 0 where none is given at all.

    Raises:
        ValueError: a method has more of them than another, or is not compared.
    """
    counts = dict.fromkeys(methods, 0)
    for text in given:
        if (name := _method_of(text).name) not in counts:
            raise ValueError(f"given={text!r} is for {name}, which is not among sampler={', '.join(methods)}")
        counts[name] += 1
    if len(set(counts.values())) > 1:
        each = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise ValueError(f"given must hold equally many settings of every method, got {each}")
    return max(counts.values())


def given_settings(given: Sequence[str], method: RunMethod, num_data: int) -> list[Setting]:
    """The settings that are given for one method, in their order, of texts such as ``SGHMC:lr=0.05,temperature=1``.

    The names are ``lr``, which must be there, and what `RunMethod.tunes` has, with ``weight_decay`` for
    ``prior_precision`` over N = ``num_data``; what is not named is as the comparison's options say.

    Raises:
        ValueError: one of them cannot be read, or stands twice.
    """
    found: list[Setting] = []
    for text in (text for text in given if _method_of(text) is method):
        numbers: dict[str, float] = {}
        for pair in text.partition(":")[2].split(","):
            name, _, value = (part.strip() for part in pair.partition("="))
            name, number = name.replace("-", "_"), _number("given", text, value)
            if name == "weight_decay":
                name, number = "prior_precision", number * num_data
            if name in numbers or name not in ("lr", *method.tunes):
                raise ValueError(f"given={text!r}: {method.name} has lr, {', '.join(method.tunes)}, each once")
            numbers[name] = number
        if not numbers.get("lr"):
            raise ValueError(f"given={text!r} must have a positive lr")
        also = tuple((name, numbers[name]) for name in method.tunes if name in numbers)
        if (setting := Setting(numbers["lr"], also)) in found:
            raise ValueError(f"given={text!r} stands twice")
        found.append(setting)
    return found


def _method_of(text: str) -> RunMethod:
    known: Mapping[str, RunMethod] = {each.lower(): method for each, method in METHODS.items()}
    if (name := text.partition(":")[0].strip().lower()) not in known:
        raise ValueError(f"given={text!r} must begin with a method and a colon, as SGHMC:lr=0.05,temperature=1 does")
    return known[name]


def _number(argument: str, text: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"{argument}={text!r}: {value!r} must be a number that is not negative")
    return number
