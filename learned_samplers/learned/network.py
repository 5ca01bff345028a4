"""The small network of a learned sampler: as an ``nn.Module``, as a flat vector of weights, and at every weight.

Whether compiled code computes or torch is decided here, by `kernel.takes`: in `network_at` and `value_and_slopes`.
"""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from learned_samplers.base import matrices
from learned_samplers.base.segments import Segments
from learned_samplers.learned.features import (
    AVERAGE_DECAYS,
    FEATURE_SETS,
    FLOOR,
    FeatureSet,
    Kept,
    Scales,
    feature_set_named,
    update_averages,
    update_each_,
)
from learned_samplers.learned.native import kernel

#: The weights of a network, layer by layer: (weight (..., out, in), bias (..., out)), with leading axes () or (P,).
Phi = Sequence[tuple[Tensor, Tensor]]


#: γ is held to this, so that it multiplies β by a factor between 1/400 and 400.
GATE_BOUND = 6.0


class RuleArguments(TypedDict):
    """What every learned rule takes by keyword beside its settings.

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
    """The weights of a module's ``nn.Linear`` layers in order, as `Phi`.

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
    found, pull = torch.func.vjp(value, *(rows[i] for i in wanted))[:2]
    return found, *pull(torch.ones_like(found))


def check_forward(network: nn.Module) -> None:
    """Raise ValueError if a module of the user's own class computes something else than its layers with ReLU between.

    The rules read the ``nn.Linear`` layers and never call the module. One without a ``forward`` just holds them.
    """
    if type(network).forward in (nn.Sequential.forward, nn.Module.forward):
        return  # of the first `layers_of` sees the layers themselves
    stream, copied = torch.Generator().manual_seed(0), copy.deepcopy(network).to("cpu", torch.float64)
    with torch.no_grad():
        phi = layers_of(copied)
        for part in (part for pair in phi for part in pair):  # a last layer of zeros would hide what lies before it
            part.add_(torch.randn(part.shape, generator=stream, dtype=part.dtype))
        x = torch.randn(phi[0][0].shape[1], 16, generator=stream, dtype=torch.float64)
        expected = through(phi, x).T
        try:
            found = copied(x.T)
        except Exception as error:
            raise ValueError(f"network's forward fails on features (16, {len(x)}): {error}") from error
    if getattr(found, "shape", None) != expected.shape or not torch.allclose(found, expected):
        raise ValueError(
            f"network's forward must be its nn.Linear layers in the order in which they were made, with ReLU between "
            f"them and nothing else: that is what a step computes; {type(network).__name__} gives something else"
        )


# ------------------------------------------------------------------------------------------- the network on a chain

# Coordinates, of all members together, whose features are made at a time.
_PIECE_ON_CPU, _PIECE_ON_GPU = 1 << 14, 1 << 22


@dataclass
class NetworkOnChain:
    """The network at one state of the chain; called with the momentum, once a pass.

    The second pass computes the first layer anew, though only the momentum has changed: to keep it takes 32·d floats.

    Args:
        phi: its layers.
        chain: what it sees, and what computes: torch, or compiled code.
        normalised: whether the second output is divided by its root mean square over the tensor.
    """

    phi: Phi
    chain: Scales | kernel.CompiledChain
    normalised: bool = False

    def __call__(self, momentum: Tensor, heads: tuple[int, ...] = (0, 1)) -> tuple[Tensor, ...]:
        """The outputs ``heads`` at every coordinate, (..., d) each: of (α, β), or of a gate's (α, β·exp γ)."""
        *hidden, (weight, bias) = self.phi
        gated = weight.shape[-2] == 3 and 1 in heads
        rows = slice(heads[0], 3 if gated else heads[-1] + 1)
        layers = [*hidden, (weight[..., rows, :], bias[..., rows])]
        if isinstance(self.chain, Scales):
            outputs = _in_pieces(layers, self.chain.with_momentum(momentum), gated)
        else:
            outputs = self.chain.outputs(layers, gated, momentum)
        if not self.normalised or 1 not in heads:
            return outputs
        factor = torch.rsqrt(self.chain.segments.mean_square(outputs[-1]) + FLOOR)
        self._factor = self.chain.segments.expand(factor) if momentum.shape[-1] else factor
        return (*outputs[:-1], outputs[-1] * self._factor)

    def held(self, parameter: Tensor, momentum: Tensor) -> tuple[Tensor, ...]:
        """Both outputs at another θ and r, with the scales of the tensors as they were in the last call of torch's."""
        assert isinstance(self.chain, Scales)
        gated = self.phi[-1][0].shape[-2] == 3
        alpha, beta = _in_pieces(self.phi, self.chain.held(parameter, momentum), gated)
        return alpha, beta * self._factor if self.normalised else beta


def _in_pieces(layers: Phi, scales: Scales, gated: bool) -> tuple[Tensor, ...]:
    """The outputs in torch, which makes the features of some coordinates at a time."""
    total, members = scales.parameter.shape[-1], max(scales.parameter[..., :1].numel(), 1)
    size = max((_PIECE_ON_CPU if scales.parameter.is_cpu else _PIECE_ON_GPU) // members, 128)
    # (A process may hold nothing of a tensor that is sharded, and takes part in its statistics.)
    starts = range(0, max(total, 1), size)
    pieces = [through(layers, scales.window(start, min(start + size, total))) for start in starts]
    return outputs_of(pieces[0] if len(pieces) == 1 else torch.cat(pieces, -1), gated=gated)


def network_at(
    phi: Phi,
    parameter: Tensor,
    gradient: Tensor,
    averages: Kept,
    segments: Segments,
    *,
    settings: Any,
    lr: Any,
    num_data: Any,
    step: Any,
    prior_precision: Any = None,
    covariances: Kept | None = None,
    in_place: bool = False,
) -> tuple[NetworkOnChain, tuple[Any, ...]]:
    """The network at a state of the chain, and its averages (and covariances) updated with the gradient.

    Args:
        averages: (..., K, d), or in place (K, *shape) for each tensor.
        covariances: (..., w) or likewise, where the feature set has a matrix direction.
        settings: say what the network sees, and whether its second output is normalised.
        in_place: write into averages and covariances; only then compiled code may compute.
    """
    named = FEATURE_SETS[settings.feature_set]
    kept = [averages] if isinstance(averages, Tensor) else averages
    run = dict(lr=lr, num_data=num_data, step=step, total_steps=settings.total_steps)
    rounded = named.matrix and kept[0].dtype != gradient.dtype
    ahead = _unrounded(averages, gradient, segments) if rounded else None
    compiled, flat = None, averages
    if in_place and kernel.takes(phi, [parameter, gradient, *kept], segments):
        compiled = kernel.CompiledChain(parameter, gradient, averages, segments, named, **run)
    elif isinstance(averages, Tensor):
        flat = averages = update_averages(averages, gradient, named, in_place=in_place, step=step, segments=segments)
    else:
        flat = update_each_(averages, gradient, named, step=step, segments=segments)
    matrix_rows: list[Tensor] = []
    if named.matrix:
        slopes = segments.as_matrices(gradient)
        covariances, states = _states(covariances, gradient, segments, in_place)
        matrices.update_covariances_(states, slopes)
        decay = prior_precision / num_data if settings.attenuated else 0.0
        ahead = list(torch._foreach_lerp(list(ahead or _rows(averages, segments)), slopes, 1 - _MATRIX_DECAY))
        matrix_rows = matrices.directions(ahead, states, segments.as_matrices(parameter), decay)
        if isinstance(covariances, Tensor):  # of all tensors; an optimizer's have their turns among all of its own
            matrices.renew_roots_(states, step)
    chain: Scales | kernel.CompiledChain
    if compiled is None:
        direction = torch.cat([row.flatten(-2) for row in matrix_rows], -1) if named.matrix else None
        chain = Scales(parameter, gradient, flat, segments, named, direction=direction, **run)
    else:
        chain, compiled.direction = compiled, [row.contiguous() for row in matrix_rows]
    network = NetworkOnChain(phi, chain, settings.normalise_output)
    return network, (averages,) if covariances is None else (averages, covariances)


# d of the average that the matrix direction is made of, d·m + (1−d)·g, which looks a step ahead; and its row.
_MATRIX_DECAY = 0.9
_MATRIX_AVERAGE = AVERAGE_DECAYS.index(_MATRIX_DECAY)


def _rows(averages: Kept, segments: Segments) -> list[Tensor]:
    """Those rows of every tensor, as matrices."""
    if isinstance(averages, Tensor):
        return segments.as_matrices(averages[..., _MATRIX_AVERAGE, :])
    return [x[_MATRIX_AVERAGE].reshape(sides) for x, sides in zip(averages, segments.matrices, strict=True)]


def _unrounded(averages: Kept, gradient: Tensor, segments: Segments) -> list[Tensor]:
    """Of averages in bfloat16, not yet updated: those rows after this gradient, before they are rounded."""
    rows, slopes = _rows(averages, segments), segments.as_matrices(gradient)
    return [torch.lerp(m.to(g.dtype), g, 1 - _MATRIX_DECAY) for m, g in zip(rows, slopes, strict=True)]


def _states(
    covariances: Kept | None, gradient: Tensor, segments: Segments, in_place: bool
) -> tuple[Kept, Sequence[Tensor]]:
    """Covariances that may be written into, as they were given, and those of every tensor.

    Raises:
        ValueError: there are none, or the gradient is differentiated, which their root does not allow.
    """
    if covariances is None:
        raise ValueError("covariances must be given for a feature set with a matrix direction, got None")
    if not isinstance(covariances, Tensor):
        return covariances, covariances
    if torch.is_grad_enabled() and (covariances.requires_grad or gradient.requires_grad):
        raise ValueError(
            "the root of a covariance is not differentiated through: take weights of a feature set that does not "
            "whiten, such as network='l2e' of L2E"
        )
    covariances = covariances if in_place else covariances.clone()
    return covariances, matrices.flat_states(covariances, segments)
