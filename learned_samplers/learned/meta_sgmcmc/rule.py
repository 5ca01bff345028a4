"""The Meta-SGMCMC update: a pure function with any leading batch axes, and its corrections in two forms.

State z = (θ, r), H = U(θ) + ½‖r‖², and in the complete recipe (Ma, Chen and Fox, 2015) at temperature T

    dz = −(D + Q)·∇H dt + T·Γ dt + √(2TD) dW,    Γᵢ = Σⱼ ∂(D + Q)ᵢⱼ/∂zⱼ
    Q = [[0, −Q_f], [Q_f, 0]],    D = [[0, 0], [0, D_f]],    both blocks diagonal

so that Γ_θ = −∂Q/∂r and Γ_r = ∂Q/∂θ + ∂D/∂r, coordinate by coordinate: the law exp(−H/T) is left alone whatever the
networks are. With Q = f(Ũ, rᵢ), ∂Qᵢ/∂θᵢ = ∂f/∂Ũ·∂ᵢŨ, and ∂D/∂r is total: D depends on Q. Derived in
``docs/meta_sgmcmc.md``.

Source: Gong, Li and Hernández-Lobato, "Meta-Learning for Stochastic Gradient MCMC", ICLR 2019.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from learned_samplers.base.operations import FUNCTIONAL, scalar_sqrt
from learned_samplers.base.segments import Segments
from learned_samplers.learned.meta_sgmcmc.network import split_meta_network
from learned_samplers.learned.network import Phi

# Added to the mean squares of momentum and gradient before they are divided by. The first keeps a momentum that starts
# at zero from steep slopes; it is exp(−½‖r‖²) that makes the momentum's scale 1 from the next step on.
_MOMENTUM_FLOOR, _GRADIENT_FLOOR = 1e-2, 1e-16

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


def _scaled(phi: Phi, scale: Any, offset: Any = 0.0) -> Phi:
    """The network times ``scale`` plus ``offset``."""
    *hidden, (weight, bias) = phi
    return [*hidden, (weight * scale, bias * scale + offset)]


class Slopes(NamedTuple):
    """Q, a·s_D·f_D at (θ, r), and their derivatives, (..., d) each; None where nobody asked."""

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


def _by_momentum(slopes: Slopes, stretch: Tensor | None) -> Slopes:
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


def meta_sgmcmc_rule(
    parameter: Tensor,
    gradient: Tensor,
    noise: Tensor | None,
    momentum: Tensor,
    *,
    energy: Tensor,
    phi: Phi,
    lr: Any,
    num_data: Any,
    temperature: Any,
    prior_precision: Any,
    momentum_decay: Any,
    curl_offset: Any = 1.0,
    curl_scale: Any = 1.0,
    friction_scale: Any = 1.0,
    constant_friction: Any = 0.0,
    energy_scale: Any = 1.0,
    gradient_scale: Any = 1.0,
    curl_clip: float = 5.0,
    friction_clip: float = 1.0,
    gradient_variance: Any = 0.0,
    form: str = "signed",
    correction: str = "autograd",
    probe_size: float = 1e-3,
    detach_inputs: bool = False,
    segments: Segments | None = None,
) -> tuple[Tensor, Tensor]:
    """One step, with ε = √(lr/N), momentum decay a, ∇Ũ = N·g + λθ, u = s_u·Ũ/N and γ = s_g·∇Ũ/N:

        Q(u, r) = clip(β + s_Q·f_Q(u, r), ±c_Q)
        A(u, r, γ) = clip(a·((1−κ)·Q² + κ + s_D·f_D(u, r, γ)), [0, c_A])
        r ← r − A·r − εQ·∇Ũ + T·(ε·∂Q/∂θ + ∂A/∂r) + √(2AT − ε²Q²B)·ξ
        θ ← θ + ε·(Q(u, r_new)·r_new − T·∂Q/∂r(u, r_new))

    that is the paper's update with η = ε, ηD_f = A, α = (1−κ)·a/ε, c = κ·a/ε, in semi-implicit order (as its code has
    it) and at temperature T. Where f_Q and f_D are zero and β = 1 it is `sghmc_rule` to rounding.

    Args:
        parameter, gradient, noise, momentum: (..., d); gradient of the *mean* minibatch loss, noise standard normal or
            None at temperature 0.
        energy: Ũ = N·loss + ½λ‖θ‖² of each chain, of shape (...): the leading axes.
        phi: the layers of both networks (`build_meta_network`), with the leading axes of ``parameter`` or none.
        curl_offset, curl_scale, curl_clip: β, s_Q and c_Q.
        friction_scale, constant_friction, friction_clip: s_D, κ in [0, 1], and c_A, the most that one step may damp.
        energy_scale, gradient_scale: s_u and s_g.
        gradient_variance: B ≥ 0, variance of the noise in ∇Ũ, which is taken off the noise that is drawn (to 0).
        form: "signed" takes f_D as it is, "absolute" takes |f_D|, which only adds friction.
        correction: "autograd" or "finite_difference": where the derivatives come from; ``probe_size`` is δ of the
            second.
        detach_inputs: no gradient flows through the networks' inputs (energy, momentum, gradient), only through
            weights and states: the truncated back-propagation of the paper.
        segments: the tensors that lie in d; the networks then see r and ∇Ũ divided by their root mean squares over
            each tensor (γ = s_g·∇Ũ/rms(∇Ũ)), and Γ has the derivative of r/rms(r). None: as above.

    Returns:
        The new (parameter, momentum). Nothing is changed in place; differentiable in every tensor.
    """
    slope = gradient * num_data
    if isinstance(prior_precision, Tensor) or prior_precision != 0:
        slope = FUNCTIONAL.add(slope, parameter, prior_precision)
    u = (energy * (energy_scale / num_data)).to(parameter.dtype).unsqueeze(-1)
    seen = (lambda x: x.detach()) if detach_inputs else (lambda x: x)
    curl_phi, friction_phi = split_meta_network(phi)

    def inputs(r: Tensor) -> tuple[Tensor, Tensor | None]:
        return (seen(r), None) if segments is None else to_root_mean_square(seen(r), segments, _MOMENTUM_FLOOR)

    if segments is None:
        gradient_seen = seen(slope) * (gradient_scale / num_data)
    else:
        gradient_seen = to_root_mean_square(seen(slope) / num_data, segments, _GRADIENT_FLOOR)[0] * gradient_scale
    fields = Fields(
        _scaled(curl_phi, curl_scale, curl_offset), _scaled(friction_phi, momentum_decay * friction_scale), seen(u),
        gradient_seen, curl_clip, absolute=form == "absolute",
    )  # fmt: skip
    derivatives = CORRECTIONS[correction]
    step_size = scalar_sqrt(lr / num_data)

    r, stretch = inputs(momentum)
    if noise is None:
        at = Slopes(fields.curl(fields.energy, r)[0], None, None, fields.friction(r)[0], None)
    else:
        at = _by_momentum(derivatives(fields, r, probe_size, position=False), stretch)
    by_square, constant = momentum_decay * (1 - constant_friction), momentum_decay * constant_friction
    raw = FUNCTIONAL.add_product(at.friction, at.curl, at.curl, by_square)
    if isinstance(constant, Tensor) or constant != 0:
        raw = raw + constant
    damping = torch.clamp(raw, 0.0, friction_clip)
    moved = FUNCTIONAL.add_product(momentum, damping, momentum, -1)
    moved = FUNCTIONAL.add_product(moved, at.curl, slope, -step_size)
    if noise is not None:
        by_momentum = FUNCTIONAL.add_product(at.friction_by_momentum, at.curl, at.curl_by_momentum, 2 * by_square)
        # Where A is clipped it does not change with r.
        moved = FUNCTIONAL.add(moved, torch.where(raw == damping, by_momentum, 0.0), temperature)
        pull = temperature * step_size * energy_scale / num_data
        moved = FUNCTIONAL.add_product(moved, at.curl_by_energy, seen(slope), pull)
        variance = damping * (2 * temperature)
        if isinstance(gradient_variance, Tensor) or gradient_variance:
            taken = -(step_size * step_size) * gradient_variance
            variance = torch.clamp(FUNCTIONAL.add_product(variance, at.curl, at.curl, taken), min=0.0)
        moved = FUNCTIONAL.add_product(moved, FUNCTIONAL.sqrt(variance), noise)

    r, stretch = inputs(moved)
    if noise is None:
        velocity = fields.curl(fields.energy, r)[0] * moved
    else:
        after = _by_momentum(derivatives(fields, r, probe_size, position=True), stretch)
        velocity = FUNCTIONAL.add(after.curl * moved, after.curl_by_momentum, -temperature)
    return FUNCTIONAL.add(parameter, velocity, step_size), moved
