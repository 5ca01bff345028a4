"""The small network that L2E applies to every coordinate, as an ``nn.Module`` and as a flat vector of weights."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from learned_samplers.learned.features import FeatureSet, feature_set_named
from learned_samplers.learned.l2e.rule import Phi


def build_network(
    feature_set: str | FeatureSet | int = "paper",
    hidden: Sequence[int] = (32, 32),
    outputs: int = 2,
    *,
    zero_last: bool = True,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
) -> nn.Sequential:
    """A fresh network F → hidden… → outputs with ReLU between the layers, its ``nn.Linear`` layers in order.

    ``feature_set`` is a set of features, its name, or F. Weights are N(0, 1/fan_in), biases 0; ``zero_last`` sets the
    last layer to zero, so that the untrained residual sampler is its hand-designed base.
    """
    inputs = feature_set if isinstance(feature_set, int) else feature_set_named(feature_set).size
    sizes = [inputs, *hidden, outputs]
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for i, (fan_in, fan_out) in enumerate(pairwise(sizes)):
        linear = nn.utils.skip_init(nn.Linear, fan_in, fan_out, dtype=dtype)
        last = i == len(sizes) - 2
        with torch.no_grad():
            linear.bias.zero_()
            if last and zero_last:
                linear.weight.zero_()
            else:
                linear.weight.normal_(0, 1 / math.sqrt(fan_in), generator=generator)
        layers[f"linear_{i}"] = linear
        if not last:
            layers[f"relu_{i}"] = nn.ReLU()
    return nn.Sequential(layers)


def layers_of(network: nn.Module) -> Phi:
    """The weights of a module's ``nn.Linear`` layers in order, as `learned_samplers.learned.l2e.rule.Phi`.

    Raises:
        TypeError: ``network`` is not an ``nn.Module``.
        ValueError: there is no such layer, one has no bias, or one does not fit the next.
    """
    if not isinstance(network, nn.Module):
        raise TypeError(f"network must be an nn.Module, got {type(network).__name__}")
    linears = [module for module in network.modules() if isinstance(module, nn.Linear)]
    if not linears:
        raise ValueError("network must have nn.Linear layers, got none")
    for i, linear in enumerate(linears):
        if linear.bias is None:
            raise ValueError(f"network's nn.Linear layer {i} must have a bias")
        if i and linear.in_features != linears[i - 1].out_features:
            raise ValueError(
                f"network's nn.Linear layer {i} takes {linear.in_features} values, layer {i - 1} gives "
                f"{linears[i - 1].out_features}"
            )
    return [(linear.weight, linear.bias) for linear in linears]


def shapes_of(phi: Phi) -> tuple[tuple[int, int], ...]:
    """(out, in) of each layer."""
    return tuple((weight.shape[-2], weight.shape[-1]) for weight, _ in phi)


def flatten(phi: Phi) -> Tensor:
    """All weights as one vector (..., n): layer by layer, weight (row-major) then bias."""
    return torch.cat([part for weight, bias in phi for part in (weight.flatten(-2), bias)], -1)


def unflatten(vector: Tensor, shapes: Sequence[tuple[int, int]]) -> Phi:
    """The inverse of `flatten`; a leading axis of members (P, n) gives (P, out, in) and (P, out).

    Raises:
        ValueError: the vector's length is not that of ``shapes``.
    """
    needed = sum(out * (into + 1) for out, into in shapes)
    if vector.shape[-1] != needed:
        raise ValueError(f"vector must have {needed} weights for the layers {tuple(shapes)}, got {vector.shape[-1]}")
    phi, start = [], 0
    for out, into in shapes:
        middle, stop = start + out * into, start + out * (into + 1)
        phi.append((vector[..., start:middle].unflatten(-1, (out, into)), vector[..., middle:stop]))
        start = stop
    return phi
