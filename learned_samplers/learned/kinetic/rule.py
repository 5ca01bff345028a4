"""The Kinetic-L2E update: pure functions of flat buffers, with any leading batch axes.

H(θ, r) = U(θ) + g(θ, r) with the kinetic energy g = ½‖r − f(θ)‖², so that p(r|θ) = N(f(θ), T) for any f: its normaliser
does not depend on θ, and the law of θ is the posterior with no assumption on the network. From g,

    ∂g/∂r = r − f(θ),        ∂g/∂θ = −Jᵀ(r − f(θ)),    J = ∂f/∂θ

(the paper, Appendix D, leaves out the ½ and prints ∂g/∂θ = f·∂f, which is not the gradient of its energy). The network
sees θ and ∇Ũ(θ), so J runs through the gradient: Jᵀv = (∂f/∂θ)ᵀv + ∇²Ũ·(∂f/∂∇Ũ)ᵀv, a Hessian-vector product.

With v = r − f, dv = −∇U − (J − Jᵀ)·v − C·v + noise: with a symmetric Jacobian (any f of each θᵢ alone) the path of θ
has the law of SGHMC's. All that this form can learn is the rotation J − Jᵀ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from learned_samplers.base import validation as check
from learned_samplers.base.operations import FUNCTIONAL, scalar_sqrt
from learned_samplers.base.segments import Segments
from learned_samplers.classical.sghmc import sghmc_rule
from learned_samplers.learned.network import Phi, apply_network
from learned_samplers.learned.settings import LearnedSettings, choice, setting

#: The network's inputs: θ and ∇Ũ, each over its root mean square over the tensor.
KINETIC_FEATURES = ("parameter", "energy_gradient")


@dataclass(frozen=True, kw_only=True)
class KineticSettings(LearnedSettings):
    """The settings of `learned_samplers.KineticL2E`, where each is explained."""

    sampler: ClassVar[str] = "KineticL2E"

    feature_set: str = choice("kinetic", "kinetic")
    mean_scale: float = setting(1.0, check.non_negative, doc="Factor on the learned mean of the momentum.")
    output_bound: float | None = setting(None, check.positive, optional=True, doc="Bound on the network's outputs.")
    hessian: str = choice("finite_difference", "finite_difference", "double_backward", "none", in_card=False)
    probe_size: float = setting(1e-3, check.positive, in_card=False)

    @property
    def features(self) -> tuple[str, ...]:
        return KINETIC_FEATURES

    @property
    def outputs(self) -> int:
        return 1


def kinetic_mean(
    parameter: Tensor,
    gradient: Tensor,
    *,
    phi: Phi,
    segments: Segments,
    num_data: Any,
    prior_precision: Any,
    settings: KineticSettings,
) -> Tensor:
    """f(θ) = s·network(θ̂, ∇Ũ^), the mean of the momentum, (..., d).

    Args:
        parameter, gradient: (..., d), the gradient of the mean minibatch loss.
        phi: the network's layers, two inputs and one output, with the leading axes of ``parameter`` or none.
        segments: where the tensors lie in the flat axis.
        settings: ``mean_scale`` is s, in units of the momentum.
    """
    slope = gradient + parameter * (prior_precision / num_data)
    rows = []
    for x in (parameter, slope):
        scale = torch.rsqrt(segments.mean_square(x) + 1e-5)
        rows.append(x * segments.expand(scale).expand(x.shape))
    (mean,) = apply_network(phi, torch.stack(rows, -2), output_bound=settings.output_bound, heads=(0,))
    return mean * settings.mean_scale


def kinetic_half_step(
    parameter: Tensor,
    gradient: Tensor,
    noise: Tensor | None,
    momentum: Tensor,
    *,
    phi: Phi,
    segments: Segments,
    lr: Any,
    num_data: Any,
    temperature: Any,
    prior_precision: Any,
    momentum_decay: Any,
    settings: KineticSettings,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Everything before the Hessian: (f, r_half, (∂f/∂θ)ᵀv, w) with v = r_half − f and w = (∂f/∂g)ᵀv, each (..., d).

    r_half = (1−a)·r + a·f − ε·(N·g + λθ) + √(2aT)·ξ.
    """

    def mean_of(theta: Tensor, slope: Tensor) -> Tensor:
        return kinetic_mean(
            theta,
            slope,
            phi=phi,
            segments=segments,
            num_data=num_data,
            prior_precision=prior_precision,
            settings=settings,
        )

    mean, pull = torch.func.vjp(mean_of, parameter, gradient)[:2]
    _, half = sghmc_rule(
        parameter,
        gradient,
        noise,
        momentum,
        lr=lr,
        num_data=num_data,
        temperature=temperature,
        prior_precision=prior_precision,
        momentum_decay=momentum_decay,
    )
    half = FUNCTIONAL.add(half, mean, momentum_decay)
    direct, through_gradient = pull(half - mean)
    return mean, half, direct, through_gradient


def kinetic_finish(
    parameter: Tensor, mean: Tensor, half: Tensor, force: Tensor, *, lr: Any, num_data: Any
) -> tuple[Tensor, Tensor]:
    """θ ← θ + ε·(r_half − f);  r ← r_half + ε·``force``, the product Jᵀ(r_half − f)."""
    step_size = scalar_sqrt(lr / num_data)
    return FUNCTIONAL.add(parameter, half - mean, step_size), FUNCTIONAL.add(half, force, step_size)


def l2e_kinetic_rule(
    parameter: Tensor,
    gradient: Tensor,
    noise: Tensor | None,
    momentum: Tensor,
    *,
    hessian_product: Callable[[Tensor], Tensor] | None,
    phi: Phi,
    segments: Segments,
    lr: Any,
    num_data: Any,
    temperature: Any,
    prior_precision: Any,
    momentum_decay: Any,
    settings: KineticSettings,
    half_step: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]] = kinetic_half_step,
) -> tuple[Tensor, Tensor]:
    """One step of Kinetic-L2E, with ε = √(lr/N) and momentum decay a:

        r ← (1−a)·r + a·f(θ) − ε·(N·g + λθ) + √(2aT)·ξ
        v = r − f(θ)
        θ ← θ + ε·v,    r ← r + ε·Jᵀv

    The move is the flow of the kinetic energy to O(ε²): where J is symmetric, v stays what it is. (Eq. 13 of the paper
    takes Jᵀ at the old momentum, and moves θ by the momentum after the force: then εJ acts on θ as a step size that
    depends on θ, and the bias on Gaussians is several times larger.)

    Args:
        parameter, gradient, noise, momentum: (..., d); noise standard normal or None at temperature 0.
        hessian_product: w ↦ ∂²L/∂θ²·w, the Hessian of the *mean* minibatch loss L, (..., d) ↦ (..., d); None leaves
            the product out, and with it the claim to the posterior.
        settings: ``hessian`` is not used here; the others as for `kinetic_half_step`.
        half_step: computes that function, or is compiled code for it.

    Returns:
        The new (parameter, momentum). With a last layer of zeros it is `sghmc_rule`.
    """
    mean, half, force, direction = half_step(
        parameter,
        gradient,
        noise,
        momentum,
        phi=phi,
        segments=segments,
        lr=lr,
        num_data=num_data,
        temperature=temperature,
        prior_precision=prior_precision,
        momentum_decay=momentum_decay,
        settings=settings,
    )
    if hessian_product is not None:
        force = force + hessian_product(direction)
    return kinetic_finish(parameter, mean, half, force, lr=lr, num_data=num_data)
