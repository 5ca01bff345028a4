"""Multilayer perceptrons: `mlp`, and many of one kind at once: `BatchedMLP`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from learned_samplers.base import validation
from meta_tasks.networks.batched import BatchedNetwork, cross_entropy, linear, linear_gradients
from meta_tasks.networks.building import ACTIVATIONS, InputShape, is_count

__all__ = ["BatchedMLP", "mlp"]


def mlp(
    input_shape: InputShape, num_classes: int, *, hidden: Sequence[int] = (100, 100), activation: str = "relu"
) -> nn.Module:
    """Fully connected network on the flattened image: `hidden` widths of the hidden layers, `activation` between them
    (relu, tanh, sigmoid, silu, gelu). Any image size."""
    if isinstance(hidden, int | str) or not all(is_count(width) for width in hidden):
        raise ValueError(f"hidden must be a sequence of positive integers, got {hidden!r}")
    validation.one_of("activation", activation, ACTIVATIONS)
    channels, height, width = input_shape
    layers: list[nn.Module] = [nn.Flatten()]
    widths = [channels * height * width, *hidden]
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], num_classes))


_aten = torch.ops.aten

_ACTIVATIONS: dict[type[nn.Module], tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor, Tensor], Tensor]]] = {
    # function of the pre-activation z; gradient with respect to z from (gradient, z, activation)
    nn.ReLU: (torch.relu, lambda g, z, a: _aten.threshold_backward(g, a, 0)),
    nn.Tanh: (torch.tanh, lambda g, z, a: _aten.tanh_backward(g, a)),
    nn.Sigmoid: (torch.sigmoid, lambda g, z, a: _aten.sigmoid_backward(g, a)),
    nn.SiLU: (nn.functional.silu, lambda g, z, a: _aten.silu_backward(g, z)),
    nn.GELU: (nn.functional.gelu, lambda g, z, a: _aten.gelu_backward(g, z)),
}


class BatchedMLP(BatchedNetwork):
    """P copies of `mlp`, with the loss and its gradient as batched matrix products, without autograd."""

    def __init__(self, build: Callable[[], nn.Module]) -> None:
        super().__init__(build)
        self.linear = [name.removesuffix(".weight") for name in self.names if name.endswith(".weight")]
        layers = map(type, self.module.children())
        self._activations = [_ACTIVATIONS[layer] for layer in layers if layer in _ACTIVATIONS]

    def _forward(self, w: dict[str, Tensor], x: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Logits, inputs of the layers, and pre-activations."""
        per_group = len(w[f"{self.linear[0]}.bias"]) // len(x)
        shared = x.flatten(2).unsqueeze(1).expand(-1, per_group, -1, -1).flatten(0, 1)  # a copy, but of one group
        inputs, before = [shared], list[Tensor]()
        for i, name in enumerate(self.linear):
            z = linear(inputs[-1], w[f"{name}.weight"], w[f"{name}.bias"])
            if i == len(self.linear) - 1:
                return z, inputs, before
            before.append(z)
            inputs.append(self._activations[i][0](z))
        raise AssertionError("a perceptron has at least its read-out layer")

    def logits(self, weights: Tensor, x: Tensor) -> Tensor:
        return self._forward(self.views(weights), x)[0]

    def loss_and_gradient(self, weights: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        gradient = torch.empty_like(weights)
        w, out = self.views(weights), self.views(gradient)
        logits, inputs, before = self._forward(w, x)
        loss, g = cross_entropy(logits, y, y.shape[1])
        for i in reversed(range(len(self.linear))):
            linear_gradients(out, self.linear[i], inputs[i], g)
            if i > 0:
                g = self._activations[i - 1][1](torch.bmm(g, w[f"{self.linear[i]}.weight"]), before[i - 1], inputs[i])
        return loss, gradient
