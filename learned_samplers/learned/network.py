"""The small network of a learned sampler: as an ``nn.Module``, as a flat vector of weights, and as a function."""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from learned_samplers.base.segments import Segments
from learned_samplers.learned.feature_sets import FeatureSet, feature_set_named
from learned_samplers.learned.native import kernel

#: The weights of a network, layer by layer: (weight (..., out, in), bias (..., out)), with leading axes () or (P,).
Phi = Sequence[tuple[Tensor, Tensor]]

#: γ is held to this, so that it multiplies β by a factor between 1/400 and 400.
GATE_BOUND = 6.0


class RuleArguments(TypedDict):
    """Keywords of every learned rule beside its settings.

    ``phi`` are the network's layers, with the leading axes of the parameter or none; ``segments`` says where the
    tensors lie in the flat axis. The others are numbers or zero-dimensional tensors: ``num_data`` is N,
    ``prior_precision`` λ, ``momentum_decay`` a.
    """

    phi: Phi
    segments: Segments
    lr: Any
    num_data: Any
    temperature: Any
    prior_precision: Any
    momentum_decay: Any


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
    """Return the weights of a module's ``nn.Linear`` layers in order, as `Phi`.

    Raises:
        TypeError: ``network`` is not an ``nn.Module``.
        ValueError: there is no such layer, one has no bias, one does not fit the next, or an ``nn.Sequential`` has
            other layers than these and ReLUs.
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
    if isinstance(network, nn.Sequential):
        for i, layer in enumerate(network):
            if type(layer) is not (nn.ReLU if i % 2 else nn.Linear) or (
                not i % 2 and layer not in linears[i // 2 :][:1]
            ):
                raise ValueError(
                    f"network must be nn.Linear layers, each there once, with nn.ReLU between them; layer {i} is "
                    f"{layer}"
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


def through(layers: Phi, x: Tensor) -> Tensor:
    """Layer after layer with ReLU between: x is (..., F, d), or (F, d), and may be any features."""
    for i, (weight, bias) in enumerate(layers):
        x = _affine(weight, bias.unsqueeze(-1), x)
        if i < len(layers) - 1:
            x = x.relu_()
    return x


def _affine(weight: Tensor, bias: Tensor, x: Tensor) -> Tensor:
    if x.dim() == 2 and weight.dim() == 2:
        return torch.addmm(bias, weight, x)
    if x.dim() == 3:
        return torch.baddbmm(bias.expand(len(x), -1, 1), weight.expand(len(x), -1, -1), x)
    return torch.matmul(weight, x) + bias


def outputs_of(y: Tensor, *, gated: bool = False) -> tuple[Tensor, ...]:
    """The outputs (..., d) in the rows of y, the last one times exp(γ) where γ lies behind it."""
    if not gated:
        return y.unbind(-2)
    *others, last, gate = y.unbind(-2)
    return (*others, last * gate.clamp(-GATE_BOUND, GATE_BOUND).exp())


def apply_network(phi: Phi, x: Tensor) -> tuple[Tensor, ...]:
    """The network on every coordinate: ReLU between the layers, x ↦ (α, β).

    Args:
        phi: layers; the last one has two outputs, α and β, or also γ, and then β·exp(γ) is given, γ held to ±6.
        x: features, (..., F, d). ``phi`` has x's leading axes, or none and is then shared.

    Returns:
        One tensor (..., d) for each output.
    """
    return outputs_of(through(phi, x), gated=phi[-1][0].shape[-2] == 3)


def value_and_slopes(phi: Phi, rows: Sequence[Tensor], wanted: Sequence[int]) -> tuple[Tensor, ...]:
    """A network with one output on every coordinate, and its derivatives in the inputs ``wanted``, (..., d) each.

    By compiled code where it takes the tensors, else by automatic differentiation, through which gradients flow.

    Args:
        phi: with the leading axes of the rows, or none.
        rows: the network's inputs, (..., d) each.
    """
    rows = [row.contiguous() for row in rows]  # one energy stands for a whole chain
    if kernel.takes(phi, rows):
        return kernel.value_and_slopes(phi, rows, wanted)

    def value(*moved: Tensor) -> Tensor:
        at = dict(zip(wanted, moved, strict=True))
        x = torch.stack([at.get(i, row) for i, row in enumerate(rows)], -2)
        return through(phi, x).squeeze(-2)

    if not wanted:
        return (value(),)
    output, pull = torch.func.vjp(value, *(rows[i] for i in wanted))[:2]
    return output, *pull(torch.ones_like(output))


def check_forward(network: nn.Module) -> None:
    """Raise ValueError if a module of the user's own class computes something else than its layers with ReLU between.

    The rules read the ``nn.Linear`` layers and never call the module. One without a ``forward`` just holds them.
    """
    if type(network).forward in (nn.Sequential.forward, nn.Module.forward):
        return  # `layers_of` sees the layers of the first
    stream, copied = torch.Generator().manual_seed(0), copy.deepcopy(network).to("cpu", torch.float64)
    with torch.no_grad():
        phi = layers_of(copied)
        for part in (part for pair in phi for part in pair):  # a last layer of zeros would hide what lies before it
            part.add_(torch.randn(part.shape, generator=stream, dtype=part.dtype))
        x = torch.randn(phi[0][0].shape[1], 16, generator=stream, dtype=torch.float64)
        expected = through(phi, x).T
        try:
            outputs = copied(x.T)
        except Exception as error:
            raise ValueError(f"network's forward fails on features (16, {len(x)}): {error}") from error
    if getattr(outputs, "shape", None) != expected.shape or not torch.allclose(outputs, expected):
        raise ValueError(
            f"network's forward must be its nn.Linear layers in the order in which they were made, with ReLU between "
            f"them and nothing else: that is what a step computes; {type(network).__name__} gives something else"
        )
