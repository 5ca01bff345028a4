"""The options of `compare.py`."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from experiments.compare.corruptions import check_images
from experiments.harness.methods import one_of
from experiments.harness.options import at_least_one, not_negative, parse, refuse_changed
from experiments.harness.runs.measures import CONVERGENCE_DRAWS
from experiments.harness.runs.methods import METHODS, Setting, candidates
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

#: What some presets tune, written down before their first run. Every method has the same number of settings: 4 rates,
#: 1, 2, 5, 10, … around its own, and two values of each of two more things (a chain: T and burn-in; an optimizer's
#: snapshots: weight decay and burn-in; a moving average: weight decay alone); 8 of the combinations, each rate twice;
#: then 2 more near the best. The lowest mean validation NLL of the tuning seeds is chosen, and no setting with a run
#: that diverged. At the larger budget the best 2 again and 2 more. Final seeds are 60 to 65, of the tuning 1060 to
#: 1062, both unseen.
_LADDER: dict[str, Any] = dict(
    sampler=(
        *("AdaptedWhitenedSGHMC", "AdaptedL2E", "L2E", "WhitenedSGHMC"),
        *("ShampooAverage", "MuonAverage", "SOAPEMA"),
    ),
    values=("temperature=1,0.1", "burn_in=0.5,0.8", "weight_decay=0", "momentum_decay=0.1"),
    **dict(tries=8, grid=4, extensions=2, keep=2, tune_seeds=3, seed=60, seeds=6),
)
LADDERS = {
    "cifar10_ladder": _LADDER,
    # A run takes ten times as long: 3 rates, both temperatures once or twice, no further settings.
    "resnet_ladder": _LADDER | dict(tries=4, grid=3, extensions=0),
}


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
    # Values that are tuned beside the learning rate, such as temperature=1,0.1 weight_decay=0 burn_in=0.5,0.8.
    values: tuple[str, ...] = ()
    # So many test images under the 15 corruptions × 5 severities of CIFAR-10-C, made by this project's own code.
    corruptions: int = 0
    # Take them from the published CIFAR-10-C (CIFAR-100-C), unpacked in the folder of the data files.
    corruption_files: bool = False
    # Share of the weights with cR̂ < 1.1 between the halves of each final chain, layer by layer.
    convergence: bool = False
    # The names of the options that stand on the command line.
    given: tyro.conf.Suppress[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "grid", "tries", "tune_seeds", "keep")
        not_negative(self, "extensions", "corruptions")
        if self.convergence and (count := self.settings.num_samples) < CONVERGENCE_DRAWS:
            raise ValueError(f"convergence needs num_samples of at least {CONVERGENCE_DRAWS}, got {count}")
        if not self.corruptions:
            why = "says which images --corruptions takes, which is not given"
            refuse_changed(self, "corruption_files", why=why)
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
        is given, or has another value than its usual one, that one alone.

        Raises:
            ValueError: one cannot be read, or is out of range.
        """
        found: dict[str, tuple[float, ...]] = dict(VALUES)
        for name in VALUES:
            single = getattr(self.settings, name, None)
            if single is not None and (name in self.given or single != getattr(self._usual(), name)):
                found[name] = (single,)
        for text in self.values:
            name, _, values = text.partition("=")
            name = name.strip().replace("-", "_")
            if name not in (*VALUES, *MORE_VALUES):
                names = ", ".join((*VALUES, *MORE_VALUES))
                raise ValueError(f"values must be NAME=VALUE,VALUE,… with one of {names} as NAME, got {text!r}")
            found[name] = tuple(dict.fromkeys(_number(text, each) for each in values.split(",")))
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

    def tries_at(self, budget: int, data: ImageData, method: str) -> int:
        """Settings that a method tries at a budget."""
        if METHODS[method].as_it_comes:
            return 1
        first = budget == self.all_budgets(data)[0]
        return (self.tries if first else min(self.tries, self.keep)) + self.extensions

    def candidates(self, method: str, data: ImageData, budget: int | None = None) -> list[Setting]:
        """The settings that a method tries at the smallest budget, before the further ones; as it comes at this one."""
        steps = self.all_budgets(data)[0] if budget is None else budget
        rate = METHODS[method].rate_at(replace(self.settings, steps=steps), data.num_data)
        return candidates(METHODS[method], self.tries, self.grid, self.alternatives(data), rate)

    def tuning_seeds(self) -> range:
        """Seeds of the tuning's runs."""
        return range(TUNING_SEEDS + self.seed, TUNING_SEEDS + self.seed + self.tune_seeds)

    def load(self) -> tuple[ImageData, dict[str, ImageData]]:
        """The data on their device, and the out-of-distribution images that are asked for; raises whatever is wrong
        with the options before anything is trained."""
        data, ood = self.load_on_device(self.settings.ood)
        if not len(data.val_y):
            raise ValueError(f"tuning needs validation images, which {self.settings.dataset} lacks")
        if self.corruptions:
            check_images(data)
        if self.corruption_files:
            find_corrupted(self.settings.dataset, self.data)
        for budget in self.all_budgets(data):
            for name in self.sampler:
                method = METHODS[name]
                for also in dict.fromkeys(setting.also for setting in self.candidates(name, data)):
                    own: dict[str, Any] = dict(also)
                    settings = replace(self.settings, steps=budget, **own)
                    validate_run(method, settings, method.rate(settings), data)
        return data, ood


def parse_compare(arguments: Sequence[str] | None, description: str | None = None) -> CompareOptions:
    """The options of `compare.py`; those of the preset, if one is named, are the defaults of the others."""
    presets = {
        name: CompareOptions(settings=settings, budgets=budgets, preset=name, **LADDERS.get(name, {}))
        for name, (settings, budgets) in PRESETS.items()
    }
    words = sys.argv[1:] if arguments is None else arguments
    given = tuple(word[2:].partition("=")[0].replace("-", "_") for word in words if word.startswith("--"))
    return replace(parse(arguments, CompareOptions(), presets, description), given=given)


def _number(text: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"values={text!r}: {value!r} must be a number that is not negative")
    return number
