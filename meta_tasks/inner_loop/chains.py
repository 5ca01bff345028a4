"""Parallel chains of one sampler, and the gradient of a loss of their states by back-propagation through time.

The chains run the pure rule on one buffer (C, d), on the autograd tape. `higher`'s twin of the optimizer runs the same
rule; it is not used here because a task's gradients are written out by hand and build no graph,
each chain has its own minibatch, and the tape of C networks over 15 steps would hold all of their activations.
`MeanLoss` gives the tape what it needs of a task: a gradient whose own derivative is a Hessian-vector product. A test
holds the two gradients equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from meta_tasks.inner_loop.schedule import Schedule
from meta_tasks.inner_loop.unroll import Unroll, hessian_product
from meta_tasks.objectives import SteinKL
from meta_tasks.rules.base import SamplerRule, State
from meta_tasks.tasks.task import Task

__all__ = ["ChainUnroll", "MeanLoss"]


class MeanLoss(torch.autograd.Function):
    """Mean minibatch loss (C,) and its gradient (C, d), differentiable in the parameters:

        (L, g) = (L(θ), ∇L(θ)),    backward(l, w) = l·g + ∂²L/∂θ²·w

    the Hessian-vector product by a finite difference of gradients, at the price of one more gradient.
    """

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, task: Task, indices: Tensor, curvature: bool) -> Any:
        loss, gradient = task.loss_and_gradient(parameter, indices)
        ctx.save_for_backward(parameter, indices, gradient)
        ctx.task, ctx.curvature = task, curvature
        return loss, gradient

    @staticmethod
    def backward(ctx: Any, *outputs: Any) -> Any:
        by_loss, by_gradient = outputs
        parameter, indices, gradient = ctx.saved_tensors
        pulled = by_loss.unsqueeze(-1) * gradient
        if ctx.curvature:
            pulled = pulled + hessian_product(ctx.task, parameter, indices, gradient, by_gradient)
        return pulled, None, None, None


class ChainUnroll(Unroll):
    """C chains of one sampler on one task: the same meta-parameters, each its own start, minibatches and noise.

    Args:
        task, rule, schedule: as for `Unroll`; the states that the schedule collects are the in-chain samples.
        seeds: one a chain.
        curve_every: as for `Unroll`.
        curvature: whether gradients flow through ∇Ũ, that is whether the energy's curvature is accounted for.

    Raises:
        ValueError: the task's temperature is 0, at which there is no law to come near to.
    """

    objective: SteinKL

    def __init__(
        self,
        task: Task,
        rule: SamplerRule,
        schedule: Schedule,
        seeds: Sequence[int],
        *,
        curve_every: int = 0,
        curvature: bool = True,
    ) -> None:
        if not task.hyperparameters.temperature > 0:
            raise ValueError(f"temperature={task.hyperparameters.temperature}: chains at 0 have no law to come near to")
        super().__init__(task, rule, SteinKL, schedule, seeds, members_per_group=1, curve_every=curve_every)
        self.curvature = curvature
        loss, _ = task.loss_and_gradient(self.parameter, self._indices())
        #: Mean energy U/(N·T) of the law that the chains sample, at the task's initial states, as the objective has it.
        self.initial_loss = (self._energy(loss, self.parameter) / task.hyperparameters.num_data).mean().item()
        self._on_tape = False
        # Whether the state that was just reached is one of the cross-chain loss, and a sample of its chain: known when
        # the next step has evaluated ∇Ũ there.
        self._due = (False, False)

    def replace_states(self, parameter: Tensor, state: State) -> None:
        """Begin at other states than the task's initial ones."""
        device = self.task.device
        self.parameter = parameter.to(device, copy=True)
        self.state = tuple(tensor.to(device, copy=True) for tensor in state)

    def backpropagate(self, weights: Tensor, steps: int, every: int) -> Tensor | None:
        """Take ``steps`` steps with meta-parameters (n,), and return the gradient (n,) of the objective over them.

        The cross-chain loss reads the states after every ``every`` steps, the in-chain loss those that the schedule
        collects. No gradient flows into the states at the start, nor from chains that have failed before.

        Returns:
            The gradient; None if a chain became non-finite in these steps, or nothing could be read.

        Raises:
            ValueError: fewer steps remain.
        """
        if steps > self.schedule.steps - self.step:
            raise ValueError(f"steps={steps} of a run that has {self.schedule.steps - self.step} left")
        leaf = weights.detach().clone().to(self.task.device).requires_grad_()
        counts = self.counts
        self.objective.start_window()
        self._on_tape = True
        with torch.enable_grad():
            prepared = self.rule.prepare(leaf)
            for taken in range(1, steps + 1):
                if not bool(counts.all()):
                    self._hold(~counts)
                self._step(prepared)
                self._due = taken % every == 0, self.schedule.collects(self.step)
            loss, gradient = self.task.loss_and_gradient(self.parameter.detach(), self._indices())
            self._read(loss, gradient)
            total = self.objective.close_window(self.task.hyperparameters.num_data, self.counts)
        self._on_tape = False
        # Copies, for the tape needs its own as they are.
        self.parameter, *state = (tensor.detach().clone() for tensor in (self.parameter, *self.state))
        self.state = tuple(state)
        self._retire(loss)
        if total is None or not total.requires_grad or not torch.equal(self.counts, counts):
            return None
        (by_weights,) = torch.autograd.grad(total, leaf)
        return by_weights.cpu() if bool(by_weights.isfinite().all()) else None

    @property
    def counts(self) -> Tensor:
        """True for chains that have not failed, (C,)."""
        return torch.tensor([step < 0 for step in self.failed_at], device=self.task.device)

    def _hold(self, chains: Tensor) -> None:
        """Put chains back to zeros: one that diverges again would leave the weights, which all share, no gradient."""
        self.parameter, *state = (
            x.masked_fill(chains.view(-1, *[1] * (x.dim() - 1)), 0.0) for x in (self.parameter, *self.state)
        )
        self.state = tuple(state)

    def _loss_and_gradient(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        loss, gradient = MeanLoss.apply(self.parameter, self.task, indices, self.curvature)
        self._read(loss, gradient)
        return loss, gradient

    def _read(self, loss: Tensor, gradient: Tensor) -> None:
        cross_chain, in_chain = self._due
        self._due = (False, False)
        if not (cross_chain or in_chain):
            return
        hyper, theta = self.task.hyperparameters, self.parameter.detach()
        # The slope of the law that the chain samples, exp(−U/T).
        slope = (hyper.num_data * gradient.detach() + hyper.prior_precision * theta) / hyper.temperature
        energy = self._energy(loss.detach(), theta)
        if cross_chain:
            finite = (theta + slope).isfinite().all(-1) & energy.isfinite()
            self.objective.cross_chain(self.parameter, slope, energy, hyper.num_data, self.counts & finite)
        if in_chain:
            self.objective.collect(self.parameter, slope)

    def _energy(self, loss: Tensor, parameter: Tensor) -> Tensor:
        """U/T of each chain, (C,)."""
        hyper = self.task.hyperparameters
        prior = 0.5 * hyper.prior_precision * parameter.square().sum(-1)
        return (hyper.num_data * loss + prior) / hyper.temperature

    def _collect(self) -> None:
        self._due = (False, True)

    def _retire(self, loss: Tensor) -> None:
        if not self._on_tape:  # nothing on the tape may be changed in place: a window ends with this
            super()._retire(loss)
