"""What a step reads: the gradients, and whether they and the parameters are finite; and steps that may overflow."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base import master_weights, sharding
from learned_samplers.base.step import Evaluation, GroupInputs, joint_norms

# Norms up to these cannot overflow in one step of any sensible size; beyond them a step is taken with a copy at hand.
_SAFE = {torch.float16: 1e3, torch.bfloat16: 1e12, torch.float32: 1e12, torch.float64: 1e60}
# In each step at least this many parameters are looked at, and at least one in so many.
_PARAMETERS_A_STEP = 16
_TURNS = 8


def collect(sampler: Any) -> list[GroupInputs]:
    """The sampled parameters of each group and their gradients, which are there, dense and finite.

    Parameters are looked at in turn, all of them every 8 steps, or in every step where there are at most 16 tensors.
    """
    groups = [_of_group(sampler, group) for group in sampler.param_groups]
    if torch.compiler.is_compiling():
        return groups
    slopes = [gradient for inputs in groups for gradient in inputs.gradients]
    params = [p for inputs in groups for p in inputs.params]
    found, others = _norms(slopes, sampler.mesh), _norms(_in_turn(sampler, params), sampler.mesh)
    values = [value for _, value in found]
    if not all(map(math.isfinite, values)) or not all(math.isfinite(value) for _, value in others):
        _report(sampler, "gradient", lambda p: p.grad)
        _report(sampler, "", lambda p: p)
    total = math.hypot(*values)
    large = _beyond(found) or _beyond(others)
    for inputs in groups:
        inputs.total_norm, inputs.large = total, large
    return groups


def _norms(tensors: list[Tensor], mesh: Any) -> list[tuple[torch.dtype, float]]:
    """Norms that say of every tensor whether it is finite and small, each with its dtype."""
    if mesh is None:
        return joint_norms(tensors)
    return list(zip((x.dtype for x in tensors), sharding.norms_of(tensors, mesh), strict=True))


def _beyond(found: list[tuple[torch.dtype, float]]) -> bool:
    return any(not value <= _SAFE.get(dtype, 1e3) for dtype, value in found)


def _in_turn(sampler: Any, params: list[Tensor]) -> list[Tensor]:
    share = max(_PARAMETERS_A_STEP, -(-len(params) // _TURNS))
    if len(params) <= share:
        return params
    start = sampler.step_count * share % len(params)
    return (params + params[:share])[start : start + share]


def _of_group(sampler: Any, group: dict[str, Any]) -> GroupInputs:
    inputs, shapes = GroupInputs([], []), sampler.__dict__.setdefault("_shapes", {})
    for i, p in enumerate(group["params"]):
        if not p.requires_grad:
            continue
        gradient = p.grad
        if gradient is None:
            if group["missing_gradient"] == "skip":
                continue
            raise ValueError(
                f"parameter {sampler.name_of(group, i)} has no gradient: call loss.backward() before step(), set "
                "requires_grad=False to keep it fixed, or give missing_gradient='skip' to leave it out of such steps"
            )
        if gradient.layout != torch.strided:
            raise TypeError(
                f"the gradient of parameter {sampler.name_of(group, i)} is sparse ({gradient.layout}); use dense "
                "gradients"
            )
        known = shapes.get(p)
        if known is None:
            shapes[p] = known = gradient.shape, p.dtype
            if not torch.compiler.is_compiling():  # it may have been converted since the sampler was made
                master_weights.validate(sampler, group, [p])
        if known != (gradient.shape, p.dtype):
            raise ValueError(
                f"parameter {sampler.name_of(group, i)} had the shape {tuple(known[0])} in its first step, and the "
                f"dtype {known[1]}: the state does not fit {tuple(gradient.shape)} and {p.dtype}; make a new sampler"
            )
        inputs.params.append(p)
        inputs.gradients.append(gradient)
    return inputs


def _report(sampler: Any, what: str, of: Any) -> None:
    """Raise FloatingPointError for the first parameter, or gradient of one, that is not finite."""
    for group in sampler.param_groups:
        for i, p in enumerate(group["params"]):
            value = of(p)
            if p.requires_grad and value is not None and not sharding.all_finite(value):
                subject = f"the {what} of parameter" if what else "parameter"
                raise FloatingPointError(f"{subject} {sampler.name_of(group, i)} is not finite; nothing was changed")


def advance_or_restore(sampler: Any, evaluation: Evaluation, swapped: list[tuple[Tensor, Tensor]]) -> None:
    """Take the step, and undo it if a parameter or a state is not finite after it.

    Raises:
        FloatingPointError: one is not; nothing has changed.
    """
    params = [p for inputs in evaluation.groups for p in inputs.params]
    values = [p.clone() for p in params]
    # Also of those that do not move: their mass may be frozen in this step.
    everything = [p for group in sampler.param_groups for p in group["params"] if p in sampler.state]
    states = {p: {name: x.clone() for name, x in sampler.state[p].items()} for p in everything}
    try:
        with sampler.restored_on_error():
            sampler.advance_all(evaluation)
            _validate_result(sampler, set(params), {p: own.dtype for p, own in swapped})
    except BaseException:
        for p, value in zip(params, values, strict=True):
            p.copy_(value)
        for p, state in states.items():
            for name, x in state.items():
                if name in sampler.state[p]:
                    sampler.state[p][name].copy_(x)
                else:  # a new cycle had begun by forgetting it
                    sampler.state[p][name] = x
        if evaluation.restore is not None:
            evaluation.restore()
        raise


def _validate_result(sampler: Any, moved: set[Tensor], rounded: dict[Tensor, torch.dtype]) -> None:
    subject = next(_not_finite(sampler, moved, rounded), "")
    if sharding.anywhere(subject, sampler.mesh):
        subject = subject or "a part in another process"
        raise FloatingPointError(f"{subject} would not be finite after this step; nothing was changed")


def _not_finite(sampler: Any, moved: set[Tensor], rounded: dict[Tensor, torch.dtype]) -> Iterator[str]:
    for group in sampler.param_groups:
        for i, p in enumerate(group["params"]):
            if p in moved:
                results = {"": p.to(rounded.get(p, p.dtype)), **sampler.state.get(p, {})}
                for name, x in results.items():
                    if not x.isfinite().all():
                        yield f"{name and f'{name} of '}parameter {sampler.name_of(group, i)}"
