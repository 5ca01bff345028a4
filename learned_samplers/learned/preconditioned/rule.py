"""The Precond-L2E update: a pure function of flat buffers, with any leading batch axes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from learned_samplers.base import validation as check
from learned_samplers.base.operations import FUNCTIONAL, scalar_sqrt
from learned_samplers.learned.feature_sets import FEATURE_SETS, check_total_steps, feature_set_named
from learned_samplers.learned.network import RuleArguments, network_at
from learned_samplers.learned.settings import LearnedSettings, choice, setting
from learned_samplers.learned.two_passes import TwoPasses


def _at_least_one(name: str, value: Any) -> None:
    if check.number(name, value) < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")


#: Those without covariances, which the update would have to carry along.
_SETS = tuple(name for name, each in FEATURE_SETS.items() if not each.whitens)


@dataclass(frozen=True, kw_only=True)
class PreconditionedSettings(LearnedSettings):
    """The settings of `learned_samplers.learned.preconditioned.PrecondL2E`, where each is explained."""

    sampler: ClassVar[str] = "PrecondL2E"

    feature_set: str = choice("paper", *_SETS, doc="What the network sees.")
    curl_scale: float = setting(1.0, check.non_negative, doc="Factor on log Q, or s_Q.")
    friction_scale: float = setting(1.0, check.non_negative, doc="Factor on log D.")
    curl_clip: float = setting(5.0, _at_least_one, doc="Bound on Q.")
    friction_clip: float = setting(100.0, _at_least_one, doc="Bound on D.")
    output_bound: float | None = setting(None, check.positive, optional=True, doc="Bound on the network's outputs.")
    total_steps: int | None = setting(
        None, check.whole, optional=True, in_card=False, doc="Length of the run, for feature sets with its progress."
    )
    averages_dtype: str = choice("float32", "float32", "bfloat16", in_card=False)
    correction: str = choice("none", "none", "network", in_card=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_total_steps(self.total_steps, self.feature_set)

    @property
    def features(self) -> tuple[str, ...]:
        return feature_set_named(self.feature_set).names


def l2e_precond_rule(
    parameter: Tensor,
    gradient: Tensor,
    noise: Tensor | None,
    momentum: Tensor,
    averages: Tensor,
    *,
    settings: PreconditionedSettings,
    step: Any = 0,
    **at: Unpack[RuleArguments],
) -> tuple[Tensor, ...]:
    """SGHMC with a learned preconditioner Q and friction D, both diagonal and positive, in place of 1.

    With ε = √(lr/N), momentum decay a, (q, d) = network(features(θ, r)), Q = exp(s_q·q) held to [1/c_q, c_q] and
    D = exp(s_d·d) held to [1/c_d, min(c_d, 1/a)] (so that a·D ≤ 1):

        r ← (1 − aD)·r − εQ·(N·g + λθ) + √(2aDT)·ξ  [+ εT·∂Q/∂θ + aT·∂D/∂r]
        θ ← θ + εQ(θ, r_new)·r_new  [− εT·∂Q/∂r]

    The terms in brackets are Γ of the complete recipe (Ma, Chen and Fox, 2015), Γ_θ = −∂Q/∂r, Γ_r = ∂Q/∂θ + ∂D/∂r,
    without which a state-dependent Q or D moves the law. ``correction="network"`` adds them coordinate by coordinate
    through the network's inputs θ and r, with the gradient, its averages and the scales of the tensors held fixed: that
    is all of Γ only where the network looks at θ and r alone. ``"none"``, the ablation of the paper, leaves them out.

    Arguments and returns are those of `learned_samplers.learned.l2e.rule.l2e_rule`; with a last layer of
    zeros it is `sghmc_rule` to rounding.
    """
    if settings.correction == "none" or noise is None:
        return PRECOND_PASSES(parameter, gradient, noise, momentum, averages, settings=settings, step=step, **at)
    momentum_decay, temperature = at["momentum_decay"], at["temperature"]
    common: dict[str, Any] = dict(lr=at["lr"], num_data=at["num_data"], step=step, settings=settings)
    heating = dict(temperature=temperature, prior_precision=at["prior_precision"], momentum_decay=momentum_decay)
    network, (averages,) = network_at(at["phi"], parameter, gradient, averages, at["segments"], **common)

    def derivatives(r: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """∂Q/∂θ, ∂Q/∂r and ∂D/∂r of each coordinate, at the scales of the last call."""

        def both(*at: Tensor) -> tuple[Tensor, Tensor]:
            q, d = network.held(*at)
            return _curl(q, settings), _friction(d, settings, momentum_decay)

        (curl, friction), pull = torch.func.vjp(both, parameter, r)[:2]
        ones, zeros = torch.ones_like(curl), torch.zeros_like(friction)
        return (*pull((ones, zeros)), pull((zeros, ones))[1])

    step_size = scalar_sqrt(at["lr"] / at["num_data"])
    q, d = network(momentum)
    moved = _precond_kick(parameter, gradient, noise, momentum, q, d, **common, **heating)
    by_theta, _, by_momentum = derivatives(momentum)
    moved = moved + temperature * (step_size * by_theta + momentum_decay * by_momentum)
    (q,) = network(moved, heads=(0,))
    new = _precond_move(parameter, moved, q, **common)
    return FUNCTIONAL.add(new, derivatives(moved)[1], -step_size * temperature), moved, averages


def _curl(q: Tensor, settings: PreconditionedSettings) -> Tensor:
    return torch.exp(q * settings.curl_scale).clamp(1 / settings.curl_clip, settings.curl_clip)


def _friction(d: Tensor, settings: PreconditionedSettings, momentum_decay: Any) -> Tensor:
    # a·D ≤ 1: with more friction than that the explicit step overshoots.
    friction = torch.exp(d * settings.friction_scale).clamp(1 / settings.friction_clip, settings.friction_clip)
    return friction.minimum(torch.ones_like(friction) / momentum_decay)


def _precond_kick(
    parameter: Tensor,
    gradient: Tensor,
    noise: Tensor | None,
    momentum: Tensor,
    q: Tensor,
    d: Tensor,
    *,
    settings: PreconditionedSettings,
    momentum_decay: Any,
    **hyper: Any,
) -> Tensor:
    curl, friction = _curl(q, settings), _friction(d, settings, momentum_decay)
    slope = gradient * hyper["num_data"] + parameter * hyper["prior_precision"]
    step_size = scalar_sqrt(hyper["lr"] / hyper["num_data"])
    moved = momentum - momentum_decay * friction * momentum - step_size * curl * slope
    if noise is None:
        return moved
    return moved + torch.sqrt(friction * (2 * momentum_decay * hyper["temperature"])) * noise


def _precond_move(
    parameter: Tensor, momentum: Tensor, q: Tensor, *, settings: PreconditionedSettings, **hyper: Any
) -> Tensor:
    return FUNCTIONAL.add(parameter, _curl(q, settings) * momentum, scalar_sqrt(hyper["lr"] / hyper["num_data"]))


#: The update without the correction, as `TwoPasses` of the network.
PRECOND_PASSES = TwoPasses(network_at, _precond_kick, _precond_move, second=0)
