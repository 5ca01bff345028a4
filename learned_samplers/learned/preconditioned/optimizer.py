"""Precond-L2E, the ablation of L2E that learns a preconditioner and a friction in place of the kinetic energy."""

from __future__ import annotations

import os
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from learned_samplers.base.group_keys import SamplerOptions
from learned_samplers.base.sampler import arguments
from learned_samplers.learned.preconditioned.rule import PRECOND_PASSES, PreconditionedSettings, l2e_precond_rule
from learned_samplers.learned.two_pass_sampler import TwoPassSampler
from learned_samplers.learned.two_passes import TwoPasses


class PrecondL2E(TwoPassSampler):
    """SGHMC with a learned preconditioner and a learned friction for each weight: an ablation of `L2E`.

    Source: Kim, Jung, Kim and Lee, Learning to explore for stochastic gradient MCMC, ICML 2024, Appendix J.

    D and Q are learned, the kinetic energy stays ½‖r‖².

    With ε = √(lr/N), momentum decay a, ∇Ũ = N·g + λθ, ξ ~ N(0, I), (q, d) = network(features(θ, r, g, m)), and
    Q = exp(s_q·q), D = exp(s_d·d) coordinate by coordinate:

        r ← (1 − aD)·r − εQ·∇Ũ + √(2aDT)·ξ  [+ εT·∂Q/∂θ + aT·∂D/∂r]
        θ ← θ + εQ(θ, r_new)·r_new  [− εT·∂Q/∂r]

    A preconditioner only scales the step and the noise, which is what the paper holds against it. The untrained sampler
    (last layer zero) is `SGHMC` to rounding. The paper gives no formula for its D_f and Q_f; the exponentials are ours.

    Invariant law: the terms in brackets keep the posterior; without them (``correction="none"``, the ablation as it is
    usually run) it moves. With ``correction="network"`` they are those of the network's inputs θ and r alone (see
    `learned_samplers.learned.preconditioned.rule.l2e_precond_rule`), at three to four times the cost of a step without
    them; the path through the gradient is left out, hence the badge.

    Args:
        params, lr, num_data, temperature, prior_precision, momentum_decay: as for `L2E`.
        momentum_init, foreach, generator, options: as for `L2E`, too.
        feature_set, output_bound, total_steps, averages_dtype: likewise.
        network: as for `L2E`; there are no shipped weights, so the default is None, fresh weights.
        curl_scale, friction_scale: s_q and s_d.
        curl_clip, friction_clip: Q is held to [1/clip, clip], D likewise and to aD ≤ 1.
        correction: "none" (the default) or "network".
        settings: a `learned_samplers.learned.preconditioned.rule.PreconditionedSettings` in the place of the keywords
            ``feature_set``, ``output_bound``, ``correction``, ``total_steps``, ``averages_dtype``, scales and clips.

    Raises:
        ValueError, TypeError: an argument is out of range, of a wrong type, or contradicts the network's card.
    """

    settings_class = PreconditionedSettings
    settings: PreconditionedSettings

    def __init__(
        self,
        params: Any,
        lr: float | None = None,
        num_data: float | None = None,
        *,
        network: str | os.PathLike[str] | nn.Module | None = None,
        feature_set: str | None = None,
        momentum_decay: float | None = None,
        temperature: float = 1.0,
        prior_precision: float = 0.0,
        curl_scale: float | None = None,
        friction_scale: float | None = None,
        curl_clip: float | None = None,
        friction_clip: float | None = None,
        output_bound: float | None = None,
        correction: str | None = None,
        total_steps: int | None = None,
        averages_dtype: torch.dtype | str | None = None,
        settings: PreconditionedSettings | None = None,
        momentum_init: str = "zero",
        foreach: bool | None = None,
        generator: torch.Generator | None = None,
        **options: Unpack[SamplerOptions],
    ):
        super().__init__(params, arguments(locals()), generator=generator)

    def _without_lr(self) -> str:
        return (
            "lr must be given, got None: no weights of PrecondL2E ship with the package, whose card could recommend "
            "one. Meta-train some (tools/meta_train.py --sampler PrecondL2E) and give network=, or give lr and begin "
            "with the untrained network"
        )

    def passes(self) -> TwoPasses | None:
        return PRECOND_PASSES if self.settings.correction == "none" else None

    def flat_rule(self, *tensors: Any, **hyper: Any) -> tuple[Tensor, ...]:
        return l2e_precond_rule(*tensors, **hyper)
