"""Evolution strategies: the gradient of a meta-loss from loss values alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base import validation
from meta_tasks.estimators.base import Estimator
from meta_tasks.estimators.evaluator import Evaluator
from meta_tasks.estimators.jobs import Job, JobResult
from meta_tasks.estimators.perturbations import perturbation
from meta_tasks.estimators.shaping import Shaping
from meta_tasks.inner_loop.schedule import Horizon
from meta_tasks.objectives import objective_named
from meta_tasks.random_streams import generator
from meta_tasks.rules.base import SamplerRule
from meta_tasks.tasks.family import TaskFamily

__all__ = ["AntitheticES", "EvolutionStrategies"]


class EvolutionStrategies(Estimator):
    """Antithetic evolution strategies: gradients from loss values alone.

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
        self,
        sigma: float,
        pairs: int,
        horizon: Horizon,
        *,
        pairs_per_task: int = 1,
        shaping: Shaping | None = None,
        learned: int | None = None,
    ) -> None:
        validation.positive("sigma", sigma)
        validation.whole("pairs", pairs)
        validation.whole("pairs_per_task", pairs_per_task)
        if pairs < 1 or pairs_per_task < 1 or pairs % pairs_per_task:
            raise ValueError(f"pairs must be a positive multiple of pairs_per_task={pairs_per_task}, got {pairs}")
        self.sigma, self.pairs, self.pairs_per_task, self.horizon = sigma, pairs, pairs_per_task, horizon
        if learned is not None:
            validation.whole("learned", learned)
        self.shaping, self.learned = shaping or Shaping(), learned

    def specification(self) -> dict[str, Any]:
        chosen = {
            "estimator": self.name,
            "sigma": self.sigma,
            "pairs": self.pairs,
            "pairs_per_task": self.pairs_per_task,
            "shaping": self.shaping.kind,
            "limit": self.shaping.limit,
            "horizon": self.horizon.specification(),
        }
        # Left out where it says nothing: runs that began before there was the choice go on.
        return chosen if self.learned is None else {**chosen, "learned": self.learned}

    def evaluator(self, family: TaskFamily, rule: SamplerRule, objective: str, seed: int) -> Evaluator:
        if objective_named(objective).reads_states:
            raise ValueError(f"objective={objective!r} has no value, only a gradient; {self.name} needs values")
        if not family.has_validation:
            raise ValueError(f"family {family.name!r} has no validation data, whose loss {self.name} needs")
        if self.learned is not None and self.learned > rule.num_weights:
            raise ValueError(f"learned={self.learned} exceeds the {rule.num_weights} meta-parameters of {rule.name}")
        if self.horizon.cycles > 1 and not rule.begins_anew:
            raise ValueError(f"cycles={self.horizon.cycles}: {rule.name} has no cycles, L2E and ScaleAdaptedL2E have")
        cycle = self.horizon.shortest // self.horizon.cycles
        if self.horizon.cycles > 1 and rule.least_burn_in and not round(cycle * self.horizon.burn_in):
            raise ValueError(
                f"burn_in={self.horizon.burn_in} leaves {rule.name} no step to explore in at the start of each of "
                f"cycles={self.horizon.cycles}, of {cycle} steps"
            )
        if self.horizon.cycles == 1 and self.horizon.burn_in < rule.least_burn_in:
            raise ValueError(
                f"burn_in={self.horizon.burn_in} is less than {rule.least_burn_in}, the share of a run in which "
                f"{rule.name} explores: those states are no samples"
            )
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
