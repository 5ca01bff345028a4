"""Loss, gradient and predictions of P members of one network, their weights in one flat buffer (P, d).

A kernel lays the parameter tensors of a network end to end, in the order of ``module.named_parameters()``, and works on
all members at once. Members come in groups that see the same images: with images of shape (G, n, C, H, W), member i
sees group i // (P/G) (the two members of an antithetic pair are a group).

`ConvolutionKernel` and `PerceptronKernel` are written out by hand, forward and backward, because the inner loop of
meta-training spends its time here: the first layer needs no gradient with respect to its input, ReLU commutes with
max-pooling and is done after it on a quarter of the numbers, and no graph is built. `ModuleKernel` runs any other
network through autograd, one member at a time; the tests hold the first two to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from meta_tasks.networks import architectures
from meta_tasks.networks.batched_base import Kernel, cross_entropy, linear, linear_gradients
from meta_tasks.networks.batched_convolution import ConvolutionKernel

__all__ = ["ConvolutionKernel", "Kernel", "ModuleKernel", "PerceptronKernel", "kernel_for"]

_aten = torch.ops.aten

_ACTIVATIONS: dict[type[nn.Module], tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor, Tensor], Tensor]]] = {
    # function of the pre-activation z; gradient with respect to z from (gradient, z, activation)
    nn.ReLU: (torch.relu, lambda g, z, a: _aten.threshold_backward(g, a, 0)),
    nn.Tanh: (torch.tanh, lambda g, z, a: _aten.tanh_backward(g, a)),
    nn.Sigmoid: (torch.sigmoid, lambda g, z, a: _aten.sigmoid_backward(g, a)),
    nn.SiLU: (nn.functional.silu, lambda g, z, a: _aten.silu_backward(g, z)),
    nn.GELU: (nn.functional.gelu, lambda g, z, a: _aten.gelu_backward(g, z)),
}


class PerceptronKernel(Kernel):
    """`architectures.mlp` as batched matrix products over the members."""

    def __init__(self, build: Callable[[], nn.Module]) -> None:
        super().__init__(build)
        with torch.random.fork_rng(devices=[]):
            layers = list(build().children())
        self.linear = [name.removesuffix(".weight") for name in self.names if name.endswith(".weight")]
        kinds = [type(layer) for layer in layers if type(layer) in _ACTIVATIONS]
        self._activations = [_ACTIVATIONS[kind] for kind in kinds]

    def _forward(self, w: dict[str, Tensor], x: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        per_group = len(w[f"{self.linear[0]}.bias"]) // len(x)
        inputs, before = [x.flatten(2).repeat_interleave(per_group, 0)], list[Tensor]()
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


class ModuleKernel(Kernel):
    """Any network without buffers, through autograd, one member at a time."""

    def __init__(self, build: Callable[[], nn.Module]) -> None:
        super().__init__(build)
        with torch.random.fork_rng(devices=[]):
            self._module = build()

    def _member(self, weights: Tensor, x: Tensor) -> Tensor:
        views = {name: tensor[0] for name, tensor in self.views(weights.unsqueeze(0)).items()}
        return functional_call(self._module, views, (x,))

    def logits(self, weights: Tensor, x: Tensor) -> Tensor:
        per_group = len(weights) // len(x)
        return torch.stack([self._member(member, x[i // per_group]) for i, member in enumerate(weights)])

    def loss_and_gradient(self, weights: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        per_group, losses, gradients = len(weights) // len(x), [], []
        for i, member in enumerate(weights):
            leaf = member.detach().requires_grad_()
            with torch.enable_grad():
                loss = nn.functional.cross_entropy(self._member(leaf, x[i // per_group]), y[i // per_group])
            losses.append(loss.detach())
            gradients.append(torch.autograd.grad(loss, leaf)[0])
        return torch.stack(losses), torch.stack(gradients)


def kernel_for(name: str, input_shape: Sequence[int], num_classes: int, **options: Any) -> Kernel:
    """The fastest kernel for a network of `architectures.build(name, input_shape, num_classes, **options)`.

    Raises:
        ValueError, TypeError: as `architectures.build`.
    """

    def build() -> nn.Module:
        return architectures.build(name, input_shape, num_classes, **options)

    kinds: dict[str, type[Kernel]] = {"cnn": ConvolutionKernel, "mlp": PerceptronKernel}
    return kinds.get(name, ModuleKernel)(build)
