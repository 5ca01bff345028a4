"""The small network of a learned sampler: as an ``nn.Module``, as a flat vector of weights, and on every coordinate."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from learned_samplers.base.segments import Segments
from learned_samplers.base.whitening import update_whitening
from learned_samplers.learned.feature_sets import FeatureSet, feature_set_named
from learned_samplers.learned.features import FLOOR, TensorScales, update_averages
from learned_samplers.learned.whole_matrices import unrounded

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


# On a CPU a block's widest activation should stay in the second-level cache: 8 members × 32 units × 512 coordinates
# × 4 bytes = 512 KiB. Measured at d = 29,000, P = 8, one core: 9.3 ms a pass in such blocks, 17.6 ms unblocked.
_CACHE_BYTES = 512 * 1024


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


def apply_network(
    phi: Phi, x: Tensor, *, output_bound: float | None = None, heads: tuple[int, ...] = (0, 1)
) -> tuple[Tensor, ...]:
    """The network on every coordinate: ReLU between the layers, x ↦ (α, β).

    Args:
        phi: layers; the last one has two outputs, α and β, or also γ, and then β·exp(γ) is given, γ held to ±6.
        x: features, (..., F, d). ``phi`` has x's leading axes, or none and is then shared.
        output_bound: B > 0 replaces an output y by B·tanh(y/B); None leaves it as it is.
        heads: the outputs to compute, (0, 1) for (α, β).

    Returns:
        One tensor (..., d) for each of ``heads``.
    """
    size = _block_size(phi, x[..., 0, :])
    return _outputs(phi, x.split(size, -1), output_bound, heads)


def raw_outputs(phi: Phi, scales: TensorScales, rows: slice) -> tuple[Tensor, ...]:
    """Some of the network's outputs on every coordinate, (..., d) each, with neither bound nor gate."""
    *hidden, (weight, bias) = phi
    layers = [*hidden, (weight[..., rows, :], bias[..., rows])]
    y = torch.cat([through(layers, block) for block in _blocks(phi, scales)], -1)
    return y.unbind(-2)


def _blocks(phi: Phi, scales: TensorScales) -> Iterator[Tensor]:
    """The features of all coordinates, as many at a time as fit the cache."""
    total, size = scales.parameter.shape[-1], _block_size(phi, scales.parameter)
    return (scales.window(start, min(start + size, total)) for start in range(0, total, size))


def _outputs(
    phi: Phi, blocks: Iterable[Tensor], output_bound: float | None, heads: tuple[int, ...]
) -> tuple[Tensor, ...]:
    *hidden, (weight, bias) = phi
    gated = weight.shape[-2] == 3 and 1 in heads
    rows = slice(heads[0], 3 if gated else heads[-1] + 1)
    layers = [*hidden, (weight[..., rows, :], bias[..., rows])]
    outputs = [through(layers, block) for block in blocks]
    y = outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)
    main = y[..., :-1, :] if gated else y
    if output_bound is not None:
        main = output_bound * torch.tanh(main / output_bound)
    *others, last = main.unbind(-2)
    if gated:
        last = last * y[..., -1, :].clamp(-GATE_BOUND, GATE_BOUND).exp()
    return (*others, last)


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


def _block_size(phi: Phi, row: Tensor) -> int:
    """Coordinates that go through the network at a time; ``row`` is one feature, (..., d)."""
    if row.device.type != "cpu":
        return max(row.shape[-1], 1)
    width = max(weight.shape[-2] for weight, _ in phi)
    members = row[..., 0].numel()
    return max(_CACHE_BYTES // (width * members * row.element_size()), 128)


class NetworkOnChain:
    """The network at one state of the chain; called with the momentum, once a pass.

    The second pass computes the first layer anew. Only the momentum has changed, but to add its part to a layer that
    was kept costs 2.1 ms (at d = 29,000, P = 8), to compute the layer 3.0, and to keep it 32·P·d floats of memory.
    """

    def __init__(self, phi: Phi, scales: TensorScales, output_bound: float | None, normalised: Any = None):
        """``normalised``: None, or what the second output is multiplied by after it was divided by its root mean square
        over the tensor."""
        self.phi, self.scales, self.output_bound, self.normalised = phi, scales, output_bound, normalised

    def __call__(self, momentum: Tensor, heads: tuple[int, ...] = (0, 1)) -> tuple[Tensor, ...]:
        outputs = self._of(self.scales.with_momentum(momentum), heads)
        if self.normalised is None or 1 not in heads:
            return outputs
        self._factor = self._scale_of(outputs[-1])
        return (*outputs[:-1], outputs[-1] * self._factor)

    def _scale_of(self, output: Tensor) -> Tensor:
        segments = self.scales.segments
        return segments.expand(torch.rsqrt(segments.mean_square(output) + FLOOR) * self.normalised)

    def in_pieces(
        self, momentum: Tensor, size: int, heads: tuple[int, ...] = (0, 1)
    ) -> Iterator[tuple[slice, tuple[Tensor, ...]]]:
        """The outputs for one tensor (d,), block by block; a block's state may change once its outputs are returned.

        Outputs that are normalised over a tensor of several blocks are computed twice: to keep them would take as much
        memory as the tensor does.
        """
        total, scales = momentum.shape[-1], self.scales.with_momentum(momentum)
        parts = [slice(start, min(start + size, total)) for start in range(0, total, size)]
        factor: Any = None
        if self.normalised is not None and 1 in heads:
            norms = [torch.linalg.vector_norm(self._of(scales.part(part), (1,))[0]) for part in parts]
            # (A process may hold nothing of a tensor that is sharded, and takes part in its statistics.)
            norm = torch.linalg.vector_norm(torch.stack([momentum.new_zeros(()), *norms]), keepdim=True)
            factor = torch.rsqrt(scales.segments.from_norms(norm) + FLOOR) * self.normalised
        for part in parts:
            outputs = self._of(scales.part(part), heads)
            yield part, outputs if factor is None else (*outputs[:-1], outputs[-1] * factor)

    def held(self, parameter: Tensor, momentum: Tensor) -> tuple[Tensor, ...]:
        """The outputs at another θ and r, with the scales of the tensors as they were in the last call."""
        outputs = self._of(self.scales.held(parameter, momentum), (0, 1))
        return outputs if self.normalised is None else (outputs[0], outputs[1] * self._factor)

    def _of(self, scales: TensorScales, heads: tuple[int, ...]) -> tuple[Tensor, ...]:
        return _outputs(self.phi, _blocks(self.phi, scales), self.output_bound, heads)


def network_at(
    phi: Phi,
    parameter: Tensor,
    gradient: Tensor,
    averages: Tensor,
    segments: Segments,
    *,
    settings: Any,
    lr: Any,
    num_data: Any,
    step: Any,
    prior_precision: Any = None,
    whitening: Tensor | None = None,
    normalised: Any = None,
    in_place: bool = False,
) -> tuple[NetworkOnChain, tuple[Tensor, ...]]:
    """The network at a state of the chain, and its averages (and covariances) updated with the gradient.

    ``averages`` are (..., K, d); ``whitening`` is (..., w) where the feature set has any, see `features`;
    ``settings`` say what it sees and how its outputs are bounded; ``normalised`` is that of `NetworkOnChain`;
    ``in_place`` writes into both.
    """
    named = feature_set_named(settings.feature_set)
    exact = unrounded(named, averages, gradient)
    averages = update_averages(averages, gradient, named, in_place=in_place, step=step, segments=segments)
    at = dict(lr=lr, num_data=num_data, step=step, total_steps=settings.total_steps, prior_precision=prior_precision)
    kept: tuple[Tensor, ...] = (averages,)
    if named.whitens:
        whitening = update_whitening(whitening, gradient, segments, step, in_place=in_place)
        kept = averages, whitening
    scales = TensorScales(parameter, gradient, averages, segments, named, **at, whitening=whitening, exact=exact)
    return NetworkOnChain(phi, scales, settings.output_bound, normalised), kept
