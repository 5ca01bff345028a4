"""Inputs of a step, gathered before anything moves: the loss and, for each parameter group, parameters and gradients.

All that the rule will read is looked at here: gradients are there, dense and finite, parameters are finite and of the
shape and dtype that the state has, and numbers so large that the step may overflow are noted.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base import prior, sharding, validation
from learned_samplers.base.guards import precision, side_by_side
from learned_samplers.base.norms import joint_norms
from learned_samplers.base.protocol import Chain

# Parameters are updated in blocks of about this many coordinates, so that a block's noise is still in the processor's
# cache when it is added and never takes as much memory as the parameters do.
BLOCK_ON_CPU = 1 << 18
BLOCK_ON_GPU = 1 << 26
# Norms up to these cannot overflow in one step of any sensible size; beyond them a step is taken with a copy at hand.
_SAFE = {torch.float16: 1e3, torch.bfloat16: 1e12, torch.float32: 1e12, torch.float64: 1e60}
# In each step at least this many parameters are looked at, and at least one in so many.
_PARAMETERS_A_STEP = 16
_TURNS = 8


@dataclass
class GroupInputs:
    """Inputs of a step for one parameter group."""

    #: The parameters that are sampled; those with ``requires_grad=False`` are left out.
    params: list[Tensor]
    #: Their gradients of the mean loss.
    gradients: list[Tensor]
    #: Further inputs of the rule by keyword, one tensor a parameter (pSGLD's curvature).
    per_parameter: dict[str, list[Tensor]] = field(default_factory=dict)
    #: Whatever else a sampler's `evaluate` worked out for its `advance`.
    prepared: Any = None


@dataclass
class Evaluation:
    """Result of `Sampler.evaluate`: all that a step needs, checked before any parameter moves."""

    #: What the closure returned, or None without one.
    loss: Any
    #: One entry a parameter group.
    groups: list[GroupInputs]
    #: Puts the generators back, where `evaluate` has drawn noise already.
    restore: Callable[[], None] | None = None
    #: Whether an update that failed has been undone.
    undone: bool = False
    #: The norm of the gradients of all groups together.
    total_norm: float = 0.0
    #: Whether a gradient or a parameter is so large that the step may overflow.
    large: bool = False
    #: Whether a parameter is updated on a float32 copy.
    half_precision: bool = False
    #: Whether a prior has a mean other than zero.
    centred: bool = False


class Plan:
    """What the steps of a group have in common, worked out once: it fits while parameters and states are the same.

    A state's tensors may change their numbers, not be replaced; parameters may lie elsewhere in each step.

    Args:
        state: of the sampler; that of a parameter is made where it has none.
        params: the parameters that move.
    """

    def __init__(self, state: Any, params: list[Tensor]):
        #: The state of each parameter.
        self.states: list[dict[str, Any]] = [state[p] for p in params]
        #: Whatever else a sampler has worked out, by name.
        self.made: dict[str, Any] = {}
        # What they are made of is referred to, so that an id is that of no other.
        self._objects: list[Any] = [*params, *state.values(), *chain.from_iterable(map(dict.values, self.states))]
        self._kinds = [(p.dtype, p.device, p.shape) for p in params]

    def fits(self, state: Any, params: list[Tensor]) -> bool:
        """Return whether it is still the plan for this state and these parameters."""
        objects = [*params, *state.values(), *chain.from_iterable(map(dict.values, self.states))]
        same = [*map(id, objects)] == [*map(id, self._objects)]
        return same and self._kinds == [(p.dtype, p.device, p.shape) for p in params]


def collect(sampler: Chain, loss: Any = None) -> Evaluation:
    """The sampled parameters of each group and their gradients, which are there, dense and finite; beside the loss.

    Parameters are looked at in turn, all of them every 8 steps, or in every step where there are at most 16 tensors.
    """
    evaluation = Evaluation(loss, [])
    for number, group in enumerate(sampler.param_groups):
        evaluation.groups.append(_of_group(sampler, number, group, evaluation))
        evaluation.centred |= group.get("prior_mean") is not None
    if torch.compiler.is_compiling():
        return evaluation
    gradients = [gradient for inputs in evaluation.groups for gradient in inputs.gradients]
    params = [p for inputs in evaluation.groups for p in inputs.params]
    share = max(_PARAMETERS_A_STEP, -(-len(params) // _TURNS))
    if len(params) > share:
        start = sampler.param_groups[0]["step"] * share % len(params)
        params = (params + params[:share])[start : start + share]
    slopes, weights = joint_norms(gradients, params, mesh=sampler.mesh)
    values = [value for _, value in (*slopes, *weights)]
    if not all(map(math.isfinite, values)):
        _report(sampler, "gradient", lambda p: p.grad)
        _report(sampler, "", lambda p: p)
    evaluation.total_norm = math.hypot(*[value for _, value in slopes])
    # The prior's pull on the mean loss, λθ/N, is added to the gradient.
    pulls = [float(group["prior_precision"]) / float(group["num_data"]) for group in sampler.param_groups]
    values += [value * max(pulls) for _, value in weights]
    limits = [_SAFE.get(dtype, 1e3) for dtype, _ in (*slopes, *weights, *weights)]
    evaluation.large = not all(map(operator.le, values, limits))
    return evaluation


def _of_group(sampler: Chain, number: int, group: dict[str, Any], evaluation: Evaluation) -> GroupInputs:
    pairs = [(p, p.grad) for p in group["params"]]
    if torch.compiler.is_compiling():
        _check(sampler, group)
    else:
        # What is checked once, until it is another.
        seen = [(p.requires_grad, p.dtype, None if g is None else (g.shape, g.layout)) for p, g in pairs]
        looked_at = [*map(id, group["params"]), group["missing_gradient"], seen]
        if looked_at != sampler.checked_inputs.get(number):
            _check(sampler, group)
            sampler.checked_inputs[number] = looked_at
    moving = [(p, g) for p, g in pairs if g is not None and p.requires_grad]
    inputs = GroupInputs([p for p, _ in moving], [g for _, g in moving])
    if not precision.HALF.isdisjoint([p.dtype for p, _ in moving]):
        evaluation.half_precision |= group.get("master_weights") is not False
    if prior.BY_INPUT in group:
        inputs.gradients = [prior.pulled_by_input(sampler, group, p, g) for p, g in moving]
    return inputs


def _check(sampler: Chain, group: dict[str, Any]) -> None:
    """Raise an error unless gradients are there and dense, and of the shape and dtype that the state has."""
    shapes = sampler.first_shapes
    for i, p in enumerate(group["params"]):
        gradient = p.grad
        if not p.requires_grad or (gradient is None and group["missing_gradient"] == "skip"):
            continue
        if gradient is None:
            raise ValueError(
                f"parameter {sampler.name_of(group, i)} has no gradient: call loss.backward() before step(), set "
                "requires_grad=False to keep it fixed, or give missing_gradient='skip' to leave it out of such steps"
            )
        if gradient.layout != torch.strided:
            raise TypeError(
                f"the gradient of parameter {sampler.name_of(group, i)} is sparse ({gradient.layout}); use dense "
                "gradients"
            )
        first = shapes.get(p)
        if first is None:
            shapes[p] = first = gradient.shape, p.dtype
            if not torch.compiler.is_compiling():  # it may have been converted since the sampler was made
                validation.parameter(f"parameter {sampler.name_of(group, i)}", p)
                precision.validate(sampler, group, [p])
        if first != (gradient.shape, p.dtype):
            raise ValueError(
                f"parameter {sampler.name_of(group, i)} had the shape {tuple(first[0])} in its first step, and the "
                f"dtype {first[1]}: the state does not fit {tuple(gradient.shape)} and {p.dtype}; make a new sampler"
            )


def _report(sampler: Chain, what: str, of: Any) -> None:
    """Raise FloatingPointError for the first parameter, or gradient of one, that is not finite."""
    for group in sampler.param_groups:
        for i, p in enumerate(group["params"]):
            value = of(p)
            if p.requires_grad and value is not None and not sharding.all_finite(value):
                subject = f"the {what} of parameter" if what else "parameter"
                raise FloatingPointError(f"{subject} {sampler.name_of(group, i)} is not finite; nothing was changed")


def blocks(params: list[Tensor], limit: int | None = None) -> Iterator[slice]:
    """Consecutive runs of parameters of about one block's size each: one parameter, or up to ``limit`` coordinates."""
    if limit is None and sum(map(Tensor.numel, params)) <= BLOCK_ON_CPU:
        if params:
            yield slice(0, len(params))
        return
    start = size = 0
    for i, p in enumerate(params):
        most = limit or (BLOCK_ON_CPU if p.device.type == "cpu" else BLOCK_ON_GPU)
        if size and size + p.numel() > most:
            yield slice(start, i)
            start, size = i, 0
        size += p.numel()
    if start < len(params):
        yield slice(start, len(params))


def as_loss(value: Any) -> Tensor:
    """Return what a closure returned as a tensor; a number of Python's keeps its double precision.

    Raises:
        TypeError: a tensor of half precision: an energy of N losses that are rounded to 8 or 11 bits is a staircase.
    """
    if not isinstance(value, Tensor):
        return torch.as_tensor(value, dtype=torch.float64)
    if value.dtype in (torch.float16, torch.bfloat16):
        raise TypeError(
            f"the closure returned a loss of {value.dtype}, too coarse for an energy: compute it from float32 outputs, "
            "as loss(outputs.float(), targets)"
        )
    return value


def chains_of(loss: Tensor, params: list[Tensor]) -> int:
    """Number of chains that a closure's losses (M,) and the parameters' leading axes have; 0 for a scalar loss."""
    if loss.dim() == 0:
        side_by_side.refuse_one_loss(params)
        return 0
    if loss.dim() == 1 and all(p.dim() and p.shape[0] == loss.shape[0] for p in params):
        return loss.shape[0]
    shapes = sorted({tuple(p.shape) for p in params})
    raise ValueError(
        f"closure returned losses of shape {tuple(loss.shape)}; expected () or the leading axis of the parameters, "
        f"whose shapes are {shapes}"
    )
