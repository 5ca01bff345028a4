"""Evolution strategies: the gradient of a meta-loss from loss values alone, of whole inner loops or their windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base import validation
from meta_tasks.estimators.base import Episodes, Estimator, Evaluator, Job, JobResult, perturbation
from meta_tasks.inner_loop.schedule import Horizon, Schedule, require_horizon
from meta_tasks.objectives import objective_named
from meta_tasks.random_streams import generator
from meta_tasks.rules.base import SamplerRule
from meta_tasks.tasks.family import TaskFamily

__all__ = ["AntitheticES", "EvolutionStrategies", "NoiseReuseES", "Shaping"]


@dataclass(frozen=True)
class Shaping:
    """Transforms the loss differences L₊ − L₋ of the pairs before they weight the perturbations.

    Args:
        kind: "none"; "mean" divides each difference by the pair's mean |loss|, so that hard tasks do not drown easy
            ones (a density's loss may be negative). Only "none" without a limit leaves the estimator unbiased.
        limit: bound on the size of the shaped difference.

    Raises:
        ValueError: an unknown kind, or a limit that is not positive.
    """

    kind: str = "mean"
    limit: float | None = None

    def __post_init__(self) -> None:
        validation.one_of("shaping", self.kind, ("none", "mean"))
        if self.limit is not None:
            validation.positive("limit of the shaping", self.limit)

    def __call__(self, losses: Tensor) -> Tensor:
        """Shaped differences (pairs,) of finite losses (pairs, 2)."""
        difference = losses[:, 0] - losses[:, 1]
        if self.kind == "mean":
            difference = difference / losses.abs().mean(1).clamp_min(1e-8)
        return difference if self.limit is None else difference.clamp(-self.limit, self.limit)


class EvolutionStrategies(Estimator):
    """Antithetic evolution strategies: gradients from loss values alone.

    Args:
        sigma: σ > 0, standard deviation of a perturbation.
        pairs: antithetic pairs in one estimate.
        horizon: how long inner loops are.
        pairs_per_task: pairs that share a task (and run as one batch).
        tasks_per_job: tasks in one unit of work, for one process; members of tasks with one network run as one batch.
            ``pairs`` is a multiple of the product of both.
        shaping: of the loss differences.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        sigma: float,
        pairs: int,
        horizon: Horizon,
        *,
        pairs_per_task: int = 1,
        tasks_per_job: int = 1,
        shaping: Shaping | None = None,
    ) -> None:
        validation.positive("sigma", sigma)
        require_horizon(horizon)
        validation.integer("pairs", pairs)
        validation.integer("pairs_per_task", pairs_per_task)
        validation.integer("tasks_per_job", tasks_per_job)
        if pairs % (pairs_per_task * tasks_per_job):
            tasks = f" times tasks_per_job={tasks_per_job}" if tasks_per_job > 1 else ""
            raise ValueError(f"pairs must be a multiple of pairs_per_task={pairs_per_task}{tasks}, got {pairs}")
        self.sigma, self.pairs, self.pairs_per_task, self.horizon = sigma, pairs, pairs_per_task, horizon
        self.tasks_per_job, self.pairs_per_job = tasks_per_job, pairs_per_task * tasks_per_job
        self.shaping = shaping or Shaping()

    def specification(self) -> dict[str, Any]:
        return {
            "estimator": self.name,
            "sigma": self.sigma,
            "pairs": self.pairs,
            "pairs_per_task": self.pairs_per_task,
            **({"tasks_per_job": self.tasks_per_job} if self.tasks_per_job > 1 else {}),
            "shaping": self.shaping.kind,
            "limit": self.shaping.limit,
            "horizon": self.horizon.specification(),
        }

    def evaluator(self, family: TaskFamily, rule: SamplerRule, objective: str, seed: int) -> Evaluator:
        if objective_named(objective).reads_states:
            raise ValueError(f"objective={objective!r} has no value, only a gradient; {self.name} needs values")
        if not family.has_validation:
            raise ValueError(f"family {family.name!r} has no validation data, whose loss {self.name} needs")
        return Evaluator(family, rule, objective, self.sigma, seed)

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
            step = perturbation(seed, name, self.sigma, size)
            total += difference / (2 * self.sigma**2) * step.double()
        return total / len(shaped)


class AntitheticES(EvolutionStrategies):
    """Antithetic evolution strategies over whole inner loops, fresh tasks and perturbations at every iteration.

    The horizon is drawn once an iteration, so that its jobs take about as long as each other.
    """

    name = "antithetic_es"

    def jobs(self, seed: int, iteration: int) -> list[Job]:
        schedule = self.horizon.schedule(generator(seed, iteration, "horizon"))
        pairs = [(iteration, number) for number in range(self.pairs)]
        starts = range(0, self.pairs, self.pairs_per_job)
        parts = [tuple(pairs[start : start + self.pairs_per_job]) for start in starts]
        # A task has the name of its first pair.
        return [Job(part[:: self.pairs_per_task], part, schedule, schedule.steps) for part in parts]


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
        sigma, pairs, horizon, pairs_per_task, tasks_per_job, shaping: as for every estimator; ``horizon`` is the
            episode's, rounded up to whole windows, its burn-in not used. A job is a slot.

    Raises:
        ValueError: the window is longer than the shortest episode, or shorter than the thinning, so that some windows
            would collect nothing.
    """

    name = "noise_reuse_es"

    def __init__(
        self,
        sigma: float,
        pairs: int,
        horizon: Horizon,
        window: int,
        *,
        pairs_per_task: int = 1,
        tasks_per_job: int = 1,
        shaping: Shaping | None = None,
    ) -> None:
        require_horizon(horizon)
        horizon = replace(horizon, burn_in=0.0)
        parts = dict(pairs_per_task=pairs_per_task, tasks_per_job=tasks_per_job)
        super().__init__(sigma, pairs, horizon, **parts, shaping=shaping)
        validation.integer("window", window)
        if window > horizon.shortest:
            raise ValueError(f"window must lie in [1, {horizon.shortest}], the shortest horizon, got {window}")
        if horizon.longest // horizon.samples > window:
            raise ValueError(
                f"window={window} is shorter than the thinning of {horizon.longest // horizon.samples} steps of the "
                f"longest horizon ({horizon.longest} steps, {horizon.samples} samples): a window would collect nothing"
            )
        self.window = window
        # States count from the start: the running loss exists in every window. Thinning as the horizon has it.
        self._episodes = Episodes(
            horizon,
            window,
            pairs // self.pairs_per_job,
            lambda steps: Schedule(steps, 0, min(window, max(1, steps // horizon.samples))),
            tasks_per_job,
        )

    def specification(self) -> dict[str, Any]:
        return {**super().specification(), "window": self.window}

    def jobs(self, seed: int, iteration: int) -> list[Job]:
        return [self._episodes.job(seed, iteration, slot, self.pairs_per_job) for slot in range(self._episodes.slots)]
