"""Gradients of every target from a closure's losses: checks, backward passes, flat buffers."""

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
    validate_graph(name, losses)
    if not losses.isfinite().all():
        raise FloatingPointError(f"the closure returned losses that are not finite: {name} {losses.detach()}")


def validate_outputs(name: str, outputs: Any, particles: int, *, least_dimensions: int = 1) -> Tensor:
    """Outputs of the particles' networks, (M, ...), with their graph."""
    shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
    if not isinstance(outputs, Tensor) or outputs.dim() < least_dimensions or len(outputs) != particles:
        wanted = f"({particles}, n, ...)" if least_dimensions == 2 else f"({particles}, ...)"
        raise ValueError(f"the {name} that the closure returns must have shape {wanted}, got {shape}")
    validate_graph(f"the {name}", outputs)
    return outputs


def validate_graph(name: str, value: Tensor) -> None:
    if not value.requires_grad:
        raise ValueError(f"no graph under {name}: return them from the closure before any backward() or detach()")


def gradients_of(total: Tensor, wanted: Sequence[Tensor], *, retain_graph: bool = True) -> tuple[Tensor | None, ...]:
    """`torch.autograd.grad`, None for what takes no part; ValueError where the closure has freed the graph."""
    try:
        return torch.autograd.grad(total, wanted, retain_graph=retain_graph, allow_unused=True)
    except RuntimeError as error:
        if "backward through the graph a second time" not in str(error):
            raise
        raise ValueError(
            "the graph under the losses is freed: return them before any backward(), the sampler takes the gradients"
        ) from error


def task_gradients(
    losses: Sequence[Tensor], trunk: Named, heads: Mapping[int, Named], *, keep_graph: bool
) -> tuple[list[Tensor], dict[int, list[Tensor]]]:
    """Gradients of every loss by the trunk, stacked over targets (K, M, ...), and of each head by its own (1, M, ...).

    One backward pass a target: particle m's loss depends on its own slice alone, so the gradient of the sum over
    particles is every particle's gradient. Where the losses were stacked, a pass of one goes through all heads, with
    zeros.
    """
    shared: list[list[Tensor | None]] = []
    of_heads: dict[int, list[Tensor]] = {}
    for k, loss in enumerate(losses):
        head = heads.get(k, ())
        wanted = [p for _, p in (*trunk, *head)]
        last = k == len(losses) - 1 and not keep_graph
        grads = gradients_of(loss.sum(), wanted, retain_graph=not last) if wanted else ()
        shared.append(list(grads[: len(trunk)]))
        of_heads[k] = [
            checked_gradient(name, grad, f"loss {k}")[None]
            for (name, p), grad in zip(head, grads[len(trunk) :], strict=True)
        ]
    stacked = []
    for (name, p), of_targets in zip(trunk, zip(*shared, strict=True), strict=True):
        # A part of the network that only some tasks use has no gradient of the others.
        used = any(grad is not None for grad in of_targets)
        filled = [torch.zeros_like(p) if grad is None and used else grad for grad in of_targets]
        checked = [checked_gradient(name, grad, "the losses") for grad in filled]
        stacked.append(checked[0][None] if len(checked) == 1 else torch.stack(checked))
    return stacked, of_heads


def checked_gradient(name: str, grad: Tensor | None, of: str) -> Tensor:
    """A parameter's gradient, if it has one that is dense and finite."""
    if grad is None:
        raise ValueError(f"parameter {name} takes no part in {of}; set requires_grad=False, or give it another group")
    if grad.layout != torch.strided:
        raise TypeError(f"the gradient of parameter {name} is sparse ({grad.layout}); use dense gradients")
    if not all_finite(grad):
        raise FloatingPointError(f"the gradient of parameter {name} is not finite; nothing was changed")
    return grad


def all_finite(values: Tensor) -> bool:
    """True if every entry is finite. One norm decides; entries are looked at only where it is not finite."""
    return bool(values.norm().isfinite()) or bool(values.isfinite().all())


def flat_buffers(
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
