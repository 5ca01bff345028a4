"""Tuning by validation NLL: a grid at the smallest budget, its best settings again at larger ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from experiments.images.comparison import best
from experiments.images.methods import Method
from experiments.images.settings import Settings

STEPS = (1, 2, 5)


@dataclass(frozen=True, order=True)
class Setting:
    """What is tuned of a method: its learning rate, and that one of the others which `Method.tunes` names."""

    lr: float
    momentum_decay: float
    prior_precision: float

    def variant(self, method: Method) -> str:
        """What else than the learning rate was tuned, for the name of a run's files."""
        return "" if method.tunes is None else f"{method.tunes[0]}{getattr(self, method.tunes):g}"

    def also(self, method: Method, num_data: int) -> str:
        """The same for people: the momentum decay a, or an optimizer's weight decay λ/N on the mean loss."""
        if method.tunes == "momentum_decay":
            return f"a {self.momentum_decay:g}"
        return f"decay {self.prior_precision / num_data:.2g}" if method.tunes == "prior_precision" else ""


def series(index: int) -> float:
    """The values 1, 2, 5, 10, 20, … by their number; factors of 2 and 2.5."""
    decade, place = divmod(index, len(STEPS))
    return float(f"{STEPS[place] * 10.0**decade:.6g}")


def nearest(lr: float) -> int:
    """Number of the value in the series that lies nearest to lr, by ratio."""
    first = math.floor(math.log10(lr)) * len(STEPS)
    return min(range(first, first + len(STEPS) + 1), key=lambda index: abs(math.log(series(index) / lr)))


def grid(method: Method, count: int, settings: Settings, alternatives: Mapping[str, Sequence[float]]) -> list[Setting]:
    """`count` learning rates of the series around the method's own, each with every alternative of what it tunes."""
    centre = nearest(method.lr)
    rates = [series(centre + offset) for offset in range(-(count // 2), count - count // 2)]
    own = {"momentum_decay": settings.momentum_decay, "prior_precision": settings.prior_precision}
    others = [own] if method.tunes is None else [{**own, method.tunes: value} for value in alternatives[method.tunes]]
    return [Setting(lr, **other) for lr in rates for other in others]


def tune(
    candidates: Sequence[Setting], evaluate: Callable[[Setting], float | None], extensions: int
) -> dict[Setting, float | None]:
    """The validation NLL of every setting that was tried; None for one that diverged.

    When the best learning rate is the smallest or the largest tried, the next one of the series on that side is tried
    as well, with what else the best has, so that no method loses by its grid; at most `extensions` times.

    Raises:
        RuntimeError: every setting diverged.
    """
    scores = {setting: evaluate(setting) for setting in candidates}
    for extension in range(extensions + 1):
        chosen = best(scores)
        if chosen is None:
            raise RuntimeError(f"it diverged at every learning rate of {sorted({s.lr for s in scores})}")
        sides = at_edge(chosen, scores)
        if extension == extensions or not sides:
            break
        for side in sides:
            beyond = replace(chosen, lr=series(nearest(chosen.lr) + side))
            scores[beyond] = evaluate(beyond)
    return scores


def at_edge(chosen: Setting, tried: Sequence[Setting] | dict[Setting, float | None]) -> list[int]:
    """−1 if no smaller learning rate was tried, 1 if no larger one."""
    rates = [setting.lr for setting in tried]
    return [side for side, edge in ((-1, min(rates)), (1, max(rates))) if chosen.lr == edge]
