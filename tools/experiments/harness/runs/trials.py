"""Settings of a method that are tried: a balanced choice at first, then ever nearer to the best."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from experiments.harness.runs.methods import RunMethod
from experiments.harness.tuning import Choice, Tuning, next_of_series, rates_around

#: Names of the settings that are tuned in tables.
SHORT_NAMES = {
    "momentum_decay": "a",
    "temperature": "T",
    "exploration_ratio": "exploration",
    "burn_in": "burn-in",
    "final_lr": "final lr",
    "prior_precision": "λ",
}


@dataclass(frozen=True, order=True)
class Setting(Choice):
    """Setting of a method: its learning rate, and values of the settings that `RunMethod.tunes` names."""

    also: tuple[tuple[str, float], ...] = ()

    @property
    def variant(self) -> str:
        """Part of the name of a run's files that says what else than the learning rate was tuned."""
        return "_".join(f"{name[0]}{value:g}" for name, value in self.also)

    def __str__(self) -> str:
        return ", ".join([super().__str__(), *(f"{SHORT_NAMES[name]} {value:.3g}" for name, value in self.also)])


def candidates(
    method: RunMethod, tries: int, rates: int, alternatives: Mapping[str, Sequence[float]], lr: float | None = None
) -> list[Setting]:
    """`tries` settings, of learning rates around ``lr``, by default the method's own, and of what else it tunes.

    There are `rates` learning rates, or as many as it takes to have so many settings. Each gets as many of the
    combinations of the other values as all, up to one, and each combination stands equally often, up to one. A method
    that is taken as it comes has a single setting.
    """
    lr = method.lr if lr is None else lr
    if method.as_it_comes:
        return [Setting(lr)]
    tuned = [name for name in method.tunes if name in alternatives]
    combinations = [tuple(zip(tuned, values)) for values in product(*(alternatives[name] for name in tuned))]
    learning_rates = rates_around(lr, max(min(rates, tries), -(-tries // len(combinations))))
    # The nearest come first if not all rates get equally many.
    learning_rates.sort(key=lambda rate: abs(math.log(rate / lr)))
    order = random.Random(0)  # the same for every method
    uses = dict.fromkeys(combinations, 0)
    settings = []
    for number, rate in enumerate(learning_rates):
        share = tries // len(learning_rates) + (number < tries % len(learning_rates))
        for also in sorted(combinations, key=lambda values: (uses[values], order.random()))[:share]:
            uses[also] += 1
            settings.append(Setting(rate, also))
    return sorted(settings)


def proposal(tuning: Tuning[Setting, Any], alternatives: Mapping[str, Sequence[float]]) -> Setting:
    """Setting to try next: near the best so far, and not tried yet.

    First the learning rate beyond the edge of those tried, if the best is there; then the rates beside it; then another
    value of each other setting, nearest first; then ever more distant rates, of which there is no end.
    """
    best = tuning.chosen
    rates = [setting.lr for setting in tuning.trials]
    near = [replace(best, lr=next_of_series(rates, side)) for side in tuning.edges()]
    near += [replace(best, lr=next_of_series([best.lr], side)) for side in (-1, 1)]
    for index, (name, value) in enumerate(best.also):
        values = sorted({*alternatives.get(name, ()), value})
        place = values.index(value)
        for neighbour in sorted(values, key=lambda v: abs(values.index(v) - place)):
            near.append(replace(best, also=(*best.also[:index], (name, neighbour), *best.also[index + 1 :])))
    outer = [best.lr, best.lr]
    while all(setting in tuning.trials for setting in near):
        outer = [next_of_series([outer[0]], -1), next_of_series([outer[1]], 1)]
        near = [replace(best, lr=lr) for lr in outer]
    return next(setting for setting in near if setting not in tuning.trials)
