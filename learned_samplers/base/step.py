"""The inputs of a step: the loss and, for each parameter group, its parameters, gradients and what else it needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

# Parameters are updated in blocks of about this many coordinates, so that a block's noise is still in the processor's
# cache when it is added and never takes as much memory as the parameters do.
BLOCK_ON_CPU = 1 << 18
BLOCK_ON_GPU = 1 << 26
# Tensors of this many coordinates are multiplied with themselves on a CPU, which is faster there than their norm.
_LARGE = 1 << 14


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
    #: Whether a gradient or a parameter is so large that the step may overflow.
    large: bool = False


@dataclass
class Evaluation:
    """What `Sampler.evaluate` returns: all that a step needs, checked before any parameter moves."""

    #: What the closure returned, or None without one.
    loss: Any
    #: One entry a parameter group.
    groups: list[GroupInputs]
    #: Puts the generators back, where `evaluate` has drawn noise already.
    restore: Callable[[], None] | None = None

    @property
    def large(self) -> bool:
        """Whether numbers are so large that the step may overflow."""
        return any(inputs.large for inputs in self.groups)


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


def joint_norms(tensors: Sequence[Tensor]) -> list[tuple[torch.dtype, float]]:
    """The norm of each tensor, but of small ones on a CPU that of all together; with the dtype, in no order.

    A joint norm that is finite and small says so of every tensor in it. For twenty tensors of ten numbers it takes a
    third of the time of `norms`.
    """
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


_on_cpu, _dtype = attrgetter("is_cpu"), attrgetter("dtype")


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
        return 0
    if loss.dim() == 1 and all(p.dim() and p.shape[0] == loss.shape[0] for p in params):
        return loss.shape[0]
    shapes = sorted({tuple(p.shape) for p in params})
    raise ValueError(
        f"closure returned losses of shape {tuple(loss.shape)}; expected () or the leading axis of the parameters, "
        f"whose shapes are {shapes}"
    )
