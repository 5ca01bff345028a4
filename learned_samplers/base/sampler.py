"""The base class of the samplers: everything but the update rule.

A sampler is a ``torch.optim.Optimizer`` whose step draws the next state of a Markov chain. A subclass states its
update as one pure function (`Sampler.rule`) and declares its settings and the names of its state. `Sampler.step` reads
from top to bottom: what may refuse the step, gradients, and the rule within what must hold around it. A guard that does
not apply to a step is not called. Inside of ``torch.compile``, where nothing is raised or remembered, most are left
out; a step that needs what cannot be compiled (`Sampler.not_compiled`) runs as it is.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base import prior as priors
from learned_samplers.base import prior_mean as prior_means
from learned_samplers.base import step
from learned_samplers.base.configured import ConfiguredOptimizer
from learned_samplers.base.guards import (
    broken_off,
    hyperparameters,
    overflow,
    precision,
    replicas,
    resumed,
    shards,
)
from learned_samplers.base.guards.clipping import ClippingWatch
from learned_samplers.base.guards.outside import OutsideChanges
from learned_samplers.base.noise import ReseedingWatch
from learned_samplers.base.operations import FOREACH, IN_PLACE, is_finite
from learned_samplers.base.step import Evaluation, GroupInputs, Plan, blocks
from learned_samplers.base.temperatures import temperatures_of
from learned_samplers.base.warning import warn

_PLAIN = nullcontext()


class Sampler(ConfiguredOptimizer):
    """A ``torch.optim.Optimizer`` whose steps draw samples from a Bayesian posterior.

    The target is p(θ|D)^(1/T) ∝ exp(−U(θ)/T) with U(θ) = −Σₙ log p(yₙ|xₙ, θ) + ½ λ‖θ − μ‖². The user's loss is the
    *mean* negative log-likelihood of a minibatch, so that ``p.grad`` = g and ∇Ũ = N·g + λ(θ − μ). `rule` is given θ − μ
    as its parameter and need not know of μ.

    A subclass sets `badge`, `state_names` and `rule`, and declares its own settings by
    `learned_samplers.base.settings.setting`; the rule is given those that it names. One that needs more than the
    gradients (a second evaluation, the energy) extends `evaluate`, which must leave the chain where it was.

    Raises:
        ValueError, TypeError: an argument is out of range or of a wrong type.
    """

    raises = (
        "ValueError, TypeError: an argument is out of range or of a wrong type; see `Sampler.step` for those of a step."
    )

    def _begin(self) -> None:
        """Begin what guards remember of the steps so far: it is not saved, and a copy of the sampler begins anew."""
        self.checked = hyperparameters.CheckedValues()
        #: Shape of the gradient and dtype of each parameter in its first step.
        self.first_shapes: dict[Tensor, tuple[torch.Size, torch.dtype]] = {}
        #: What `step.collect` has checked of each group's parameters and gradients.
        self.checked_inputs: dict[int, list[Any]] = {}
        #: Plans by the ``id`` of their first parameter.
        self.plans: dict[int, Plan] = {}
        self.clipping, self.reseeding, self.outside = ClippingWatch(), ReseedingWatch(), OutsideChanges()
        self.warned_of_compiling = False

    # ---------------------------------------------------------------- the step

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of the chain.

        Args:
            closure: clears the gradients, computes the mean minibatch loss, calls ``backward`` and returns the loss.

        Returns:
            The closure's loss, or None.

        Raises:
            ValueError: a parameter that requires a gradient has none, or a hyperparameter is out of range.
            TypeError: a gradient is sparse.
            FloatingPointError: the closure's loss, a gradient or a parameter is not finite, or would not be after the
                step. (Not inside ``torch.compile``, where nothing can be raised.)
            RuntimeError: the copies of a replicated chain have drifted apart, or an earlier step was broken off.
                Nothing has changed after any of these. An update that fails in the middle (out of memory, or
                interrupted) is not undone: `broken_off` is true from then on, and `step` and `state_dict` refuse until
                a saved state is loaded.
        """
        if torch.compiler.is_compiling():
            return self._compiled_step(closure)
        self._refuse_or_warn()
        with broken_off.attempt(self) as attempt:
            evaluation = attempt.evaluation = self.evaluate(closure)
            if evaluation.total_norm >= self.clipping.watched:
                self.clipping.look(self, evaluation)
            attempt.begins_update()
            device = self.param_groups[0]["params"][0].device.type
            with (
                # the update is in the parameters' own precision
                precision.without_autocast(self.param_groups) if torch.is_autocast_enabled(device) else _PLAIN,
                # this process's parts take the place of the parameters
                shards.on_parts(self, evaluation) if self.mesh is not None else _PLAIN,
                # what the rule and the masters have written is undone if it is not finite
                overflow.undone(self, evaluation) if evaluation.large else _PLAIN,
                # float32 copies take the place of half-precision parameters
                precision.on_masters(self, evaluation) if evaluation.half_precision else _PLAIN,
                # coordinates in which the prior's mean is zero
                prior_means.centred_at_zero(self, evaluation) if evaluation.centred else _PLAIN,
            ):
                for group, inputs in zip(self.param_groups, evaluation.groups, strict=True):
                    self.advance(group, inputs)
            for group in self.param_groups:
                group["step"] += 1
            if any(self.group_priors):
                priors.draw(self)
            if self.outside.watching and not torch.compiler.is_compiling():
                self.outside.note(self)
        return evaluation.loss

    def _compiled_step(self, closure: Callable[[], Any] | None) -> Any:
        """A step inside of ``torch.compile``, where nothing can be raised by a value, remembered or undone."""
        if self.not_compiled():
            return step_that_cannot_be_compiled(self, closure)
        evaluation = self.evaluate(closure)
        with (
            precision.without_autocast(self.param_groups),
            prior_means.centred_at_zero(self, evaluation) if evaluation.centred else _PLAIN,
        ):
            for group, inputs in zip(self.param_groups, evaluation.groups, strict=True):
                self.advance(group, inputs)
        for group in self.param_groups:
            group["step"] += 1
        return evaluation.loss

    def not_compiled(self) -> str:
        """Why the next step cannot be compiled; "" where it can."""
        if any(self.group_priors):
            return "it draws the precision of its prior"
        if self.mesh is not None:
            return "its parameters are sharded"
        halves = [p for group in self.param_groups for p in group["params"] if precision.has_master(group, p)]
        return "it keeps float32 copies of half-precision parameters" if halves else ""

    def _refuse_or_warn(self) -> None:
        """Call the guards that stand before a step and apply to this one; each file says what it guards against."""
        if self.broken_off:
            broken_off.refuse(self)
        last = self.checked.objects
        for number, group in enumerate(self.param_groups):
            now = (len(group), *map(group.get, self.defaults))
            if number >= len(last) or not all(map(operator.is_, now, last[number])):
                hyperparameters.check_changed(self)
                break
        if self.outside.watching and not torch.compiler.is_compiling():  # by frames, it is as if compiled here
            self.outside(self)
        if self.saved_weights is not None:
            resumed.other_weights(self)
        if self.schedule is not None:
            self.schedule.validate()
        elif "sampling_temperature" in self.param_groups[0]:
            resumed.without_schedule(self)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            replicas.keep_together(self)

    def _loaded(self) -> None:
        self.reseeding, self.outside = ReseedingWatch(), OutsideChanges()  # generator and weights may be put back
        self.plans.clear()
        if self.schedule is not None:  # the state may be one of before the schedule's last step, or of no schedule
            self.schedule.step()

    def evaluate(self, closure: Callable[[], Any] | None) -> Evaluation:
        """Compute and check the loss and the gradients of all groups; no parameter moves yet.

        Subclasses extend it to add what their `advance` needs (see `GroupInputs`).
        """
        loss = None if closure is None and not self.needs_closure else self.run(closure)
        return step.collect(self, loss)

    def run(self, closure: Callable[[], Any] | None, where: str = "") -> Any:
        """Call the closure and return its loss, None without a closure; ``where`` ends the error message."""
        if closure is None:
            if self.needs_closure:
                raise ValueError(f"{type(self).__name__}.step needs a closure that re-evaluates the loss, got None")
            return None
        loss = self.call(closure, again=self.evaluates_again or bool(where))
        if loss is None and self.reads_loss:
            raise ValueError(f"the closure of {type(self).__name__} must return the mean loss, got None")
        if not torch.compiler.is_compiling() and not is_finite(loss):
            raise FloatingPointError(f"the closure returned a loss that is not finite{where}: {loss}")
        return loss

    def call(self, closure: Callable[[], Any], again: bool = True) -> Any:
        """The closure's loss; where it is evaluated ``again``, gradients of before go first: it may not clear them."""
        if again:
            for group in self.param_groups:
                for p in group["params"]:
                    p.grad = None
        with torch.enable_grad():
            return closure()

    def collect_gradients(self) -> list[GroupInputs]:
        """The sampled parameters of each group and their gradients, which are there, dense and finite."""
        return step.collect(self).groups

    def advance(self, group: dict[str, Any], inputs: GroupInputs) -> None:
        """Apply the rule to one group, in place."""
        params, gradients, hyper = inputs.params, inputs.gradients, self.hyper(group)
        plan = None if torch.compiler.is_compiling() else self.plan(params)
        states = [self.state[p] for p in params] if plan is None else plan.states
        made: dict[str, Any] = {} if plan is None else plan.made
        state = [
            [kept[name] if name in kept else self.state_of(group, p, name) for p, kept in zip(params, states)]
            for name in self.state_names
        ]
        # One tensor at a time, or lists of tensors; the two have the same arithmetic.
        single = group["foreach"] is False
        if "blocks" not in made:
            made["blocks"] = [*blocks(params)]
        for block in [slice(i, i + 1) for i in range(len(params))] if single else made["blocks"]:
            noise = self.noise_for(params[block], hyper)
            lists: list[Any] = [params[block], gradients[block], noise, *[tensors[block] for tensors in state]]
            extra: dict[str, Any] = {key: values[block] for key, values in inputs.per_parameter.items()}
            if single:
                lists = [x if x is None else x[0] for x in lists]
                extra = {key: values[0] for key, values in extra.items()}
            self.rule(*lists, **extra, **hyper, ops=IN_PLACE if single else FOREACH)

    def plan(self, params: list[Tensor]) -> Plan:
        """The plan of steps that move these parameters: that of the last step, or a new one."""
        first = id(params[0]) if params else 0
        if first not in self.plans or not self.plans[first].fits(self.state, params):
            self.plans[first] = Plan(self.state, params)
        return self.plans[first]

    def hyper(self, group: dict[str, Any], *, keep_tensors: bool = False) -> dict[str, Any]:
        """The rule's keyword arguments, read from the group at every step, since a scheduler may have changed them."""
        if keep_tensors or torch.compiler.is_compiling():
            return {name: group[name] for name in self.hyperparameters}
        values = [group[name] for name in self.hyperparameters]
        numbers = [value.item() if isinstance(value, Tensor) else value for value in values]
        return dict(zip(self.hyperparameters, numbers, strict=True))

    def inner_optimizers(self) -> list[torch.optim.Optimizer]:
        """Optimizers that a step of this one drives."""
        return []

    def state_of(self, group: dict[str, Any], p: Tensor, name: str) -> Tensor:
        """The state tensor ``name`` of a parameter, made by `initial_state` at its first step."""
        state = self.state[p]
        if name not in state:
            state[name] = self.initial_state(group, p, name)
        return state[name]

    def initial_state(self, group: dict[str, Any], p: Tensor, name: str) -> Tensor:
        """A fresh state tensor: zeros, unless a sampler says otherwise."""
        return torch.zeros_like(p)

    # ---------------------------------------------------------------- what the chain says of itself

    @property
    def step_count(self) -> int:
        """Steps taken so far; part of the state dict, so that burn-in survives a restart."""
        return self.param_groups[0]["step"]

    @property
    def is_sampling(self) -> bool:
        """True if the last step reached a sample (False while a cyclical schedule explores)."""
        return True if self.schedule is None else self.schedule.is_sampling

    @property
    def cycle(self) -> int:
        """Index of the cycle that the last step belonged to; 0 without a cyclical schedule."""
        return 0 if self.schedule is None else self.schedule.cycle

    @torch.no_grad()
    def temperatures(self) -> list[dict[str, float]]:
        """Two estimates of the chain's temperature for each parameter group, which say whether it is at equilibrium.

        Kinetic: mean of r² over the coordinates; configurational: mean of (θ−μ)·∇Ũ(θ). Both equal T when the chain is
        at equilibrium. Call it between ``backward`` and ``step``, while the gradients belong to the parameters.

        Returns:
            A dict for each group, of the keys "kinetic" and "configurational"; nan where there is no momentum or no
            gradient.
        """
        return [temperatures_of(self, group) for group in self.param_groups]

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if not hasattr(self, "first_shapes"):  # a copy; torch also calls it to load a state
            self._begin()


@torch._disable_dynamo  # as torch.compiler.disable, which imports the compiler at once: two seconds
def step_that_cannot_be_compiled(sampler: Sampler, closure: Callable[[], Any] | None) -> Any:
    """Take a step as it is inside of ``torch.compile``, and say so once; with ``fullgraph=True`` that is an error."""
    if not sampler.warned_of_compiling:
        sampler.warned_of_compiling = True
        warn(
            f"a step of {type(sampler).__name__} is not compiled, for {sampler.not_compiled()}: it runs as it is. "
            "Compile the network instead"
        )
    return Sampler.step(sampler, closure)
