"""Precond-L2E, the ablation of L2E that learns a preconditioner and a friction in place of the kinetic energy."""

from __future__ import annotations

import os
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from learned_samplers.base import validation as check
from learned_samplers.base.group_keys import SamplerOptions, known_options
from learned_samplers.learned.features import feature_set_named
from learned_samplers.learned.network import build_network
from learned_samplers.learned.preconditioned.rule import l2e_precond_rule
from learned_samplers.learned.sampler import LearnedSampler, settings_from
from learned_samplers.learned.weights import resolve


class PrecondL2E(LearnedSampler):
    """The ablation of Kim et al. (ICML 2024, Appendix J): D and Q are learned, the kinetic energy stays ½‖r‖².

    With ε = √(lr/N), momentum decay a, ∇Ũ = N·g + λθ, ξ ~ N(0, I), (q, d) = network(features(θ, r, g, m)), and
    Q = exp(s_q·q), D = exp(s_d·d) coordinate by coordinate:

        r ← (1 − aD)·r − εQ·∇Ũ + √(2aDT)·ξ  [+ εT·∂Q/∂θ + aT·∂D/∂r]
        θ ← θ + εQ(θ, r_new)·r_new  [− εT·∂Q/∂r]

    A preconditioner only scales the step and the noise, which is what the paper holds against it. The untrained sampler
    (last layer zero) is `SGHMC` to rounding. The paper gives no formula for its D_f and Q_f; the exponentials are ours.

    Invariant law: the terms in brackets keep the posterior; without them (``correction="none"``, the ablation as it is
    usually run) it moves. With ``correction="network"`` they are those of the network's inputs θ and r alone (see
    `learned_samplers.learned.preconditioned.rule.l2e_precond_rule`), at three to four times the cost of a step without
    them; the path
    through the gradient is left out, hence the badge.

    Args:
        params, lr, num_data, temperature, prior_precision, momentum_decay, momentum_init, foreach, generator,
            feature_set, output_bound: as for `L2E`.
        network: as for `L2E`; there are no shipped weights, so the default is None, fresh weights.
        curl_scale, friction_scale: s_q and s_d.
        curl_clip, friction_clip: Q is held to [1/clip, clip], D likewise and to aD ≤ 1.
        correction: "none" or "network".

    Raises:
        ValueError, TypeError: an argument is out of range, of a wrong type, or contradicts the network's card.
    """

    state_names = ("momentum", "averages")
    hyperparameters = (
        *("lr", "num_data", "temperature", "prior_precision", "momentum_decay", "step"),
        *("curl_scale", "friction_scale", "curl_clip", "friction_clip", "output_bound"),
    )

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
        correction: str = "none",
        momentum_init: str = "zero",
        foreach: bool | None = None,
        generator: torch.Generator | None = None,
        **options: Unpack[SamplerOptions],
    ):
        check.one_of("correction", correction, ("none", "network"))
        module, card = resolve(
            network,
            "PrecondL2E",
            form="preconditioner",
            feature_set=feature_set,
            features_of=lambda name: feature_set_named(name).names,
        )
        self.correction = correction
        self.feature_set = feature_set_named(feature_set or card.get("feature_set", "paper"))
        if module is None:
            module = build_network(self.feature_set, generator=torch.Generator().manual_seed(0))
        scales = {"curl_scale": 1.0, "friction_scale": 1.0, "curl_clip": 5.0, "friction_clip": 100.0}
        given = dict(lr=lr, momentum_decay=momentum_decay, curl_scale=curl_scale, friction_scale=friction_scale)
        given.update(curl_clip=curl_clip, friction_clip=friction_clip, output_bound=output_bound)
        defaults = dict(
            **settings_from(card, {**scales, "output_bound": None}, given),
            num_data=num_data,
            temperature=temperature,
            prior_precision=prior_precision,
            momentum_init=momentum_init,
            foreach=foreach,
            **known_options(type(self).__name__, options, ("momentum_decay",)),
        )
        super().__init__(
            params,
            defaults,
            network=module,
            inputs=self.feature_set.size,
            outputs=2,
            rows={"averages": self.feature_set.num_averages},
            identity={"form": "preconditioner", "feature_set": self.feature_set.name},
            generator=generator,
        )

    def _validate(self, group: dict[str, Any]) -> None:
        super()._validate(group)
        for name in ("curl_clip", "friction_clip"):
            if check.number(name, group[name]) < 1:
                raise ValueError(f"{name} must be at least 1, got {group[name]}")

    def flat_rule(self, *tensors: Any, **hyper: Any) -> tuple[Tensor, ...]:
        return l2e_precond_rule(*tensors, feature_set=self.feature_set, correction=self.correction, **hyper)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "correction": self.correction, "feature_set": self.feature_set}
