"""Precond-L2E, the ablation of L2E that learns a preconditioner and a friction in place of the kinetic energy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from learned_samplers.base import validation as check
from learned_samplers.base.operations import FUNCTIONAL, scalar_sqrt
from learned_samplers.base.settings import choice, setting
from learned_samplers.learned.averages import Kept
from learned_samplers.learned.feature_sets import FEATURE_SETS
from learned_samplers.learned.features import network_at
from learned_samplers.learned.l2e import L2E
from learned_samplers.learned.network import RuleArguments
from learned_samplers.learned.settings import LearnedSettings


def _at_least_one(name: str, value: Any) -> None:
    if check.number(name, value) < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")


#: Feature sets without a matrix direction, which no preconditioner is made of.
_SETS = tuple(name for name, feature_set in FEATURE_SETS.items() if not feature_set.matrix)


@dataclass(frozen=True, kw_only=True)
class PreconditionedSettings(LearnedSettings):
    """The settings of `PrecondL2E`."""

    sampler: ClassVar[str] = "PrecondL2E"

    feature_set: str = choice(*_SETS, default="paper", doc="what the network sees.")
    curl_scale: float = setting(default=1.0, check=check.non_negative, doc="s_q, the factor on log Q.")
    friction_scale: float = setting(default=1.0, check=check.non_negative, doc="s_d, the factor on log D.")
    curl_clip: float = setting(default=5.0, check=_at_least_one, doc="c_q, the bound on Q and 1/Q.")
    friction_clip: float = setting(default=100.0, check=_at_least_one, doc="c_d, the bound on D and 1/D.")
    averages_dtype: str = choice(
        "float32", "bfloat16", default="float32", in_card=False, doc="as for `learned_samplers.L2E`."
    )
    #: Settings of L2E that are not for this rule, or of no use to its feature sets.
    attenuated: ClassVar[bool] = False
    normalise_output: ClassVar[bool] = False
    total_steps: ClassVar[int | None] = None

    @property
    def features(self) -> tuple[str, ...]:
        return FEATURE_SETS[self.feature_set].names


def l2e_precond_rule(
    parameter: Tensor,
    gradient: Tensor,
    noise: Tensor | None,
    momentum: Tensor,
    averages: Kept,
    *,
    settings: PreconditionedSettings,
    step: Any = 0,
    in_place: bool = False,
    **at: Unpack[RuleArguments],
) -> tuple[Any, ...]:
    """SGHMC with a learned preconditioner Q and friction D, both diagonal and positive, in place of 1.

    With ε = √(lr/N), momentum decay a, (q, d) = network(features(θ, r)), Q = exp(s_q·q) held to [1/c_q, c_q] and
    D = exp(s_d·d) held to [1/c_d, min(c_d, 1/a)] (so that a·D ≤ 1):

        r ← (1 − aD)·r − εQ·(N·g + λθ) + √(2aDT)·ξ
        θ ← θ + εQ(θ, r_new)·r_new

    Arguments and returns are those of `learned_samplers.learned.l2e.l2e_rule`; with a last layer of zeros it is
    `sghmc_rule` to rounding.
    """
    lr, num_data, temperature, decay = (at[name] for name in ("lr", "num_data", "temperature", "momentum_decay"))
    step_size, prior = scalar_sqrt(lr / num_data), at["prior_precision"]
    run = dict(lr=lr, num_data=num_data, step=step, settings=settings, in_place=in_place)
    network, kept = network_at(at["phi"], parameter, gradient, averages, at["segments"], **run)
    q, d = network(momentum)
    curl = _bounded(q, settings.curl_scale, settings.curl_clip)
    friction = _bounded(d, settings.friction_scale, settings.friction_clip)
    # a·D ≤ 1: with more friction than that the explicit step overshoots.
    friction = friction.minimum(torch.ones_like(friction) / decay)
    moved = momentum - decay * friction * momentum
    moved = moved - step_size * curl * (gradient * num_data + parameter * prior)
    if noise is not None:
        moved = moved + torch.sqrt(friction * (2 * decay * temperature)) * noise
    (q,) = network(moved, (0,))
    curl = _bounded(q, settings.curl_scale, settings.curl_clip)
    return FUNCTIONAL.add(parameter, curl * moved, step_size), moved, *kept


def _bounded(output: Tensor, scale: float, bound: float) -> Tensor:
    """exp(scale·output), held to [1/bound, bound]."""
    return torch.exp(output * scale).clamp(1 / bound, bound)


class PrecondL2E(L2E):
    """SGHMC with a learned preconditioner and a learned friction for each weight: an ablation of `L2E`.

    Source: Kim, Jung, Kim and Lee, Learning to explore for stochastic gradient MCMC, ICML 2024, Appendix J.

    D and Q are learned, the kinetic energy stays ½‖r‖².

    With ε = √(lr/N), momentum decay a, ∇Ũ = N·g + λθ, ξ ~ N(0, I), (q, d) = network(features(θ, r, g, m)), and
    Q = exp(s_q·q), D = exp(s_d·d) coordinate by coordinate:

        r ← (1 − aD)·r − εQ·∇Ũ + √(2aDT)·ξ
        θ ← θ + εQ(θ, r_new)·r_new

    A preconditioner only scales the step and the noise, which is what the paper holds against it. The untrained sampler
    (last layer zero) is `SGHMC` to rounding. The paper gives no formula for its D_f and Q_f; the exponentials are ours.

    Invariant law: none. A Q or D that changes with the state moves the law unless the terms Γ of the complete recipe
    (Ma, Chen and Fox, 2015) are added, which the ablation leaves out.

    Raises:
        ValueError, TypeError: an argument is out of range, of a wrong type, or contradicts the network's card.
    """

    settings_class = PreconditionedSettings
    flat_rule = staticmethod(l2e_precond_rule)  # type: ignore[assignment]
    default_network = None
    not_taken = ("form", "total_steps")
