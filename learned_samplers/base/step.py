"""What a step gathers before anything moves: the loss and, for each parameter group, parameters and gradients.

All that the rule will read is looked at here: gradients are there, dense and finite, parameters are finite and of the
shape and dtype that the state has, and numbers so large that the step may overflow are noted.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from learned_samplers.base import sharding, validation
from learned_samplers.base.guards import precision, side_by_side

# Parameters are updated in blocks of about this many coordinates, so that a block's noise is still in the processor's
# cache when it is added and never takes as much memory as the parameters do.
BLOCK_ON_CPU = 1 << 18
BLOCK_ON_GPU = 1 << 26
# Tensors of this many coordinates are multiplied with themselves on a CPU, which is faster there than their norm.
_LARGE = 1 << 14
# Norms up to these cannot overflow in one step of any sensible size; beyond them a step is taken with a copy at hand.
_SAFE = {torch.float16: 1e3, torch.bfloat16: 1e12, torch.float32: 1e12, torch.float64: 1e60}
# In each step at least this many parameters are looked at, and at least one in so many.
_PARAMETERS_A_STEP = 16
_TURNS = 8


@dataclass
class GroupInputs:
    """What one parameter group needs for a step."""

    #: The parameters that are sampled; those with ``requires_grad=False`` are left out.
    params: list[Tensor]
    #: Their gradients of the mean loss.
    gradients: list[Tensor]
    #: Further inputs of the rule by keyword, one tensor a parameter (pSGLD's curvature).
    per_parameter: dict[str, list[Tensor]] = field(default_factory=dict)
    #: Whatever else a sampler's `evaluate` worked out for its `advance`.
    prepared: Any = None
    #: The norm of the gradients of all groups together.
    total_norm: float = 0.0
    #: Whether a gradient or a parameter, of any group, is so large that the step may overflow.
    large: bool = False
    #: Whether a parameter is in half precision.
    half_precision: bool = False


@dataclass
class Evaluation:
    """What `Sampler.evaluate` returns: all that a step needs, checked before any parameter moves."""

    #: What the closure returned, or None without one.
    loss: Any
    #: One entry a parameter group.
    groups: list[GroupInputs]
    #: Puts the generators back, where `evaluate` has drawn noise already.
    restore: Callable[[], None] | None = None
    #: Whether an update that failed has been undone.
    undone: bool = False


def collect(sampler: Any) -> list[GroupInputs]:
    """The sampled parameters of each group and their gradients, which are there, dense and finite.

    Parameters are looked at in turn, all of them every 8 steps, or in every step where there are at most 16 tensors.
    """
    groups = [_of_group(sampler, group) for group in sampler.param_groups]
    if torch.compiler.is_compiling():
        return groups
    slopes = [gradient for inputs in groups for gradient in inputs.gradients]
    params = [p for inputs in groups for p in inputs.params]
    found, others = joint_norms(slopes, sampler.mesh), joint_norms(_in_turn(sampler, params), sampler.mesh)
    if not all(map(math.isfinite, [value for _, value in (*found, *others)])):
        _report(sampler, "gradient", lambda p: p.grad)
        _report(sampler, "", lambda p: p)
    total = math.hypot(*[value for _, value in found])
    large = _beyond([*found, *others])
    for inputs in groups:
        inputs.total_norm, inputs.large = total, large
    return groups


def _beyond(found: list[tuple[torch.dtype, float]]) -> bool:
    """Whether a norm is larger than its dtype's safe one."""
    return not all(map(operator.le, [norm for _, norm in found], [_SAFE.get(dtype, 1e3) for dtype, _ in found]))


def _in_turn(sampler: Any, params: list[Tensor]) -> list[Tensor]:
    share = max(_PARAMETERS_A_STEP, -(-len(params) // _TURNS))
    if len(params) <= share:
        return params
    start = sampler.step_count * share % len(params)
    return (params + params[:share])[start : start + share]


def _of_group(sampler: Any, group: dict[str, Any]) -> GroupInputs:
    inputs, shapes = GroupInputs([], []), sampler.first_shapes
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
                validation.parameter(f"parameter {sampler.name_of(group, i)}", p)
                precision.validate(sampler, group, [p])
        if known != (gradient.shape, p.dtype):
            raise ValueError(
                f"parameter {sampler.name_of(group, i)} had the shape {tuple(known[0])} in its first step, and the "
                f"dtype {known[1]}: the state does not fit {tuple(gradient.shape)} and {p.dtype}; make a new sampler"
            )
        inputs.half_precision |= p.dtype in precision.HALF
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
    """What a closure returned, as a tensor; a number of Python's keeps its double precision.

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


# --------------------------------------------------------------------------------- norms


def norms(tensors: Sequence[Tensor]) -> list[float]:
    """The norm of each tensor, not finite for one with a NaN or an infinity, or (rarely) where its square overflows.

    One transfer from each device.
    """
    result = [0.0] * len(tensors)
    by_kind: dict[tuple[torch.device, torch.dtype, bool], list[int]] = {}
    for i, tensor in enumerate(tensors):
        product = tensor.numel() >= _LARGE and tensor.is_cpu and tensor.is_contiguous()
        product = product and type(tensor) in _PLAIN and tensor.dtype in (torch.float32, torch.float64)
        by_kind.setdefault((tensor.device, tensor.dtype, product), []).append(i)
    for (_, dtype, product), members in by_kind.items():
        chosen = [tensors[i] for i in members]
        if product:
            values = [math.sqrt(x) if x >= 0 else x for x in map(_square, chosen)]
        elif dtype in (torch.float16, torch.bfloat16):
            values = torch.stack(torch._foreach_norm(chosen, dtype=torch.float32)).tolist()
        else:
            values = torch.stack(torch._foreach_norm(chosen)).tolist()
        for i, value in zip(members, values, strict=True):
            result[i] = value
    return result


_PLAIN = {Tensor, torch.nn.Parameter}
_WIDE = ({torch.float32}, {torch.float64})


def joint_norms(tensors: Sequence[Tensor], mesh: Any = None) -> list[tuple[torch.dtype, float]]:
    """The norm of each tensor, but of small ones on a CPU that of all together; with the dtype, in no order.

    A joint norm that is finite and small says so of every tensor in it. For twenty tensors of ten numbers it takes a
    third of the time of `norms`. Tensors on a device ``mesh`` have their own each, of all processes.
    """
    if mesh is not None:
        return list(zip([x.dtype for x in tensors], _norms_of_shards(tensors, mesh), strict=True))
    if _alike_and_small(tensors):
        flat = torch._C._nn.flatten_dense_tensors(list(tensors))
        value = torch.dot(flat, flat).item()
        return [(flat.dtype, math.sqrt(value) if value >= 0 else value)]
    pools: dict[torch.dtype, list[Tensor]] = {}
    single: list[Tensor] = []
    for x in tensors:
        (pools.setdefault(x.dtype, []) if _alike_and_small([x]) else single).append(x)
    found = [pair for pool in pools.values() for pair in joint_norms(pool)]
    return [*found, *((x.dtype, value) for x, value in zip(single, norms(single), strict=True))]


_on_cpu, _dtype = operator.attrgetter("is_cpu"), operator.attrgetter("dtype")


def _alike_and_small(tensors: Sequence[Tensor]) -> bool:
    """Whether these are small tensors of one dtype on a CPU; all of it at the speed of C."""
    return (
        bool(tensors)
        and max(map(Tensor.numel, tensors)) < _LARGE
        and all(map(_on_cpu, tensors))
        and {*map(type, tensors)} <= _PLAIN
        and {*map(_dtype, tensors)} in _WIDE
    )


def _square(x: Tensor) -> float:
    flat = x.view(-1)
    return torch.dot(flat, flat).item()


def _norms_of_shards(tensors: Sequence[Tensor], mesh: Any) -> list[float]:
    """The norm of each whole tensor, not finite in any process if it is not finite in one."""
    values = norms([sharding.local(x) for x in tensors])
    # Copies count as their mean, so that one that is not finite is seen everywhere.
    squares = torch.tensor(values, dtype=torch.float64).square()
    squares = squares.to(mesh.device_type) if mesh.device_type != "cpu" else squares
    for axis in range(mesh.ndim):
        copied = [not sharding.is_sharded(x) or x.placements[axis].is_replicate() for x in tensors]  # type: ignore
        squares = torch.where(torch.tensor(copied, device=squares.device), squares / mesh.size(axis), squares)
        dist.all_reduce(squares, group=mesh.get_group(axis))
    return squares.sqrt().tolist()
