"""Linear layers with tanh or ReLU after them, of several chains at once, with a gradient by hand.

Autograd gives the same. By hand a step saves copies (bias and activation in place), takes the faster of two products
for each gradient of a weight, and computes tanh by torch's faster sigmoid. Measured on one core (10-50-50-1, forward
and backward, 3 or 8 chains, 1,000 to 5,000 rows): in single precision 1.3 to 1.6 times as fast with tanh and 1.15 to
1.3 times with ReLU, in double precision 1.03 to 1.4 times; at 100 rows there is no gain. The estimators' fits are such
steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

#: For each layer how many tensors it has (1, or 2 with a bias), or the type of the activation.
Plan = Sequence[Any]


def plan_of(layers: Sequence[Any], names: Sequence[str]) -> Plan | None:
    """Return the plan of a sequence of names of linear layers, and activations; None if it is none for this file."""
    plan: list[Any] = []
    for layer in layers:
        is_activation = type(layer) in (nn.Tanh, nn.ReLU)
        if not isinstance(layer, str) and not (is_activation and plan and isinstance(plan[-1], int)):
            return None
        plan.append(type(layer) if is_activation else 1 + (f"{layer}.bias" in names))
    return plan


def can_run(*tensors: Tensor) -> bool:
    """Return whether these are tensors of a CPU of one precision that no transform, compiler or autocast changes."""
    first = tensors[0]
    return (
        first.dtype in (torch.float32, torch.float64)
        and all(t.is_cpu and t.dtype is first.dtype for t in tensors)
        and not (torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling())
        and torch._C._functorch.maybe_current_level() is None
        and forward_ad._current_level < 0
    )


class BatchedLayers(torch.autograd.Function):
    """The layers of a plan, applied to inputs (K, N, ...) with weights (K, out, in) and biases (K, out)."""

    @staticmethod
    def forward(ctx: Any, plan: Plan, x: Tensor, *weights: Tensor) -> Tensor:
        hidden, remaining, activations = x, list(weights), list[Tensor]()
        for layer in plan:
            if isinstance(layer, int):
                activations.append(hidden)
                hidden = _linear(hidden, *(remaining.pop(0) for _ in range(layer)))
            else:
                hidden = hidden.clamp_(min=0) if layer is nn.ReLU else _tanh_(hidden)
                activations.append(hidden)
        ctx.plan, ctx.count = plan, len(weights)
        ctx.save_for_backward(x, *weights, *activations)
        return hidden

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, saved = ctx.saved_tensors[0], ctx.saved_tensors[1:]
        weights, activations = saved[: ctx.count], list(saved[ctx.count :])
        if torch.is_grad_enabled():  # with create_graph
            wanted = [t for t, needed in zip((x, *weights), ctx.needs_input_grad[1:], strict=True) if needed]
            outputs = layers_by_autograd(ctx.plan, x, *weights)
            slopes = iter(torch.autograd.grad(outputs, wanted, gradient, create_graph=True))
            return None, *(next(slopes) if needed else None for needed in ctx.needs_input_grad[1:])
        gradients, remaining = list[Tensor](), list(weights)
        for place in range(len(ctx.plan) - 1, -1, -1):
            layer, hidden = ctx.plan[place], activations.pop()
            if isinstance(layer, int):
                if layer == 2:
                    remaining.pop()
                    gradients.append(gradient.sum(1))
                is_wide = gradient.shape[-1] > hidden.shape[-1]  # a product that is tall takes several times as long
                gradients.append(torch.bmm(hidden.mT, gradient).mT if is_wide else torch.bmm(gradient.mT, hidden))
                weight = remaining.pop()
                if place or ctx.needs_input_grad[1]:
                    gradient = torch.bmm(gradient, weight)
            elif layer is nn.ReLU:
                gradient = torch.ops.aten.threshold_backward(gradient, hidden, 0)
            else:
                gradient = torch.ops.aten.tanh_backward(gradient, hidden)
        return None, gradient if ctx.needs_input_grad[1] else None, *reversed(gradients)


def layers_by_autograd(plan: Plan, x: Tensor, *weights: Tensor) -> Tensor:
    """Return what `BatchedLayers` computes, by operations that autograd differentiates."""
    hidden, remaining = x, list(weights)
    for layer in plan:
        if isinstance(layer, int):
            hidden = _linear(hidden, *(remaining.pop(0) for _ in range(layer)))
        else:
            hidden = hidden.relu() if layer is nn.ReLU else hidden.tanh()
    return hidden


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.bmm(x, weight.mT) if bias is None else torch.baddbmm(bias[:, None], x, weight.mT)


#: Up to here tanh x is x to 10⁻⁷.
_NEAR = 0.006
_PIECE = 2**16


def _tanh_(x: Tensor) -> Tensor:
    """Return tanh x, in place: in single precision 2σ(2x) − 1, which torch computes faster, and x itself near zero."""
    if x.dtype is not torch.float32:
        return x.tanh_()
    for part in x.view(-1).split(_PIECE):  # whose copies stay in the cache
        near = part.clamp(-_NEAR, _NEAR)
        part.mul_(2).sigmoid_().mul_(2).sub_(1)
        part.add_(near.sub_(part.clamp(-_NEAR, _NEAR)))
    return x
