"""Estimators of the gradient of a meta-loss: what they all share, and evolution strategies.

An estimator says what there is to do (`jobs`) and who does it (`evaluator`), and makes a gradient of the results
(`estimate`). Evolution strategies try perturbations of the meta-parameters and turn the losses of antithetic pairs into
a gradient; a perturbation is made from its name, (seed, episode, pair), wherever it is needed: only losses travel
between processes. Truncated back-propagation is in `meta_tasks.estimators.truncated`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from meta_tasks.inner_loop.schedule import Horizon, Schedule
from meta_tasks.objectives.objectives import objective_named
from meta_tasks.random_streams import generator

if TYPE_CHECKING:
    from meta_tasks.rules.base import SamplerRule
    from meta_tasks.tasks.family import TaskFamily
    from meta_tasks.training.workers import Evaluator, JobResult

__all__ = [
    "AntitheticES",
    "Episodes",
    "Estimator",
    "EvolutionStrategies",
    "Job",
    "NoiseReuseES",
    "Shaping",
    "antithetic_members",
    "perturbation",
]


@dataclass(frozen=True)
class Job:
    """What one process does in one go: antithetic pairs of one task, over some steps of their inner loop.

    Args:
        task: keys that draw the task, after the seed.
        pairs: for each pair its name, an episode and a number, which draws its perturbation and random numbers.
        schedule: of the whole inner loop.
        steps: how many of its steps to take now.
        slot: which kept unroll to continue; None starts one and drops it.
        start: whether the slot's unroll begins here.
        skip: steps to take first, from which no loss is read.
    """

    task: tuple[int | str, ...]
    pairs: tuple[tuple[int, int], ...]
    schedule: Schedule
    steps: int
    slot: int | None = None
    start: bool = True
    skip: int = 0


def perturbation(seed: int, pair: tuple[int, int], sigma: float, size: int, learned: int | None = None) -> Tensor:
    """η ~ N(0, σ²I) of a pair, (size,); zero but for its last ``learned`` components if that is a number."""
    held = 0 if learned is None else size - learned
    drawn = sigma * torch.randn(size - held, generator=generator(seed, *pair, "perturbation"))
    return torch.nn.functional.pad(drawn, (held, 0))


def antithetic_members(
    weights: Tensor, seed: int, pairs: Sequence[tuple[int, int]], sigma: float, learned: int | None = None
) -> Tensor:
    """φ + η and φ − η of each pair in turn, (2·pairs, n)."""
    steps = [perturbation(seed, pair, sigma, len(weights), learned) for pair in pairs]
    return torch.stack([member for step in steps for member in (weights + step, weights - step)])


@dataclass(frozen=True)
class Shaping:
    """What becomes of the loss differences L₊ − L₋ of the pairs before they weigh the perturbations.

    Args:
        kind: "none"; "mean" divides each difference by the pair's mean loss, so that hard tasks do not drown easy
            ones; "clip" cuts it to [−limit, limit]; "sign" keeps its sign; "rank" takes the difference of the centred
            ranks, in [−½, ½], that the losses have among all of this step. Only "none" leaves the estimator unbiased.
        limit: bound on the size of the shaped difference; needed for "clip", allowed for "none" and "mean".

    Raises:
        ValueError: an unknown kind, or a limit that is not positive, missing, or without effect.
    """

    kind: str = "mean"
    limit: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("none", "mean", "clip", "sign", "rank"):
            raise ValueError(f"shaping must be one of 'none', 'mean', 'clip', 'sign', 'rank', got {self.kind!r}")
        if self.limit is not None and self.limit <= 0:
            raise ValueError(f"limit of the shaping must be positive, got {self.limit}")
        if (self.kind == "clip") != (self.limit is not None) and self.kind not in ("none", "mean"):
            raise ValueError(f"limit={self.limit} does not go with shaping {self.kind!r}")

    def __call__(self, losses: Tensor) -> Tensor:
        """Shaped differences (pairs,) of finite losses (pairs, 2)."""
        difference = losses[:, 0] - losses[:, 1]
        if self.kind == "mean":
            difference = difference / losses.mean(1).clamp_min(1e-8)
        elif self.kind == "sign":
            difference = difference.sign()
        elif self.kind == "rank":
            difference = _centred_ranks(losses)
        return difference if self.limit is None else difference.clamp(-self.limit, self.limit)


def _centred_ranks(losses: Tensor) -> Tensor:
    flat = losses.flatten()
    # Equal losses share the mean of their ranks, so that an ineffective perturbation counts nothing.
    below = (flat[:, None] > flat[None, :]).to(flat).sum(1)
    below += 0.5 * ((flat[:, None] == flat[None, :]).to(flat).sum(1) - 1)
    ranks = (below / max(len(flat) - 1, 1) - 0.5).view_as(losses)
    return ranks[:, 0] - ranks[:, 1]


class Estimator:
    """Base class.

    Attributes:
        horizon: how long inner loops are.
    """

    name: str
    horizon: Horizon

    def specification(self) -> dict[str, Any]:
        """Plain values for checkpoints and weight cards."""
        raise NotImplementedError

    def jobs(self, seed: int, iteration: int) -> list[Job]:
        """The jobs of iteration 0, 1, …"""
        raise NotImplementedError

    def evaluator(self, family: TaskFamily, rule: SamplerRule, objective: str, seed: int) -> Evaluator:
        """What runs the jobs, in whichever process.

        Raises:
            ValueError: the estimator cannot use that objective or rule.
        """
        raise NotImplementedError

    def estimate(self, seed: int, jobs: Sequence[Job], results: Sequence[JobResult], size: int) -> Tensor:
        """The gradient (n,), in double precision, that the jobs' results give; zero if none counts."""
        raise NotImplementedError


class EvolutionStrategies(Estimator):
    """Antithetic evolution strategies: gradients of loss values alone.

    Args:
        sigma: σ > 0, standard deviation of a perturbation.
        pairs: antithetic pairs in one estimate.
        horizon: how long inner loops are.
        pairs_per_task: pairs that share a task (and run as one batch); divides ``pairs``.
        shaping: of the loss differences.
        learned: number of meta-parameters, the last ones, that are perturbed and so learned; None for all. The variance
            of the estimate grows with their number.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self, sigma: float, pairs: int, horizon: Horizon, *, pairs_per_task: int = 1, shaping: Shaping | None = None,
        learned: int | None = None,
    ) -> None:  # fmt: skip
        if not sigma > 0:
            raise ValueError(f"sigma must be positive, got {sigma}")
        if pairs < 1 or pairs_per_task < 1 or pairs % pairs_per_task:
            raise ValueError(f"pairs must be a positive multiple of pairs_per_task={pairs_per_task}, got {pairs}")
        self.sigma, self.pairs, self.pairs_per_task, self.horizon = sigma, pairs, pairs_per_task, horizon
        if learned is not None and learned < 1:
            raise ValueError(f"learned must be at least 1, or None for all, got {learned}")
        self.shaping, self.learned = shaping or Shaping(), learned

    def specification(self) -> dict[str, Any]:
        chosen = {
            "estimator": self.name, "sigma": self.sigma, "pairs": self.pairs, "pairs_per_task": self.pairs_per_task,
            "shaping": self.shaping.kind, "limit": self.shaping.limit, "horizon": vars(self.horizon).copy(),
        }  # fmt: skip
        # Left out where it says nothing: runs that began before there was the choice go on.
        return chosen if self.learned is None else {**chosen, "learned": self.learned}

    def evaluator(self, family: TaskFamily, rule: SamplerRule, objective: str, seed: int) -> Evaluator:
        from meta_tasks.training.workers import Evaluator  # which knows jobs, and so imports this module

        if objective_named(objective).reads_states:
            raise ValueError(f"objective={objective!r} has no value, only a gradient; {self.name} needs values")
        if self.learned is not None and self.learned > rule.num_weights:
            raise ValueError(f"learned={self.learned} exceeds the {rule.num_weights} meta-parameters of {rule.name}")
        return Evaluator(family, rule, objective, self.sigma, seed, learned=self.learned)

    def estimate(self, seed: int, jobs: Sequence[Job], results: Sequence[JobResult], size: int) -> Tensor:
        names = [name for job in jobs for name in job.pairs]
        return self.gradient(seed, names, torch.cat([result.losses for result in results]), size)

    def gradient(self, seed: int, names: Sequence[tuple[int, int]], losses: Tensor, size: int) -> Tensor:
        """Antithetic ES (Eq. 10 of the L2E paper), with N pairs and shaped differences:

            ∇L(φ) ≈ (1/N) Σ_i [L(φ + η_i) − L(φ − η_i)] / (2σ²) · η_i

        A pair with a loss that is not finite does not count.

        Args:
            seed: of the run.
            names: of the pairs.
            losses: (pairs, 2), of φ + η and φ − η.
            size: n.

        Returns:
            The gradient (n,), in double precision; zero if no pair counts.
        """
        counts = losses.isfinite().all(1)
        total = torch.zeros(size, dtype=torch.float64)
        if not bool(counts.any()):
            return total
        shaped = self.shaping(losses[counts].double())
        for name, difference in zip((n for n, use in zip(names, counts.tolist()) if use), shaped):
            step = perturbation(seed, name, self.sigma, size, self.learned)
            total += difference / (2 * self.sigma**2) * step.double()
        return total / len(shaped)

    def _names(self, episode: int, first: int) -> tuple[tuple[int, int], ...]:
        return tuple((episode, first + i) for i in range(self.pairs_per_task))


class AntitheticES(EvolutionStrategies):
    """Antithetic evolution strategies over whole inner loops, fresh tasks and perturbations at every iteration.

    The horizon is drawn once an iteration, so that its jobs take about as long as each other.
    """

    name = "antithetic_es"

    def jobs(self, seed: int, iteration: int) -> list[Job]:
        schedule = self.horizon.schedule(generator(seed, iteration, "horizon"))
        return [
            Job((iteration, first), self._names(iteration, first), schedule, schedule.steps)
            for first in range(0, self.pairs, self.pairs_per_task)
        ]


class Episodes:
    """Inner loops in windows: each slot runs one episode after the other, W steps an iteration.

    Slots start out of step, so that an iteration sees all parts of an episode.

    Args:
        horizon: of an episode, rounded up to whole windows.
        window: W.
        slots: how many.
        schedule: (steps of the episode) → its schedule.
    """

    def __init__(self, horizon: Horizon, window: int, slots: int, schedule: Callable[[int], Schedule]) -> None:
        self.horizon, self.window, self.slots, self.schedule = horizon, window, slots, schedule
        self._place: dict[tuple[int, int], tuple[int, int]] = {}

    def job(self, seed: int, iteration: int, slot: int, names_in_slot: int) -> Job:
        """What ``slot`` does in an iteration, for so many names, (episode, number) each."""
        # The place in the sequence of episodes follows from the iteration alone; `_place` only saves counting again.
        episode, first = self._place.get((seed, slot), (0, 0))
        if iteration < first:
            episode, first = 0, 0
        done = iteration - first
        while True:
            schedule = self._drawn(seed, slot, episode)
            windows = schedule.steps // self.window
            skipped = slot * windows // self.slots if episode == 0 else 0
            if done < windows - skipped:
                break
            done -= windows - skipped
            episode += 1
        self._place[seed, slot] = (episode, iteration - done)
        names = tuple((episode, slot * names_in_slot + i) for i in range(names_in_slot))
        skip = skipped * self.window if done == 0 else 0
        return Job(("episode", episode, slot), names, schedule, self.window, slot, done == 0, skip)

    def _drawn(self, seed: int, slot: int, episode: int) -> Schedule:
        drawn = self.horizon.schedule(generator(seed, "episode", episode, slot, "horizon"))
        return self.schedule(-(-drawn.steps // self.window) * self.window)


class NoiseReuseES(EvolutionStrategies):
    """Noise-reuse evolution strategies (Li et al., "Variance-Reduced Gradient Estimation via Noise-Reuse in Online
    Evolution Strategies", NeurIPS 2023) with a running meta-loss.

    Each slot (a task with its pairs) keeps its unrolls and its perturbation for a whole episode, the inner loop; an
    iteration advances every slot by a window of W steps and reads the meta-loss of all states collected so far in the
    episode. With φ held fixed, the mean of a pair's estimates over an episode is the antithetic ES estimate of the mean
    over windows of the running loss, and an update costs W steps instead of a whole inner loop. Slots start out of
    step, so that an iteration sees all parts of an episode.

    Args:
        window: W, steps in an iteration.
        sigma, pairs, horizon, pairs_per_task, shaping, learned: as for every estimator; ``horizon`` is the episode's,
            rounded up to whole windows.

    Raises:
        ValueError: the window is longer than the shortest episode, or shorter than the thinning, so that some windows
            would collect nothing.
    """

    name = "noise_reuse_es"

    def __init__(
        self, sigma: float, pairs: int, horizon: Horizon, window: int, *, pairs_per_task: int = 1,
        shaping: Shaping | None = None, learned: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(sigma, pairs, horizon, pairs_per_task=pairs_per_task, shaping=shaping, learned=learned)
        if window < 1 or window > horizon.shortest:
            raise ValueError(f"window must lie in [1, {horizon.shortest}], the shortest horizon, got {window}")
        if horizon.longest // horizon.samples > window:
            raise ValueError(
                f"window={window} is shorter than the thinning of {horizon.longest // horizon.samples} steps of the "
                f"longest horizon ({horizon.longest} steps, {horizon.samples} samples): a window would collect nothing"
            )
        self.window = window
        # States count from the start: the running loss exists in every window. Thinning as the horizon has it.
        self._episodes = Episodes(
            horizon, window, pairs // pairs_per_task,
            lambda steps: Schedule(steps, 0, min(window, max(1, steps // horizon.samples))),
        )  # fmt: skip

    def specification(self) -> dict[str, Any]:
        return {**super().specification(), "window": self.window}

    def jobs(self, seed: int, iteration: int) -> list[Job]:
        slots = range(self.pairs // self.pairs_per_task)
        return [self._episodes.job(seed, iteration, slot, self.pairs_per_task) for slot in slots]
