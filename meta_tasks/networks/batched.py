"""The fastest way to evaluate many copies of one network: `batched_network_for`; any network: `BatchedModule`.

`BatchedConvolution` and `BatchedMLP` are written out by hand, forward and backward, because the inner loop of
meta-training spends its time here: the first layer needs no gradient with respect to its input, ReLU commutes with
max-pooling and is done after it on a quarter of the numbers, and no graph is built. `BatchedResidual` puts all members
into one graph. `BatchedModule` runs any other network through autograd, one member at a time; the tests hold the other
three to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from meta_tasks.networks import architectures
from meta_tasks.networks.batched_base import BatchedNetwork
from meta_tasks.networks.batched_convolution import BatchedConvolution
from meta_tasks.networks.batched_mlp import BatchedMLP
from meta_tasks.networks.batched_residual import BatchedResidual

__all__ = ["BatchedModule", "batched_network_for"]


class BatchedModule(BatchedNetwork):
    """P copies of any network without buffers, through autograd, one member at a time."""

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


def batched_network_for(name: str, input_shape: Sequence[int], num_classes: int, **options: Any) -> BatchedNetwork:
    """The fastest batched form of the network ``architectures.build(name, input_shape, num_classes, **options)``.

    Raises:
        ValueError, TypeError: as `architectures.build`.
    """

    def build() -> nn.Module:
        return architectures.build(name, input_shape, num_classes, **options)

    by_hand: dict[str, type[BatchedNetwork]] = {
        **{"cnn": BatchedConvolution, "mlp": BatchedMLP},
        **dict.fromkeys(("resnet_frn", "resnet20_frn", "resnet"), BatchedResidual),
    }
    if name == "resnet" and (options.get("norm", "frn"), options.get("activation", "silu")) != ("frn", "silu"):
        return BatchedModule(build)
    return by_hand.get(name, BatchedModule)(build)
