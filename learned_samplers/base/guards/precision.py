"""The precision of an update: in float32 for half-precision parameters, and never that of ``torch.autocast``.

A bfloat16 number has 8 significant bits: a step that is less than 1/512 of a weight leaves it where it is, and a step
that is a little more moves it by 1/256. A sampler's steps are of that size, and its noise is what gives the law:
rounded to bfloat16, SGLD's variance comes out many times too large and SGHMC's weights may never move. So the state of
a half-precision parameter holds ``"master"``, the same weights in float32; the update, its noise and all of its state
are in float32, and the parameter is the master rounded.

This mends the update. The forward pass still sees rounded weights: where the posterior is narrower than the spacing of
bfloat16 numbers (|θ|/256), keep float32 parameters and compute under ``torch.autocast``.

Memory for each weight: 4 bytes for the master, and 4 instead of 2 for each number of state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base.protocol import Chain

#: Dtypes that need a master.
HALF = frozenset({torch.bfloat16, torch.float16})
#: Name of the copy in a parameter's state.
MASTER = "master"


def has_master(group: dict[str, Any], p: Tensor) -> bool:
    """Return whether the update of a parameter works on a float32 copy."""
    return p.dtype in HALF and group.get("master_weights", False) is not False


def working_dtype(group: dict[str, Any], p: Tensor) -> torch.dtype:
    """Dtype in which a parameter's update and state are."""
    return torch.float32 if has_master(group, p) else p.dtype


def validate(sampler: Chain, group: dict[str, Any], params: list[Tensor]) -> None:
    """Raise ValueError where ``master_weights`` or the sampler cannot have the dtype of a parameter."""
    wanted = group.get("master_weights", False)
    name = type(sampler).__name__
    for p in params:
        if wanted is True and p.dtype not in HALF:
            raise ValueError(f"master_weights=True is for bfloat16 and float16 parameters, got {p.dtype}")
        if p.dtype in HALF and wanted is not False and not sampler.half_precision:
            raise ValueError(
                f"{name} cannot sample parameters of {p.dtype}: it evaluates the loss beside the present weights, "
                "which rounding moves. Keep float32 parameters and compute under torch.autocast"
            )
        if p.dtype == torch.float16 and wanted is False:
            small = float(group.get("eps", 1.0))
            if sampler.needs_master_in_float16 or torch.tensor(small, dtype=torch.float16) == 0:
                raise ValueError(
                    f"master_weights=False: {name} divides by numbers that are 0 in float16, and gives nan; "
                    "leave master_weights at None, which keeps float32 copies"
                )


@contextmanager
def on_masters(sampler: Chain, evaluation: Any) -> Iterator[None]:
    """Within it masters take the place of half-precision parameters, and float32 gradients stand beside them."""
    swapped: list[tuple[Tensor, Tensor]] = []
    try:
        for group, inputs in zip(sampler.param_groups, evaluation.groups, strict=True):
            for i, p in enumerate(inputs.params):
                if has_master(group, p):
                    inputs.gradients[i] = inputs.gradients[i].float()
                    for values in inputs.per_parameter.values():
                        values[i] = values[i].float()
                    put_in_place(sampler, p, swapped)
        yield
        swap_out(swapped)
    except BaseException:  # also an interruption of the two: no parameter may stay in float32
        for p, memory in swapped:
            p.data = memory
        raise


def without_autocast(groups: Sequence[dict[str, Any]]) -> AbstractContextManager[Any]:
    """For an update in the parameters' own precision.

    Its matrix products would be rounded, and compiled code is given addresses of what it takes for float32.
    """
    device = next((p.device.type for group in groups for p in group["params"]), "cpu")
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


def put_in_place(sampler: Chain, p: Tensor, swapped: list[tuple[Tensor, Tensor]]) -> None:
    """Put one parameter's master, made if there is none, in its place; note the parameter and its own memory first."""
    state = sampler.state[p]
    state[MASTER] = _follow(p, state.get(MASTER))
    swapped.append((p, p.data))
    p.data = state[MASTER]


def swap_out(swapped: list[tuple[Tensor, Tensor]]) -> None:
    """Give the parameters their own memory back, with the masters' values rounded."""
    masters = [p.data for p, _ in swapped]
    for p, memory in swapped:
        p.data = memory
    for (p, _), master in zip(swapped, masters, strict=True):
        p.copy_(master)


def _follow(p: Tensor, master: Tensor | None) -> Tensor:
    """The master of a parameter: what it was, and the parameter's value wherever that was changed from outside."""
    if master is None:
        return p.detach().float()
    same = master.to(p.dtype) == p
    return master if same.all() else torch.where(same, master, p.float())
