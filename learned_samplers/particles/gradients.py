"""From a closure's losses to gradients of every target: checks, backward passes, flat buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Named = Sequence[tuple[str, Tensor]]


def validate_losses(losses: Any, particles: int, *, several: bool) -> tuple[Tensor, ...]:
    """Check the losses, and return them as K tensors (M,)."""
    if several and isinstance(losses, list):
        for k, loss in enumerate(losses):
            _validate_losses(f"loss {k}", loss, particles, f"({particles},)", 1)
        if not losses:
            raise ValueError("the closure must return the losses of at least one target, got an empty list")
        return tuple(losses)
    expected = f"(K, {particles})" if several else f"({particles},)"
    _validate_losses("the losses", losses, particles, expected, 2 if several else 1)
    return losses.unbind(0) if several else (losses,)


def _validate_losses(name: str, losses: Any, particles: int, expected: str, dimensions: int) -> None:
    if not isinstance(losses, Tensor):
        raise TypeError(f"the closure must return a tensor of losses, got {type(losses).__name__} for {name}")
    if losses.dim() != dimensions or losses.shape[-1] != particles or losses.numel() == 0:
        hint = "; losses must not be reduced over particles" if losses.dim() == 0 or losses.shape[-1] == 1 else ""
        raise ValueError(f"{name} must have shape {expected}, got {tuple(losses.shape)}{hint}")
    if not losses.is_floating_point():
        raise TypeError(f"{name} must hold real floating-point numbers, got dtype {losses.dtype}")
    if not losses.requires_grad:
        raise ValueError(f"no graph under {name}: return them from the closure before any backward() or detach()")
    if not losses.isfinite().all():
        raise FloatingPointError(f"the closure returned losses that are not finite: {name} {losses.detach()}")


def validate_names(tasks: list[int], targets: int, trunk: bool) -> None:
    """Raise ValueError unless the task groups fit the number of losses."""
    if not trunk:
        raise ValueError("there is no group of shared parameters: every parameter group names a task")
    if tasks and tasks != list(range(targets)):
        raise ValueError(
            f"{targets} losses need a group for each of the tasks 0 to {targets - 1}, got groups for {tasks}"
        )


def task_gradients(
    losses: Sequence[Tensor], trunk: Named, heads: Mapping[int, Named], *, keep_graph: bool
) -> tuple[list[Tensor], dict[int, list[Tensor]]]:
    """Gradients of every loss by the trunk, stacked over targets (K, M, ...), and of each head by its own (1, M, ...).

    One backward pass a target: particle m's loss depends on its own slice alone, so the gradient of the sum over
    particles is every particle's gradient. Where the losses were stacked, a pass of one goes through all heads, with
    zeros.
    """
    shared: list[list[Tensor | None]] = []
    own: dict[int, list[Tensor]] = {}
    for k, loss in enumerate(losses):
        head = heads.get(k, ())
        wanted = [p for _, p in (*trunk, *head)]
        last = k == len(losses) - 1 and not keep_graph
        grads = torch.autograd.grad(loss.sum(), wanted, retain_graph=not last, allow_unused=True) if wanted else ()
        shared.append(list(grads[: len(trunk)]))
        for (name, p), grad in zip(head, grads[len(trunk) :], strict=True):
            if grad is None:
                raise ValueError(f"parameter {name} takes no part in loss {k}; freeze it or take it out of task {k}")
            own.setdefault(k, []).append(checked_gradient(name, p, grad)[None])
    stacked = []
    for (name, p), of_targets in zip(trunk, zip(*shared, strict=True), strict=True):
        if all(grad is None for grad in of_targets):
            raise ValueError(f"parameter {name} takes no part in the losses; set requires_grad=False to keep it fixed")
        # A part of the network that only some tasks use has no gradient of the others.
        filled = [torch.zeros_like(p) if grad is None else checked_gradient(name, p, grad) for grad in of_targets]
        stacked.append(filled[0][None] if len(filled) == 1 else torch.stack(filled))
    return stacked, own


def checked_gradient(name: str, p: Tensor, grad: Tensor) -> Tensor:
    if grad.layout != torch.strided:
        raise TypeError(f"the gradient of parameter {name} is sparse ({grad.layout}); use dense gradients")
    if not all_finite(grad):
        raise FloatingPointError(f"the gradient of parameter {name} is not finite; nothing was changed")
    return grad


def all_finite(values: Tensor) -> bool:
    """Whether every entry is finite; one norm decides, and only where it is not finite are the entries looked at."""
    return bool(values.norm().isfinite()) or bool(values.isfinite().all())


def gather(
    params: list[Tensor], gradients: list[Tensor], num_data: float, priors: list[float]
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Particles (M, d) and ∇U = N·g + λθ of every target (K, M, d), each one buffer; λ of each coordinate, (d,)."""
    points = torch.cat([p.detach().reshape(len(p), -1) for p in params], dim=1)
    buffer = torch.cat([g.detach().reshape(*g.shape[:2], -1) for g in gradients], dim=2)
    if num_data != 1:
        buffer *= num_data
    if not any(priors):
        return points, buffer, None
    prior = torch.cat([points.new_full((p[0].numel(),), value) for p, value in zip(params, priors, strict=True)])
    buffer += prior * points
    return points, buffer, prior
