"""Image classifiers by name: `build`, `names`; and many copies of one at once: `batched_network_for`.

Every network maps images (n, C, H, W) to logits (n, num_classes) and keeps no buffers, so that its parameters are all
of its state: a posterior sample is then a list of tensors, with no running statistics to decide about.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from meta_tasks.networks.batched import BatchedModule, BatchedNetwork
from meta_tasks.networks.building import called, check_call, is_count
from meta_tasks.networks.convolution import BatchedConvolution, cnn, gong_cnn, lenet
from meta_tasks.networks.mlp import BatchedMLP, mlp
from meta_tasks.networks.residual import BatchedResidual, resnet, resnet20_frn, resnet_frn

__all__ = ["batched_network_for", "build", "names"]

_BUILDERS: dict[str, Callable[..., nn.Module]] = {
    builder.__name__: builder for builder in (mlp, cnn, lenet, gong_cnn, resnet, resnet20_frn, resnet_frn)
}


def names() -> tuple[str, ...]:
    """The architectures that `build` takes."""
    return tuple(_BUILDERS)


def build(name: str, input_shape: Sequence[int], num_classes: int, **options: object) -> nn.Module:
    """A freshly initialised network (from torch's global random state).

    Args:
        name: one of `names()`.
        input_shape: (C, H, W) of one image.
        num_classes: number of logits.
        options: the architecture's own, the keyword arguments of the function of its name.

    Raises:
        ValueError: an unknown name, a shape that is not three positive integers or too small for the architecture,
            or an option out of range.
        TypeError: an option that the architecture does not have.
    """
    builder = called(_BUILDERS, name)
    shape = tuple(input_shape)
    if len(shape) != 3 or not all(is_count(extent) for extent in shape):
        raise ValueError(f"input_shape must be (C, H, W), three positive integers, got {input_shape!r}")
    check_call(name, builder, num_classes, options)
    return builder(shape, num_classes, **options)


def batched_network_for(name: str, input_shape: Sequence[int], num_classes: int, **options: Any) -> BatchedNetwork:
    """The fastest batched form of the network ``build(name, input_shape, num_classes, **options)``.

    Raises:
        ValueError, TypeError: as `build`.
    """

    def make() -> nn.Module:
        return build(name, input_shape, num_classes, **options)

    by_hand: dict[str, type[BatchedNetwork]] = {"cnn": BatchedConvolution, "mlp": BatchedMLP}
    if name in ("resnet_frn", "resnet20_frn") or (name == "resnet" and options.get("activation", "silu") == "silu"):
        return BatchedResidual(make)
    return by_hand.get(name, BatchedModule)(make)
