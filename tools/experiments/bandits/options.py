"""The options of `bandits.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from experiments.bandits.posteriors import METHODS, Budget
from experiments.harness import options as common
from experiments.harness.methods import one_of
from experiments.harness.options import DataOptions, RunOptions, each_once

#: The wheel's radii δ by the problem's name.
WHEELS = {f"wheel_{delta}": delta for delta in (0.5, 0.7, 0.9, 0.95, 0.99)}
#: For each kind of problem by what rewards are divided before the network sees them, and the standard deviation of the
#: noise that the likelihood assumes, in units of the reward. The wheel's own, .01, is too small to learn from.
SCALES = {"mushroom": (10.0, 1.0), "wheel": (50.0, 5.0)}
#: What the f-SVGD poster reports after 40,000 rounds; it does not say for which wheel.
PUBLISHED = {
    "mushroom": {"FSVGD": "4.39 ± 0.39", "Bootstrap": "2.71 ± 0.22"},
    "wheel": {"FSVGD": "7.54 ± 0.41", "Bootstrap": "42.16 ± 7.80"},
}
PRESETS = {
    "cpu": Budget(),
    "paper": Budget(contexts=40_000, members=20, hidden=(100, 100)),
}


@dataclass(frozen=True)
class BanditOptions(DataOptions, RunOptions):
    """Thompson sampling on contextual bandits, with posteriors by f-SVGD, bootstrap and SGHMC.

    Raises:
        ValueError: an argument out of range, by name and value.
    """

    # A preset of all budget options; options given beside it override its values.
    preset: Annotated[str, one_of(PRESETS)] = "cpu"
    # Problems to play.
    problem: tuple[Annotated[str, one_of(("mushroom", *WHEELS))], ...] = ("mushroom", *WHEELS)
    # Posteriors for Thompson sampling, in any letter case.
    method: tuple[Annotated[str, one_of(METHODS)], ...] = tuple(METHODS)
    # Rounds, networks and training.
    budget: Annotated[Budget, tyro.conf.OmitArgPrefixes] = field(default_factory=Budget)
    # Pay the expectation of every reward, without its noise.
    expected_rewards: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        each_once(self, "problem", "method")

    def folder(self) -> Path:
        """Where the results go."""
        suffix = "_expected" if self.expected_rewards else ""
        return self.out or Path("runs") / f"bandits_{self.preset}{suffix}"


def parse(arguments: Sequence[str] | None, description: str | None = None) -> BanditOptions:
    """The options; those of the preset are the defaults of the others."""
    presets = {name: BanditOptions(preset=name, budget=budget) for name, budget in PRESETS.items()}
    return common.parse(arguments, BanditOptions(), presets, description)
