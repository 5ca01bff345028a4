"""Ways to compute the gradients of the members of a convolutional task, on which the choice of the batched network
rests, and ways to take a step of the inner loop."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from meta_tasks.networks import BatchedConvolution, BatchedModule, BatchedNetwork
from meta_tasks.rules.learned import L2ERule
from meta_tasks.rules.triton_l2e import FusedL2ERule, triton_installed

#: Ways to compute the gradients: name → what it is, for the table.
NETWORK_VARIANTS: dict[str, str] = {
    "chosen": "chosen: written out by hand, grouped, channels-last, pieces that fit the cache",
    "hand-loop": "written out by hand, one member at a time, whole batch",
    "hand-grouped": "written out by hand, grouped over all members, whole batch",
    "autograd": "autograd, one member at a time",
    "channels-last": "autograd, one member at a time, channels-last",
    "bf16": "autograd, one member at a time, channels-last, bfloat16 autocast",
    "vmap": "vmap over the members of grad",
    "unfold": "autograd, unfold + batched matrix product",
    "compiled": "autograd in torch.compile, one member at a time",
}

#: Ways to take a step.
STEP_VARIANTS: dict[str, str] = {
    "loop": "loop: tensors of their own at every step",
    "static": "static: between fixed buffers",
    "graph": "graph: the static step replayed as a CUDA graph (experimental)",
    "fused-loop": "loop, L2E's update in fused kernels (experimental)",
    "fused-graph": "graph, L2E's update in fused kernels (experimental)",
}


def variants_on(device: str) -> tuple[str, ...]:
    """The variants of a step that a device has."""
    if torch.device(device).type != "cuda":
        return ("loop", "static")
    return tuple(name for name in STEP_VARIANTS if triton_installed() or not name.startswith("fused"))


def variant_stepping(name: str) -> str:
    """How steps are taken in a variant, for `Unroll`; "loop" for a variant of the network."""
    return name.removeprefix("fused-") if name in STEP_VARIANTS else "loop"


def variant_rule(name: str) -> type[L2ERule]:
    """The class of the rule in a variant."""
    return FusedL2ERule if name.startswith("fused-") else L2ERule


class _ChannelsLast(BatchedModule):
    def loss_and_gradient(self, weights: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        flat = x.flatten(0, 1).contiguous(memory_format=torch.channels_last)
        return super().loss_and_gradient(weights, flat.unflatten(0, x.shape[:2]), y)

    def _member(self, weights: Tensor, x: Tensor) -> Tensor:
        views = {name: tensor[0] for name, tensor in self.views(weights.unsqueeze(0)).items()}
        for name, tensor in views.items():
            if tensor.dim() == 4:
                views[name] = tensor.contiguous(memory_format=torch.channels_last)
        return functional_call(self._module, views, (x.contiguous(memory_format=torch.channels_last),))


class _BFloat16(_ChannelsLast):
    def _member(self, weights: Tensor, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return super()._member(weights, x).float()


class _Functional(BatchedModule):
    """A pure loss of one member's flat weights, for vmap and compile."""

    def loss(self, weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
        pieces = weights.split(self.segments.lengths)
        views = {name: piece.view(self.shapes[name]) for name, piece in zip(self.names, pieces, strict=True)}
        return nn.functional.cross_entropy(functional_call(self._module, views, (x,)), y)


class _VMap(_Functional):
    def loss_and_gradient(self, weights: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        per_group = len(weights) // len(x)
        with torch.enable_grad():
            gradient, loss = vmap(grad_and_value(self.loss))(
                weights, x.repeat_interleave(per_group, 0), y.repeat_interleave(per_group, 0)
            )
        return loss.detach(), gradient.detach()


class _Compiled(_Functional):
    _compiled: Callable[..., Tensor] | None = None

    def loss_and_gradient(self, weights: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if self._compiled is None:
            self._compiled = torch.compile(self.loss)
        per_group, losses, gradients = len(weights) // len(x), [], []
        for i, member in enumerate(weights):
            leaf = member.detach().clone().requires_grad_()
            with torch.enable_grad():
                loss = self._compiled(leaf, x[i // per_group], y[i // per_group])
            losses.append(loss.detach())
            gradients.append(torch.autograd.grad(loss, leaf)[0])
        return torch.stack(losses), torch.stack(gradients)


class _Unfold(BatchedModule):
    """Convolutions as unfold and one matrix product an image."""

    def _member(self, weights: Tensor, x: Tensor) -> Tensor:
        w = {name: tensor[0] for name, tensor in self.views(weights.unsqueeze(0)).items()}
        n, _, height, width = x.shape
        hidden, layer = x, 0
        while f"convolutions.{layer}.weight" in w:
            columns = nn.functional.unfold(hidden, 3, padding=1)
            product = torch.matmul(w[f"convolutions.{layer}.weight"].flatten(1), columns)
            hidden = (product + w[f"convolutions.{layer}.bias"][:, None]).relu().view(n, -1, height, width)
            layer += 1
        hidden = nn.functional.max_pool2d(hidden, 2).flatten(1)
        for i in range(2):
            hidden = nn.functional.linear(hidden, w[f"linear.{i}.weight"], w[f"linear.{i}.bias"])
        return hidden


def make_network(variant: str, network: BatchedNetwork, members: int, batch: int) -> BatchedNetwork:
    """``network`` as a variant computes it."""
    kinds: dict[str, type[BatchedModule]] = {
        "autograd": BatchedModule,
        "channels-last": _ChannelsLast,
        "bf16": _BFloat16,
        "vmap": _VMap,
        "unfold": _Unfold,
        "compiled": _Compiled,
    }
    if variant == "chosen":
        return network
    if variant == "hand-loop":
        return BatchedConvolution(network.build, 1, batch)
    if variant == "hand-grouped":
        return BatchedConvolution(network.build, members, batch)
    return kinds[variant](network.build)
