"""Noise-reuse evolution strategies: an update after a window of the inner loop instead of after all of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from meta_tasks.estimators.evolution import EvolutionStrategies
from meta_tasks.estimators.jobs import Episodes, Job, check_one_cycle
from meta_tasks.estimators.shaping import Shaping
from meta_tasks.inner_loop.schedule import Horizon, Schedule

__all__ = ["NoiseReuseES"]


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
            rounded up to whole windows, its burn-in not used.

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
        shaping: Shaping | None = None,
        learned: int | None = None,
    ) -> None:
        horizon = replace(horizon, burn_in=0.0)
        super().__init__(sigma, pairs, horizon, pairs_per_task=pairs_per_task, shaping=shaping, learned=learned)
        check_one_cycle(horizon)
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
            horizon,
            window,
            pairs // pairs_per_task,
            lambda steps: Schedule(steps, 0, min(window, max(1, steps // horizon.samples))),
        )

    def specification(self) -> dict[str, Any]:
        return {**super().specification(), "window": self.window}

    def upgraded(self, saved: dict[str, Any]) -> dict[str, Any]:
        # Checkpoints of before have a burn-in, which was not used then either.
        horizon = saved.get("horizon", {})
        return {**saved, "horizon": {**horizon, "burn_in": 0.0}} if "burn_in" in horizon else saved

    def jobs(self, seed: int, iteration: int) -> list[Job]:
        slots = range(self.pairs // self.pairs_per_task)
        return [self._episodes.job(seed, iteration, slot, self.pairs_per_task) for slot in slots]
