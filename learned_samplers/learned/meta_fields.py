"""Meta-SGMCMC's two small networks: how they lie in one stack of layers, and their derivatives, which Γ needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from learned_samplers.base.segments import Segments
from learned_samplers.learned.network import Phi, build_network, layers_of, value_and_slopes

#: The inputs: s_u·Ũ/N, the momentum pᵢ, s_g·∂ᵢŨ/N. The curl sees the first two, the friction all three.
META_FEATURES = ("energy", "momentum", "energy_gradient")

#: By name: as they are; or momentum and gradient divided by their root mean squares over the tensor, for networks that
#: meet many tasks. The energy has one value a chain, which its own root mean square would turn into a sign.
META_FEATURE_SETS = {"energy": META_FEATURES, "energy_rms": ("energy", "momentum_to_rms", "energy_gradient_to_rms")}


def build_meta_network(
    hidden: Sequence[int] = (10,),
    *,
    zero_last: bool = True,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
) -> nn.Sequential:
    """Fresh f_Q(Ũ, pᵢ) and f_D(Ũ, pᵢ, ∂ᵢŨ), side by side in one stack with ReLU between the layers.

    The first half of every layer's units is f_Q, the second f_D; the weights from one half to the other, and from the
    gradient to f_Q, are zero and no rule reads them. One stack is what weight files, fingerprints and the meta-trainer
    take.

    Args:
        hidden: units of each of the two networks, layer by layer.
        zero_last: the last layers are zero, so that the untrained sampler is SGHMC.
        generator, dtype: of the weights, N(0, 1/fan_in) within each network; biases are 0.
    """
    parts = [
        build_network(inputs, hidden, 1, zero_last=zero_last, generator=generator, dtype=dtype) for inputs in (2, 3)
    ]
    joined = build_network(3, [2 * width for width in hidden], 2, dtype=dtype)
    pairs = zip(layers_of(joined), *(layers_of(part) for part in parts), strict=True)
    with torch.no_grad():
        for (weight, bias), *parts_of_layer in pairs:
            weight.zero_()
            half = weight.shape[0] // 2
            for i, (part, shift) in enumerate(parts_of_layer):
                rows = slice(i * half, (i + 1) * half)
                # Behind the first layer each network reads its own half; in the first both read from the start.
                start = i * part.shape[1] if weight.shape[1] != len(META_FEATURES) else 0
                weight[rows, start : start + part.shape[1]] = part
                bias[rows] = shift
    return joined


def split_meta_network(phi: Phi) -> tuple[Phi, Phi]:
    """The layers of f_Q and of f_D, views of the joint ones; leading axes stay."""
    curl, friction = [], []
    for i, (weight, bias) in enumerate(phi):
        half, width = weight.shape[-2] // 2, weight.shape[-1]
        left, right = (slice(0, 2), slice(0, 3)) if i == 0 else (slice(0, width // 2), slice(width // 2, width))
        curl.append((weight[..., :half, left], bias[..., :half]))
        friction.append((weight[..., half:, right], bias[..., half:]))
    return curl, friction


def check_meta_network(phi: Phi) -> None:
    """Raise ValueError unless the stack is two networks side by side, as `build_meta_network` makes it."""
    shapes = [tuple(weight.shape) for weight, _ in phi]
    if shapes[0][1] != len(META_FEATURES) or shapes[-1][0] != 2:
        raise ValueError(f"network must take {len(META_FEATURES)} features and give 2 outputs, its layers are {shapes}")
    if len(phi) < 2 or any(out % 2 for out, _ in shapes):
        raise ValueError(f"network must have hidden layers of even width, f_Q and f_D, its layers are {shapes}")
    in_halves = sum(weight.count_nonzero() for part in split_meta_network(phi) for weight, _ in part)
    if sum(weight.count_nonzero() for weight, _ in phi) != in_halves:
        raise ValueError(
            "network must keep f_Q and f_D apart: weights between the halves, or from the gradient to f_Q, are not zero"
        )


@dataclass
class Fields:
    """Q(u, r) and the learned part of A(u, r, γ) at one θ, as functions of the momentum.

    ``energy`` u and ``slope`` γ, (..., d), are inputs of the networks, whose last layers hold the scales.
    """

    curl_phi: Phi
    friction_phi: Phi
    energy: Tensor
    slope: Tensor
    curl_clip: Any

    def curl(self, energy: Tensor, momentum: Tensor, wanted: Sequence[int] = ()) -> tuple[Tensor, ...]:
        """Q at (u, r), and its derivatives in these of the two: zero where Q is clipped."""
        q, *slopes = value_and_slopes(self.curl_phi, (energy, momentum), wanted)
        clipped = q.clamp(-self.curl_clip, self.curl_clip)
        return clipped, *(torch.where(q == clipped, slope, 0.0) for slope in slopes)

    def friction(self, momentum: Tensor, wanted: Sequence[int] = ()) -> tuple[Tensor, ...]:
        """a·s_D·f_D at (u, r, γ), and its derivatives in these of the three."""
        return value_and_slopes(self.friction_phi, (self.energy, momentum, self.slope), wanted)


def scaled_network(phi: Phi, scale: Any, offset: Any = 0.0) -> Phi:
    """The network times ``scale`` plus ``offset``."""
    *hidden, (weight, bias) = phi
    return [*hidden, (weight * scale, bias * scale + offset)]


class Slopes(NamedTuple):
    """Q, a·s_D·f_D at (θ, r), and their derivatives, (..., d) each; None for those that the caller does not need."""

    curl: Tensor
    curl_by_energy: Any
    curl_by_momentum: Any
    friction: Any
    friction_by_momentum: Any


def slopes_of(fields: Fields, momentum: Tensor, *, position: bool) -> Slopes:
    """Values and derivatives by one pass backward through each network; the move of the position needs Q's alone."""
    if position:
        curl, by_momentum = fields.curl(fields.energy, momentum, (1,))
        return Slopes(curl, None, by_momentum, None, None)
    curl, by_energy, by_momentum = fields.curl(fields.energy, momentum, (0, 1))
    return Slopes(curl, by_energy, by_momentum, *fields.friction(momentum, (1,)))


def to_root_mean_square(x: Tensor, segments: Segments, floor: float) -> tuple[Tensor, Tensor]:
    """x̂ = x/R with R² = floor + the mean of x² over each tensor, and ∂x̂ᵢ/∂xᵢ = (1 − x̂ᵢ²/size)/R, (..., d) each."""
    inverse = segments.expand((segments.mean_square(x) + floor).rsqrt())
    scaled = x * inverse
    sizes = segments.expand(torch.tensor(segments.lengths, dtype=x.dtype, device=x.device))
    return scaled, inverse * (1 - scaled.square() / sizes)


def by_momentum(slopes: Slopes, stretch: Tensor | None) -> Slopes:
    """Derivatives in the momentum instead of in the network's input, ∂input/∂r = ``stretch``; None: the same."""
    if stretch is None:
        return slopes
    names = ("curl_by_momentum", "friction_by_momentum")
    return slopes._replace(**{name: x * stretch for name in names if (x := getattr(slopes, name)) is not None})
