"""Update rules as the inner loop runs them: P members, each with its own meta-parameters.

A `SamplerRule` wraps one pure rule of `learned_samplers` (the very function that the optimizer of the same name calls)
and says how a flat vector of meta-parameters becomes its network. The trainer knows nothing else of a sampler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from learned_samplers.base.segments import Segments

__all__ = ["Hyperparameters", "MemberStep", "SamplerRule", "State", "arguments_of", "steps_for"]

State = tuple[Tensor, ...]


@dataclass(frozen=True)
class Hyperparameters:
    """Keywords that every rule takes: lr, N, T, λ and a, with the meaning of the library's conventions.

    Each is a number; or of members of several tasks a tensor (P, 1), where `SamplerRule.by_member` allows it.
    """

    lr: Any = 0.1
    num_data: Any = 1
    temperature: Any = 1.0
    prior_precision: Any = 0.0
    momentum_decay: Any = 0.1

    @classmethod
    def side_by_side(cls, settings: Sequence[Hyperparameters], members: int) -> Hyperparameters:
        """Hyperparameters of several tasks with ``members`` members each: a number where it is the same for all."""

        def joined(name: str) -> Any:
            values = [getattr(hyperparameters, name) for hyperparameters in settings]
            if len(set(values)) == 1:
                return values[0]
            return torch.tensor(values, dtype=torch.get_default_dtype()).repeat_interleave(members)[:, None]

        return cls(**{field.name: joined(field.name) for field in fields(cls)})


@dataclass(frozen=True)
class MemberStep:
    """Inputs of a rule for one step of P members.

    Attributes:
        parameter, gradient, noise: (P, d); the gradient is that of the mean minibatch loss, the noise standard normal
            or None where none is drawn.
        state: what the rule keeps, see `SamplerRule.state_names`.
        segments: where each tensor begins in the flat axis.
        hyper: of the sampler.
        step: steps taken before, a number.
        loss: mean minibatch loss of each member (P,), where the rule needs it.
        hessian_product: w ↦ ∂²L/∂θ²·w of that loss, (P, d) ↦ (P, d), where the rule needs it.
    """

    parameter: Tensor
    gradient: Tensor
    noise: Tensor | None
    state: State
    segments: Segments
    hyper: Hyperparameters
    step: Any
    loss: Tensor | None = None
    hessian_product: Callable[[Tensor], Tensor] | None = None

    @property
    def tensors(self) -> tuple[Any, ...]:
        """Parameter, gradient, noise and state, in the order in which every pure rule takes them."""
        return self.parameter, self.gradient, self.noise, *self.state


class SamplerRule:
    """Base class: a rule without meta-parameters and without state.

    `num_weights` is n, the number of meta-parameters; meta-parameters of P members are (P, n).
    """

    name: ClassVar[str]
    state_names: tuple[str, ...] = ()
    num_weights: int = 0
    #: Whether `update` needs `MemberStep.hessian_product`.
    needs_hessian: ClassVar[bool] = False
    #: Whether it needs `MemberStep.loss`.
    needs_loss: ClassVar[bool] = False
    #: Whether `update` takes hyperparameters of each member, so that members of several tasks may run side by side.
    by_member: bool = False

    def specification(self) -> dict[str, Any]:
        """Plain values that say which sampler the meta-parameters belong to, for checkpoints and weight cards."""
        return {"sampler": self.name}

    def for_run(self, steps: int, *keys: int | str) -> SamplerRule:
        """The rule for one run of so many steps; ``keys`` fix what it draws for the run, if it draws anything."""
        return self

    def initial_weights(self, seed: int) -> Tensor:
        """Meta-parameters (n,) of the untrained sampler."""
        return torch.zeros(self.num_weights)

    def constrained(self, weights: Tensor) -> Tensor:
        """The meta-parameters (n,) that the rule allows, nearest to those that a step of the outer loop left."""
        return weights

    def prepare(self, weights: Tensor) -> Any:
        """Prepare what `update` needs of the meta-parameters (P, n), computed once for many steps."""
        return None

    def initial_state(self, parameter: Tensor, segments: Segments) -> State:
        """The state of members at parameters (P, d), whose tensors are at ``segments``."""
        return tuple(torch.zeros_like(parameter) for _ in self.state_names)

    def draws_noise(self, hyper: Hyperparameters, step: int) -> bool:
        """True if step ``step`` = 0, 1, … draws noise."""
        return hyper.temperature > 0 if isinstance(hyper.temperature, int | float) else bool(hyper.temperature.any())

    def update(self, prepared: Any, at: MemberStep) -> tuple[Tensor, State]:
        """Take one step: new parameters (P, d) and state.

        Parameter, noise and state may be overwritten: copy them first if they are needed afterwards.
        """
        raise NotImplementedError

    def output_scales(self, prepared: Any, at: MemberStep) -> dict[str, Tensor]:
        """Root mean squares (P,) of what the network's outputs come to in the step, by name; for logging."""
        return {}

    def figures(self, weights: Tensor) -> dict[str, Any]:
        """matplotlib figures of meta-parameters (n,), by name; for logging."""
        return {}


def arguments_of(hyper: Hyperparameters, **changes: float) -> dict[str, Any]:
    """The keyword arguments that every rule of the library takes."""
    return {**vars(hyper), **changes}


def steps_for(rule: SamplerRule, gradients: int) -> int:
    """The steps that so many minibatch gradients pay for: a Hessian-vector product costs a second one at every step.

    Raises:
        ValueError: they are fewer than one step costs.
    """
    cost = 2 if rule.needs_hessian else 1
    if gradients < cost:
        raise ValueError(f"gradients={gradients} are fewer than the {cost} that one step of {rule.name!r} costs")
    return gradients // cost
