"""`Unroll`: P samplers run side by side on one task, and the meta-loss of the states that they collect.

The members' parameters lie in one buffer (P, d). Members come in groups (the antithetic pairs) that share initial
parameters, minibatches, validation images and noise: common random numbers, so that a difference within a pair comes
from the meta-parameters alone. Collected states are never kept; the meta-objective accumulates what it needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from meta_tasks.inner_loop.schedule import Schedule
from meta_tasks.objectives import Objective
from meta_tasks.random_streams import Minibatches, derive_seed, generator
from meta_tasks.rules.base import MemberStep, SamplerRule
from meta_tasks.tasks.stack import tasks_of_groups
from meta_tasks.tasks.task import Task

__all__ = ["Unroll", "hessian_product", "mapped", "on_device"]

# δ of the finite difference for Hessian-vector products: what `learned_samplers.KineticL2E` uses.
_PROBE = 1e-3
# Steps whose minibatches are laid out at a time: with many groups of small networks a call for each of them counts.
_STEPS_AHEAD = 32


def hessian_product(task: Task, parameter: Tensor, indices: Tensor, gradient: Tensor, direction: Tensor) -> Tensor:
    """∂²L/∂θ²·w of each member (P, d) by a finite difference along w, with a root mean square displacement of δ.

    ``gradient`` is that at ``parameter`` on the same minibatch ``indices``.
    """
    length = direction.square().mean(-1, keepdim=True).sqrt()
    # A direction of zeros (an untrained network) has the product zero and must not divide by its length.
    delta = _PROBE / torch.where(length > 0, length, torch.inf)
    moved = task.loss_and_gradient(parameter + delta * direction, indices)[1]
    return torch.where(delta > 0, (moved - gradient) / delta, 0.0)


class Unroll:
    """An inner loop: P = ``members_per_group`` × groups samplers ("members") run side by side on one task.

    `advance` takes steps, `losses` reads the meta-loss of each member so far. A member whose loss or parameters become
    non-finite stops counting: its loss and its curve are NaN from then on, `failed_at` says at which step it happened,
    and its rows of every buffer are set to zero.

    Args:
        task: the task of all members, or a `TaskStack` of as many members as there are here.
        rule: the sampler.
        objective: makes the meta-objective; its class, for one.
        schedule: how many steps, and after which ones a state is collected.
        seeds: one a group; fixes the group's initial parameters, minibatches, validation images and noise.
        members_per_group: 2 for antithetic pairs.
        curve_every: record the mean minibatch loss of each member over stretches of so many steps; 0 records nothing.

    Raises:
        ValueError: there is no member.
    """

    def __init__(
        self,
        task: Task,
        rule: SamplerRule,
        objective: Callable[[], Objective],
        schedule: Schedule,
        seeds: Sequence[int],
        *,
        members_per_group: int = 2,
        curve_every: int = 0,
    ) -> None:
        self.task, self.rule, self.schedule = task, rule, schedule
        self.objective = objective()
        self.seeds, self.members_per_group, self.curve_every = list(seeds), members_per_group, curve_every
        if not self.seeds or members_per_group < 1:
            raise ValueError(
                f"an unroll needs at least one member, got {len(self.seeds)} groups of {members_per_group}"
            )
        tasks = tasks_of_groups(task, len(self.seeds))
        initial = torch.stack([t.initial(derive_seed(seed, "initial")) for t, seed in zip(tasks, self.seeds)])
        self.parameter = initial.repeat_interleave(members_per_group, 0)
        self.state = rule.initial_state(self.parameter, self.task.segments)
        self.step = 0
        self.failed_at = [-1] * len(self.parameter)
        self.output_scales: dict[str, Tensor] = {}
        self._curve: list[Tensor] = []
        self._stretch = torch.zeros(len(self.parameter), device=task.device)
        self._minibatches = [
            Minibatches(derive_seed(seed, "minibatches"), t.hyperparameters.num_data, task.batch_size, task.device)
            for t, seed in zip(tasks, self.seeds)
        ]
        self._ahead: tuple[int, Tensor] = 0, torch.empty(len(self.seeds), 0, 0)
        self._noise = [generator(seed, "noise", device=task.device) for seed in self.seeds]
        held_out = zip(tasks, self.seeds)
        self._validation = torch.stack([self._draw_validation(t.num_held_out, seed) for t, seed in held_out])

    def _draw_validation(self, held_out: int, seed: int) -> Tensor:
        stream = generator(seed, "validation", device=self.task.device)
        return torch.randperm(held_out, generator=stream, device=self.task.device)[: self.task.num_validation]

    # ---------------------------------------------------------------- running

    @torch.no_grad()
    def advance(self, weights: Tensor, steps: int | None = None) -> None:
        """Take ``steps`` steps (None: all that remain) with meta-parameters ``weights`` (P, n).

        Raises:
            ValueError: ``weights`` has another shape, or fewer steps remain.
        """
        members, remaining = len(self.parameter), self.schedule.steps - self.step
        steps = remaining if steps is None else steps
        if tuple(weights.shape) != (members, self.rule.num_weights):
            raise ValueError(
                f"weights must be ({members}, {self.rule.num_weights}), a row for each member, "
                f"got {tuple(weights.shape)}"
            )
        if not 0 <= steps <= remaining:
            raise ValueError(f"steps={steps} of a run that has {remaining} left of {self.schedule.steps}")
        if not steps:
            return
        prepared = self.rule.prepare(weights.to(self.task.device))
        for taken in range(1, steps + 1):
            if taken == steps:
                before = self.parameter.clone(), tuple(tensor.clone() for tensor in self.state)
            gradient = self._step(prepared)
            if self.schedule.collects(self.step):
                self._collect()
        parameter, state = before
        task = self.task
        at = MemberStep(parameter, gradient, None, state, task.segments, task.hyperparameters, self.step - 1)
        self.output_scales = self.rule.output_scales(prepared, at)

    def _step(self, prepared: Any) -> Tensor:
        """Take one step of all members, maybe in place; returns the gradient before it."""
        indices = self._indices()
        loss, gradient = self._loss_and_gradient(indices)
        task, rule = self.task, self.rule
        at = MemberStep(
            self.parameter,
            gradient,
            self._draw_noise(),
            self.state,
            task.segments,
            task.hyperparameters,
            self.step,
            loss if rule.needs_loss else None,
            partial(hessian_product, task, self.parameter, indices, gradient) if rule.needs_hessian else None,
        )
        self.parameter, self.state = rule.update(prepared, at)
        self.step += 1
        self._record(loss.detach())
        self._retire(loss.detach())
        return gradient

    def _indices(self) -> Tensor:
        """The minibatch of the next step, (groups, batch size)."""
        first, ahead = self._ahead
        if not 0 <= self.step - first < ahead.shape[1]:
            first = self.step
            ahead = torch.stack([minibatches.rows(first, _STEPS_AHEAD) for minibatches in self._minibatches])
            self._ahead = first, ahead
        return ahead[:, self.step - first]

    def _loss_and_gradient(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self.task.loss_and_gradient(self.parameter, indices)

    def _collect(self) -> None:
        self.objective.add(*self.task.log_probabilities(self.parameter, self._validation))

    def _draw_noise(self) -> Tensor | None:
        if not self.rule.draws_noise(self.task.hyperparameters, self.step):
            return None
        shape = len(self._noise), self.members_per_group, self.task.segments.total
        noise = torch.empty(shape, device=self.task.device)
        for row, stream in zip(noise[:, 0].unbind(), self._noise):
            row.normal_(generator=stream)
        noise[:, 1:] = noise[:, :1]
        return noise.flatten(0, 1)

    def _record(self, loss: Tensor) -> None:
        if not self.curve_every:
            return
        self._stretch += loss / self.curve_every
        if self.step % self.curve_every == 0:
            self._curve.append(self._stretch.cpu())
            self._stretch = torch.zeros_like(self._stretch)

    def _retire(self, loss: Tensor) -> None:
        size = torch.linalg.vector_norm(self.parameter, dim=-1) + loss
        if math.isfinite(size.sum().item()):  # as good as always; on small networks every operation counts
            return
        finite = torch.isfinite(size)
        if bool(finite.all()):
            return
        for tensor in (self.parameter, *self.state):
            tensor[~finite] = 0.0
        for member in (~finite).nonzero().flatten().tolist():
            if self.failed_at[member] < 0:
                self.failed_at[member] = self.step

    # ---------------------------------------------------------------- results

    @property
    def finished(self) -> bool:
        """True if all steps of the schedule are done."""
        return self.step == self.schedule.steps

    @property
    def num_failed(self) -> int:
        """Number of members that have failed."""
        return sum(step >= 0 for step in self.failed_at)

    def losses(self) -> Tensor:
        """The meta-loss of each member so far (P,), on the CPU in double precision; NaN for a member that failed."""
        loss = self.objective.loss().double().cpu()
        failed = torch.tensor([step >= 0 for step in self.failed_at])
        return torch.where(failed | ~torch.isfinite(loss), torch.nan, loss)

    def curves(self) -> Tensor:
        """Mean minibatch loss of each member over each stretch of ``curve_every`` steps so far, (P, stretches).

        NaN from the stretch on in which a member failed.
        """
        if not self._curve:
            return torch.zeros(len(self.parameter), 0)
        failed_at, last = torch.tensor(self.failed_at)[:, None], self.curve_every * (1 + torch.arange(len(self._curve)))
        return torch.stack(self._curve, 1).masked_fill((failed_at >= 0) & (last >= failed_at), torch.nan)

    def state_dict(self) -> dict[str, Any]:
        """Everything that `load_state_dict` needs to continue bit for bit, loadable with ``weights_only=True``."""
        return {
            "step": self.step,
            "parameter": self.parameter.clone(),
            "state": [tensor.clone() for tensor in self.state],
            "failed_at": list(self.failed_at),
            "objective": self.objective.state_dict(),
            "noise": [stream.get_state() for stream in self._noise],
            "curve": list(self._curve),
            "stretch": self._stretch.clone(),
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken from an unroll with the same arguments.

        Raises:
            ValueError: the saved members are of another number or size.
        """
        if saved["parameter"].shape != self.parameter.shape or len(saved["state"]) != len(self.state):
            raise ValueError(
                f"the saved unroll has parameters {tuple(saved['parameter'].shape)}, "
                f"this one {tuple(self.parameter.shape)}"
            )
        device = self.task.device
        self.step, self.failed_at = saved["step"], list(saved["failed_at"])
        self.parameter = saved["parameter"].to(device, copy=True)
        self.state = tuple(tensor.to(device, copy=True) for tensor in saved["state"])
        self.objective.load_state_dict(on_device(saved["objective"], device))  # checkpoints are read on the CPU
        for stream, state in zip(self._noise, saved["noise"], strict=True):
            stream.set_state(state)
        self._curve, self._stretch = list(saved["curve"]), saved["stretch"].to(device, copy=True)


def mapped(value: Any, convert: Callable[[Any], Any]) -> Any:
    """The same lists and dictionaries of converted values; tuples become lists."""
    if isinstance(value, dict):
        return {name: mapped(item, convert) for name, item in value.items()}
    return [mapped(item, convert) for item in value] if isinstance(value, list | tuple) else convert(value)


def on_device(value: Any, device: torch.device | str) -> Any:
    """A value, or lists and dictionaries of values, with its tensors on a device."""
    return mapped(value, lambda x: x.to(device) if isinstance(x, Tensor) else x)
