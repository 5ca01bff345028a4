"""When an inner loop collects states, and how long it runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from learned_samplers.base import validation
from learned_samplers.classical.cycles import cyclical_phase, done_in_cycle
from meta_tasks.random_streams import log_uniform

__all__ = ["Horizon", "Schedule", "require_horizon"]


@dataclass(frozen=True)
class Schedule:
    """An inner loop of ``steps`` steps that collects a state every ``thinning`` steps after ``burn_in``.

    States are collected after step burn_in + thinning, burn_in + 2·thinning, …, counting steps from 1. The paper's is
    ``Schedule(3000, 2500, 50)``. `cyclical` makes the other kind, which collects at the end of cycles.

    Raises:
        TypeError, ValueError: a number is not a whole one or out of range, or thinning is longer than the collection
            window steps − burn_in, so that nothing would be collected.
    """

    steps: int
    burn_in: int
    thinning: int
    cycle_length: int | None = None

    @classmethod
    def ending(cls, steps: int, window: int, samples: int) -> Schedule:
        """``samples`` states, evenly over the last ``window`` steps; the last one is that of the last step.

        Raises:
            ValueError: the window has fewer steps than samples.
        """
        if window < samples:
            raise ValueError(f"samples={samples} exceed the {window} steps that they are collected in, of {steps}")
        thinning = window // samples
        return cls(steps, steps - thinning * samples, thinning)

    @classmethod
    def cyclical(cls, steps: int, cycles: int, samples: int, exploration_ratio: float) -> Schedule:
        """``cycles`` cycles in ``steps`` steps; ``samples`` states in all, evenly over the cycles' sampling phases.

        Raises:
            ValueError: the samples do not divide among the cycles, or a sampling phase is shorter than its samples.
        """
        length = steps // max(cycles, 1)
        if cycles < 1 or samples % cycles:
            raise ValueError(f"samples={samples} do not divide among cycles={cycles}")
        phase = sum(cyclical_phase(step, length, exploration_ratio)[1] for step in range(1, length + 1))
        if phase < samples // cycles:
            raise ValueError(
                f"a sampling phase of {phase} steps (cycles of {length}, exploration_ratio={exploration_ratio}) is too "
                f"short for {samples // cycles} samples"
            )
        cycle = cls.ending(length, phase, samples // cycles)
        return replace(cycle, steps=length * cycles, cycle_length=length)

    def __post_init__(self) -> None:
        validation.integer("steps", self.steps)
        validation.integer("burn_in", self.burn_in, least=0)
        validation.integer("thinning", self.thinning)
        if self.burn_in >= self.steps:
            raise ValueError(f"burn_in={self.burn_in} leaves nothing of the {self.steps} steps to collect from")
        if self.thinning > self.steps - self.burn_in:
            raise ValueError(
                f"thinning={self.thinning} is longer than the collection window of {self.steps - self.burn_in} steps "
                f"(steps={self.steps}, burn_in={self.burn_in}): no state would be collected"
            )

    def collects(self, step: int) -> bool:
        """True if the state after ``step`` = 1, 2, … is collected."""
        step = done_in_cycle(step, self.cycle_length)
        return step > self.burn_in and (step - self.burn_in) % self.thinning == 0


@dataclass(frozen=True)
class Horizon:
    """Length of inner loops: ``shortest`` = ``longest`` steps, or log-uniform between them.

    Args:
        shortest, longest: steps.
        samples: K, states collected in a run.
        burn_in: share of the steps before the collection window, in [0, 1).

    Raises:
        TypeError, ValueError: an argument is out of range, or the collection window of the shortest run has fewer than
            K steps.
    """

    shortest: int
    longest: int
    samples: int = 10
    burn_in: float = 0.5

    def __post_init__(self) -> None:
        for name in ("shortest", "longest", "samples"):
            validation.integer(name, getattr(self, name))
        if self.longest < self.shortest:
            raise ValueError(f"horizon: longest={self.longest} is less than shortest={self.shortest}")
        validation.fraction("burn_in", self.burn_in, open_right=True)
        window = self.shortest - round(self.shortest * self.burn_in)
        if window < self.samples:
            raise ValueError(
                f"horizon: a run of {self.shortest} steps with burn_in={self.burn_in} has a collection window of "
                f"{window} steps, fewer than samples={self.samples}"
            )

    def specification(self) -> dict[str, Any]:
        """Plain values for checkpoints."""
        return vars(self).copy()

    def schedule(self, stream: torch.Generator) -> Schedule:
        """A schedule drawn from the distribution; its last collected state is that of its last step."""
        return self.schedule_of(round(log_uniform(self.shortest, self.longest, stream)))

    def schedule_of(self, steps: int) -> Schedule:
        """The schedule of a run of so many steps."""
        return Schedule.ending(steps, steps - round(steps * self.burn_in), self.samples)


def require_horizon(horizon: Any) -> None:
    """Raise TypeError unless this is a `Horizon`."""
    if not isinstance(horizon, Horizon):
        raise TypeError(f"horizon must be a Horizon, as Horizon(200, 200, samples=10), got {type(horizon).__name__}")
