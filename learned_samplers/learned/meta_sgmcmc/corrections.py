"""Meta-SGMCMC's two networks as functions of the momentum, and their derivatives, which Γ needs, in two forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from learned_samplers.base.segments import Segments
from learned_samplers.learned.network import Phi

#: Inputs of a network that are moved for a difference: (row, distance).
Probes = Sequence[tuple[int, float]]


@dataclass
class Fields:
    """Q(u, r) and the learned part of A(u, r, γ) at one θ, as functions of the momentum.

    ``energy`` u, (..., 1), and ``slope`` γ, (..., d), are inputs of the networks, whose last layers hold the scales.
    """

    curl_phi: Phi
    friction_phi: Phi
    energy: Tensor
    slope: Tensor
    curl_clip: Any
    absolute: bool

    def curl(self, energy: Tensor, momentum: Tensor, probes: Probes = ()) -> list[Tensor]:
        """Q at (u, r), then with one of the two moved as ``probes`` say."""
        return [f.clamp(-self.curl_clip, self.curl_clip) for f in _network(self.curl_phi, (energy, momentum), probes)]

    def friction(self, momentum: Tensor, probes: Probes = ()) -> list[Tensor]:
        """a·s_D·f_D, likewise."""
        outputs = _network(self.friction_phi, (self.energy, momentum, self.slope), probes)
        return [f.abs() for f in outputs] if self.absolute else outputs


def _network(phi: Phi, rows: Sequence[Tensor], probes: Probes) -> list[Tensor]:
    """A network with one output on every coordinate, and again with an input moved: they share the first layer.

    ``rows`` are the inputs; the second one, the momentum, has the full shape (..., d).
    """
    shape, (weight, bias) = rows[1].shape, phi[0]
    # One network for all: any leading axes are more coordinates, and each layer is one product of two matrices.
    shared = weight.dim() == 2
    x = torch.stack([row.expand(shape) for row in rows], 0 if shared else -2)
    first = _affine(weight, bias, x.view(len(rows), -1) if shared else x)
    outputs = []
    for moved, distance in ((None, 0.0), *probes):
        (weight, bias), *rest = phi[1:]
        if moved is None:
            x = first.relu() if probes else first.relu_()
        else:  # relu(h + s) = max(h, −s) + s, and the next layer's bias takes the last s
            shift = (phi[0][0][..., moved] * distance).unsqueeze(-1)
            x, bias = torch.maximum(first, -shift), bias + (weight @ shift).squeeze(-1)
        x = _affine(weight, bias, x)
        for layer in rest:
            x = _affine(*layer, x.relu_())
        outputs.append(x.view(shape) if shared else x.squeeze(-2))
    return outputs


def _affine(weight: Tensor, bias: Tensor, x: Tensor) -> Tensor:
    if weight.dim() == 2:
        return torch.addmm(bias.unsqueeze(-1), weight, x)
    return torch.matmul(weight, x) + bias.unsqueeze(-1)


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


def slopes_by_autograd(fields: Fields, momentum: Tensor, probe_size: Any, *, position: bool) -> Slopes:
    """Exact derivatives, by one backward pass through each network."""
    curl, pull = torch.func.vjp(lambda *at: fields.curl(*at)[0], fields.energy.expand(momentum.shape), momentum)[:2]
    by_energy, by_momentum = pull(torch.ones_like(curl))
    if position:
        return Slopes(curl, None, by_momentum, None, None)
    friction, pull = torch.func.vjp(lambda r: fields.friction(r)[0], momentum)[:2]
    return Slopes(curl, by_energy, by_momentum, friction, pull(torch.ones_like(friction))[0])


def slopes_by_finite_differences(fields: Fields, momentum: Tensor, probe_size: Any, *, position: bool) -> Slopes:
    """Forward differences over δ = ``probe_size`` in r and in u, which share the evaluation at r and the first layer.

    Where a unit of the network switches within δ, the slope is the mean over δ: that is all the error there is.
    """
    probes = [(1, probe_size)] if position else [(1, probe_size), (0, probe_size)]
    curl, *ahead = fields.curl(fields.energy, momentum, probes)
    by_momentum, *by_energy = ((f - curl).div_(probe_size) for f in ahead)
    if position:
        return Slopes(curl, None, by_momentum, None, None)
    friction, after = fields.friction(momentum, [(1, probe_size)])
    return Slopes(curl, by_energy[0], by_momentum, friction, (after - friction).div_(probe_size))


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


#: Where the derivatives in Γ come from.
CORRECTIONS: dict[str, Callable[..., Slopes]] = {
    "autograd": slopes_by_autograd,
    "finite_difference": slopes_by_finite_differences,
}
