"""The Meta-SGMCMC update: a pure function with any leading batch axes, and its corrections in two forms.

State z = (θ, r), H = U(θ) + ½‖r‖², and in the complete recipe (Ma, Chen and Fox, 2015) at temperature T

    dz = −(D + Q)·∇H dt + T·Γ dt + √(2TD) dW,    Γᵢ = Σⱼ ∂(D + Q)ᵢⱼ/∂zⱼ
    Q = [[0, −Q_f], [Q_f, 0]],    D = [[0, 0], [0, D_f]],    both blocks diagonal

so that Γ_θ = −∂Q/∂r and Γ_r = ∂Q/∂θ + ∂D/∂r, coordinate by coordinate: the law exp(−H/T) stays invariant whatever the
networks are. With Q = f(Ũ, rᵢ), ∂Qᵢ/∂θᵢ = ∂f/∂Ũ·∂ᵢŨ, and ∂D/∂r is total: D depends on Q. Derived in
``docs/meta_sgmcmc.md``.

Source: Gong, Li and Hernández-Lobato, "Meta-Learning for Stochastic Gradient MCMC", ICLR 2019.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from learned_samplers.base import validation as check
from learned_samplers.base.operations import FUNCTIONAL, scalar_sqrt
from learned_samplers.base.segments import Segments
from learned_samplers.learned.meta_sgmcmc.corrections import (
    CORRECTIONS,
    Fields,
    Slopes,
    by_momentum,
    scaled_network,
    to_root_mean_square,
)
from learned_samplers.learned.meta_sgmcmc.network import (
    META_FEATURE_SETS,
    build_meta_network,
    check_meta_network,
    split_meta_network,
)
from learned_samplers.learned.network import Phi
from learned_samplers.learned.settings import LearnedSettings, choice, setting

# Added to the mean squares of momentum and gradient before they are divided by. The first keeps a momentum that starts
# at zero from steep slopes; it is exp(−½‖r‖²) that makes the momentum's scale 1 from the next step on.
MOMENTUM_FLOOR, GRADIENT_FLOOR = 1e-2, 1e-16


def _any_number(name: str, value: Any) -> None:
    check.number(name, value)


@dataclass(frozen=True, kw_only=True)
class MetaSGMCMCSettings(LearnedSettings):
    """The settings of `learned_samplers.MetaSGMCMC`, where each is explained."""

    sampler: ClassVar[str] = "MetaSGMCMC"
    hidden: ClassVar[tuple[int, ...]] = (10,)

    form: str = choice("signed", "signed", "absolute")
    feature_set: str = choice("energy", *META_FEATURE_SETS, doc="What the networks see.")
    curl_offset: float = setting(1.0, _any_number)
    curl_scale: float = setting(1.0, check.non_negative)
    friction_scale: float = setting(1.0, check.non_negative)
    constant_friction: float = setting(0.0, check.fraction)
    energy_scale: float = setting(1.0, check.non_negative, doc="Factor on what the networks see of the energy.")
    gradient_scale: float = setting(1.0, check.non_negative, doc="Factor on what the networks see of the gradient.")
    curl_clip: float = setting(5.0, check.positive)
    friction_clip: float = setting(1.0, check.positive, doc="Bound on D, or the most that one step may damp.")
    gradient_variance: float = setting(0.0, check.non_negative, in_card=False)
    correction: str = choice(
        "autograd", *CORRECTIONS, doc="Where the corrections' derivatives come from.", in_card=False
    )
    probe_size: float = setting(1e-3, check.positive, in_card=False)

    @property
    def features(self) -> tuple[str, ...]:
        return META_FEATURE_SETS[self.feature_set]

    @property
    def zero_is_base(self) -> bool:
        clipped = self.curl_clip < 1 or self.friction_clip < 1
        return self.curl_offset == 1 and self.gradient_variance == 0 and not clipped

    def fresh_network(self, hidden=None, *, generator=None) -> nn.Sequential:
        return build_meta_network(self.hidden if hidden is None else hidden, generator=generator)

    def check_network(self, phi: Phi) -> None:
        check_meta_network(phi)


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
    settings: MetaSGMCMCSettings,
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
        settings: β, s_Q and c_Q are ``curl_offset``, ``curl_scale`` and ``curl_clip``; s_D, κ in [0, 1] and c_A, the
            most that one step may damp, ``friction_scale``, ``constant_friction`` and ``friction_clip``; s_u and s_g
            ``energy_scale`` and ``gradient_scale``; B ≥ 0, the variance of the noise in ∇Ũ, which is taken off the
            noise that is drawn (to 0), ``gradient_variance``. The ``form`` "signed" takes f_D as it is, "absolute"
            |f_D|, which only adds friction. Derivatives come from ``correction``, "autograd" or "finite_difference"
            with δ = ``probe_size``.
        detach_inputs: no gradient flows through the networks' inputs (energy, momentum, gradient), only through
            weights and states: the truncated back-propagation of the paper.
        segments: the tensors that lie in d, needed by the feature set "energy_rms": the networks then see r and ∇Ũ
            divided by their root mean squares over each tensor (γ = s_g·∇Ũ/rms(∇Ũ)), and Γ has the derivative of
            r/rms(r). The feature set "energy" does not need them.

    Returns:
        The new (parameter, momentum). Nothing is changed in place; differentiable in every tensor.
    """
    if settings.feature_set == "energy":
        segments = None
    elif segments is None:
        raise ValueError(f"segments must be given for feature_set={settings.feature_set!r}, got None")
    slope = gradient * num_data
    if isinstance(prior_precision, Tensor) or prior_precision != 0:
        slope = FUNCTIONAL.add(slope, parameter, prior_precision)
    u = (energy * (settings.energy_scale / num_data)).to(parameter.dtype).unsqueeze(-1)
    seen = (lambda x: x.detach()) if detach_inputs else (lambda x: x)
    curl_phi, friction_phi = split_meta_network(phi)

    def inputs(r: Tensor) -> tuple[Tensor, Tensor | None]:
        return (seen(r), None) if segments is None else to_root_mean_square(seen(r), segments, MOMENTUM_FLOOR)

    if segments is None:
        gradient_seen = seen(slope) * (settings.gradient_scale / num_data)
    else:
        gradient_seen = (
            to_root_mean_square(seen(slope) / num_data, segments, GRADIENT_FLOOR)[0] * settings.gradient_scale
        )
    fields = Fields(
        scaled_network(curl_phi, settings.curl_scale, settings.curl_offset),
        scaled_network(friction_phi, momentum_decay * settings.friction_scale),
        seen(u),
        gradient_seen,
        settings.curl_clip,
        absolute=settings.form == "absolute",
    )
    derivatives = CORRECTIONS[settings.correction]
    step_size = scalar_sqrt(lr / num_data)

    r, stretch = inputs(momentum)
    if noise is None:
        at = Slopes(fields.curl(fields.energy, r)[0], None, None, fields.friction(r)[0], None)
    else:
        at = by_momentum(derivatives(fields, r, settings.probe_size, position=False), stretch)
    by_square = momentum_decay * (1 - settings.constant_friction)
    constant = momentum_decay * settings.constant_friction
    raw = FUNCTIONAL.add_product(at.friction, at.curl, at.curl, by_square)
    if isinstance(constant, Tensor) or constant != 0:
        raw = raw + constant
    damping = torch.clamp(raw, 0.0, settings.friction_clip)
    moved = FUNCTIONAL.add_product(momentum, damping, momentum, -1)
    moved = FUNCTIONAL.add_product(moved, at.curl, slope, -step_size)
    if noise is not None:
        pushed = FUNCTIONAL.add_product(at.friction_by_momentum, at.curl, at.curl_by_momentum, 2 * by_square)
        # Where A is clipped it does not change with r.
        moved = FUNCTIONAL.add(moved, torch.where(raw == damping, pushed, 0.0), temperature)
        pull = temperature * step_size * settings.energy_scale / num_data
        moved = FUNCTIONAL.add_product(moved, at.curl_by_energy, seen(slope), pull)
        variance = damping * (2 * temperature)
        if settings.gradient_variance:
            taken = -(step_size * step_size) * settings.gradient_variance
            variance = torch.clamp(FUNCTIONAL.add_product(variance, at.curl, at.curl, taken), min=0.0)
        moved = FUNCTIONAL.add_product(moved, FUNCTIONAL.sqrt(variance), noise)

    r, stretch = inputs(moved)
    if noise is None:
        velocity = fields.curl(fields.energy, r)[0] * moved
    else:
        after = by_momentum(derivatives(fields, r, settings.probe_size, position=True), stretch)
        velocity = FUNCTIONAL.add(after.curl * moved, after.curl_by_momentum, -temperature)
    return FUNCTIONAL.add(parameter, velocity, step_size), moved
