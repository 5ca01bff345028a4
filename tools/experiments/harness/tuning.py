"""Tuning by a validation score: grids of the series 1, 2, 5, 10, …, extended where the best rate lies at an edge."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

STEPS = (1, 2, 5)


@dataclass(frozen=True, order=True)
class Choice:
    """Setting of a method: its learning rate (0: its own), and in subclasses what else an experiment tunes."""

    lr: float

    def __str__(self) -> str:
        return f"lr {self.lr:g}" if self.lr else ""


C = TypeVar("C", bound=Choice)
R = TypeVar("R")


def series(index: int) -> float:
    """The values 1, 2, 5, 10, 20, … by their number; factors of 2 and 2.5."""
    decade, place = divmod(index, len(STEPS))
    return float(f"{STEPS[place] * 10.0**decade:.6g}")


def nearest(lr: float) -> int:
    """Number of the value in the series that lies nearest to lr, by ratio."""
    first = math.floor(math.log10(lr)) * len(STEPS)
    return min(range(first, first + len(STEPS) + 1), key=lambda index: abs(math.log(series(index) / lr)))


def rates_around(lr: float, count: int) -> list[float]:
    """``count`` values of the series around a method's own learning rate; a single one is that itself."""
    if count == 1:
        return [lr]
    centre = nearest(lr)
    return [series(centre + offset) for offset in range(-(count // 2), count - count // 2)]


def next_of_series(rates: Sequence[float], side: int) -> float:
    """The value of the series beyond the smallest (side −1) or the largest (side 1) of some rates."""
    return series(nearest(min(rates) if side < 0 else max(rates)) + side)


def next_by_ratio(rates: Sequence[float], side: int) -> float:
    """The same for a grid of its own: as far beyond the outermost rate as that is from its neighbour."""
    first, second = sorted(rates, reverse=side > 0)[:2]
    return float(f"{first * first / second:.3g}")


@dataclass
class Tuning(Generic[C, R]):
    """Trials of one method.

    Attributes:
        score: the validation score of one run, the lower the better; None for a run that diverged.
        trials: of each choice its runs, one a tuning seed.
        fixed: a choice that is given, so that none is tried.
    """

    score: Callable[[R], float | None]
    trials: dict[C, list[R]] = field(default_factory=dict)
    fixed: C | None = None

    def mean(self, choice: C) -> float | None:
        """Mean score of a choice over its seeds; None if one of them diverged."""
        return mean_score(self.score(run) for run in self.trials[choice])

    def ranked(self) -> list[C]:
        """The choices from the lowest score to the highest, without those that diverged."""
        scores = {choice: score for choice in self.trials if (score := self.mean(choice)) is not None}
        return sorted(scores, key=scores.__getitem__)

    @property
    def chosen(self) -> C:
        """The choice with the lowest score."""
        if self.fixed is not None:
            return self.fixed
        if not (order := self.ranked()):
            raise RuntimeError(f"it diverged at every learning rate of {sorted({c.lr for c in self.trials})}")
        return order[0]

    @property
    def at_edge(self) -> bool:
        """True if several rates were tried, and the best is the smallest or the largest of them."""
        return len({choice.lr for choice in self.trials}) > 1 and bool(self.edges())

    def edges(self) -> list[int]:
        """−1 if no learning rate below the chosen one was tried, 1 if none above it."""
        rates, lr = [choice.lr for choice in self.trials], self.chosen.lr
        return [side for side, edge in ((-1, min(rates)), (1, max(rates))) if lr == edge]


def tune(
    candidates: Iterable[C],
    run: Callable[[C, int], R],
    score: Callable[[R], float | None],
    *,
    seeds: Iterable[int] = (0,),
    extensions: int = 0,
    beyond: Callable[[Sequence[float], int], float] = next_of_series,
    propose: Callable[[Tuning[C, R]], C] | None = None,
    tries: int = 0,
) -> Tuning[C, R]:
    """Run every candidate on every tuning seed.

    Where the best learning rate is the smallest or the largest tried, the next one on that side is tried as well, with
    what else the best has, so that no method loses by its grid; at most ``extensions`` times.
    """
    tuning, numbers = Tuning[C, R](score), list(seeds)

    def attempt(choice: C) -> None:
        tuning.trials[choice] = [run(choice, seed) for seed in numbers]

    for choice in candidates:
        attempt(choice)
    best = tuning.chosen
    for _ in range(extensions):
        rates = [choice.lr for choice in tuning.trials]
        for side in tuning.edges():
            attempt(replace(best, lr=beyond(rates, side)))
        best = tuning.chosen
    while propose is not None and len(tuning.trials) < tries:
        attempt(propose(tuning))
    return tuning


def mean_score(scores: Iterable[float | None]) -> float | None:
    """Mean of scores; None if one of them is None, that of a run that diverged."""
    values = list(scores)
    good = [value for value in values if value is not None]
    return sum(good) / len(good) if good and len(good) == len(values) else None


def score_text(score: float | None) -> str:
    """A score as text."""
    return "diverged" if score is None else f"{score:.4f}"
