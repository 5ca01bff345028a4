"""Classifiers of images and texts by name, and many copies of one classifier evaluated at once.

- `build(name, input_shape, num_classes)` makes a ``torch.nn.Module`` (`names`): see `architectures`.
- `build_text(name, vocabulary, length, num_classes)` makes one that reads texts (`text_networks`).
- `batched_network_for(name, input_shape, num_classes)` makes the same network for P copies whose weights lie in one
  tensor (P, d), with the loss and gradient of all of them in one call: a `BatchedNetwork`.
"""

from meta_tasks.networks.architectures import batched_network_for, build, names
from meta_tasks.networks.batched import BatchedModule, BatchedNetwork
from meta_tasks.networks.convolution import BatchedConvolution
from meta_tasks.networks.mlp import BatchedMLP
from meta_tasks.networks.residual import BatchedResidual
from meta_tasks.networks.text import build_text, text_networks

__all__ = [
    "BatchedConvolution",
    "BatchedMLP",
    "BatchedModule",
    "BatchedNetwork",
    "BatchedResidual",
    "batched_network_for",
    "build",
    "build_text",
    "names",
    "text_networks",
]
