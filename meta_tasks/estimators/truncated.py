"""`TruncatedBackpropagation`: the meta-gradient by back-propagation through a sampler's last steps.

Source: Gong, Li and Hernández-Lobato, "Meta-Learning for Stochastic Gradient MCMC", ICLR 2019.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base import validation
from meta_tasks.estimators.base import Episodes, Estimator, Evaluator, Job, JobResult, Unrolls
from meta_tasks.inner_loop.chains import ChainUnroll
from meta_tasks.inner_loop.schedule import Horizon, require_horizon
from meta_tasks.objectives import SteinKL, objective_named
from meta_tasks.random_streams import derive_seed, generator
from meta_tasks.rules.base import SamplerRule
from meta_tasks.tasks.family import TaskFamily

__all__ = ["ChainEvaluator", "TruncatedBackpropagation"]

#: Ensembles of states that each slot keeps to start inner loops from.
ENSEMBLES = 10


class TruncatedBackpropagation(Estimator):
    """Meta-gradient ∂KL[q_t‖p]/∂φ by back-propagation through the last W steps of parallel chains.

    Each slot (a task with its C chains) runs one inner loop after the other, W steps an iteration; what lies before a
    window is a constant to it. A new inner loop starts at states that an earlier one reached, with probability ½ once
    there are some (replay), so that training sees late states as often as early ones.

    Args:
        horizon: of an inner loop, rounded up to whole windows. Its samples are those of the in-chain loss.
        window: W, steps that gradients flow through.
        every: steps between two terms of the cross-chain loss.
        chains: C.
        slots: tasks at a time.
        curvature: whether gradients flow through ∇Ũ, at the price of a second gradient a step.

    Raises:
        ValueError: an argument is out of range.
    """

    name = "truncated_backpropagation"

    def __init__(
        self,
        horizon: Horizon,
        window: int = 15,
        *,
        every: int = 3,
        chains: int = 20,
        slots: int = 1,
        curvature: bool = True,
    ) -> None:
        for name, value in (("chains", chains), ("slots", slots)):
            validation.integer(name, value)
        require_horizon(horizon)
        validation.integer("window", window)
        validation.integer("every", every)
        validation.truth("curvature", curvature)
        if window > horizon.shortest:
            raise ValueError(f"window must lie in [1, {horizon.shortest}], the shortest horizon, got {window}")
        if not 1 <= every <= window:
            raise ValueError(f"every must lie in [1, {window}], the window, got {every}")
        self.horizon, self.window, self.every, self.chains, self.slots = horizon, window, every, chains, slots
        self.curvature = curvature
        self._episodes = Episodes(horizon, window, slots, horizon.schedule_of)

    def specification(self) -> dict[str, Any]:
        settings = {name: getattr(self, name) for name in ("window", "every", "chains", "slots", "curvature")}
        constants = {"replay": ENSEMBLES, "ridge": SteinKL.ridge, "in_chain": 1.0}  # as in the checkpoints there are
        return {"estimator": self.name, **settings, **constants, "horizon": self.horizon.specification()}

    def jobs(self, seed: int, iteration: int) -> list[Job]:
        return [self._episodes.job(seed, iteration, slot, 1) for slot in range(self.slots)]

    def evaluator(self, family: TaskFamily, rule: SamplerRule, objective: str, seed: int) -> ChainEvaluator:
        if not objective_named(objective).reads_states:
            raise ValueError(f"objective must be 'stein_kl' for {self.name}, got {objective!r}")
        if rule.num_weights == 0 or rule.needs_hessian:
            raise ValueError(f"{self.name} cannot train the rule {rule.name!r}")
        return ChainEvaluator(family, rule, objective, 0.0, seed, settings=self)

    def estimate(self, seed: int, jobs: Sequence[Job], results: Sequence[JobResult], size: int) -> Tensor:
        gradients = [result.gradient.double() for result in results if result.gradient is not None]
        return torch.stack(gradients).mean(0) if gradients else torch.zeros(size, dtype=torch.float64)


@dataclass
class ChainEvaluator(Evaluator):
    """Runs windows of chains; keeps the chains, and the states to start from, between iterations."""

    settings: TruncatedBackpropagation = field(kw_only=True)
    #: slot → ensembles, each the parameters (C, d) and then the state.
    pools: dict[int, list[list[Tensor]]] = field(default_factory=dict)

    def _advanced(self, unrolls: Unrolls, job: Job, weights: Tensor) -> tuple[Tensor, Tensor | None]:
        ((_, unroll),) = unrolls
        assert isinstance(unroll, ChainUnroll)
        unroll.advance(weights.expand(len(unroll.parameter), -1), job.skip)
        gradient = unroll.backpropagate(weights, job.steps, self.settings.every)
        unroll.output_scales.clear()  # of the skipped steps alone
        losses = unroll.losses()
        # Chains that have run away are nothing to start from.
        if not unroll.num_failed and losses.mean() <= unroll.initial_loss:
            self._remember(job, unroll)
        return losses.nanmean().view(1, 1), gradient

    def make(self, job: Job) -> Unrolls:
        settings = self.settings
        task = self.family.task(self.seed, *job.tasks[0])
        seeds = [derive_seed(self.seed, *job.pairs[0], chain, "chain") for chain in range(settings.chains)]
        unroll = ChainUnroll(
            task,
            self.rule,
            job.schedule,
            seeds,
            curve_every=max(1, job.schedule.steps // self.curve_points),
            curvature=settings.curvature,
        )
        return [([0], unroll)]

    def _unrolls(self, job: Job) -> Unrolls:
        ((tasks, unroll),) = super()._unrolls(job)
        assert isinstance(unroll, ChainUnroll)
        if job.start and job.slot is not None:
            fits = [e for e in self.pools.get(job.slot, []) if e[0].shape == unroll.parameter.shape]
            stream = generator(self.seed, "replay", *job.pairs[0])
            if fits and torch.rand((), generator=stream) < 0.5:
                parameter, *state = fits[int(torch.randint(len(fits), (), generator=stream))]
                unroll.replace_states(parameter, tuple(state))
        return [(tasks, unroll)]

    def _remember(self, job: Job, unroll: ChainUnroll) -> None:
        """Keep the states of a window's end; once there are enough, in place of others at random."""
        assert job.slot is not None
        pool = self.pools.setdefault(job.slot, [])
        entry = [tensor.clone() for tensor in (unroll.parameter, *unroll.state)]
        if len(pool) < ENSEMBLES:
            pool.append(entry)
        else:
            stream = generator(self.seed, "replay", *job.pairs[0], unroll.step)
            pool[int(torch.randint(len(pool), (), generator=stream))] = entry

    def state_dict(self) -> dict[int, Any]:
        unrolls, slots = super().state_dict(), sorted({*self.slots, *self.pools})
        # Copies, since a pool goes on while a state waits to be written.
        return {
            slot: {"unroll": unrolls.get(slot), "pool": [list(entry) for entry in self.pools.get(slot, [])]}
            for slot in slots
        }

    def load_state_dict(self, state: dict[int, Any], jobs: Sequence[Job]) -> None:
        slots = {job.slot for job in jobs}
        super().load_state_dict(
            {slot: kept["unroll"] for slot, kept in state.items() if kept["unroll"] is not None}, jobs
        )
        # Lists of their own: the state may be shared with whoever holds it.
        self.pools = {slot: [list(entry) for entry in kept["pool"]] for slot, kept in state.items() if slot in slots}
