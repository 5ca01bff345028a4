"""Entropy-MCMC: Langevin dynamics of the weights and of a guide that prefers flat basins."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base import validation
from learned_samplers.base.operations import FUNCTIONAL, Operations, as_number
from learned_samplers.base.sampler import Sampler
from learned_samplers.base.settings import setting
from learned_samplers.classical.sgld import sgld_rule


def entropy_mcmc_rule(
    parameter: Any,
    gradient: Any,
    noise: Any,
    guide: Any,
    *,
    lr: Any,
    num_data: Any,
    temperature: Any,
    prior_precision: Any,
    guide_variance: Any,
    ops: Operations = FUNCTIONAL,
) -> tuple[Any, Any]:
    """Update of `EntropyMCMC` as a pure function, with any leading batch axes.

    Two steps of SGLD: θ with the gradient g + (θ−θₐ)/(ηN), θₐ with (θₐ−θ)/(ηN), both from the θ and θₐ before.

    ``noise`` has one axis more than the parameter, the last, of length 2: ξ of θ and ξ' of θₐ.
    """
    settings = {"lr": lr, "num_data": num_data, "temperature": temperature, "ops": ops}
    of_weights, of_guide = (None if noise is None else ops.map(lambda z, i=i: z[..., i], noise) for i in range(2))
    pull = ops.scale(ops.combine(guide, parameter, -1.0), -1 / (guide_variance * num_data))  # (θ−θₐ)/(ηN)
    (parameter,) = sgld_rule(
        parameter, ops.combine(gradient, pull), of_weights, prior_precision=prior_precision, **settings
    )
    (guide,) = sgld_rule(guide, ops.scale(pull, -1.0), of_guide, prior_precision=0.0, **settings)
    return parameter, guide


class EntropyMCMC(Sampler):
    """Samples the weights together with a second set, the guide, which prefers flat minima and pulls the weights along.

    Source: Li and Zhang, Entropy-MCMC: sampling from flat basins with ease, ICLR 2024.

    The guide θₐ has the weights' shapes and starts as a copy of them. With η = ``guide_variance``, g the gradient of
    the mean minibatch loss at θ, and two independent noises ξ, ξ' ~ N(0, I),

        θ  ← θ  − (lr/N)·(∇Ũ + (θ−θₐ)/η) + √(2·lr·T/N)·ξ,     ∇Ũ = N·g + λθ
        θₐ ← θₐ − (lr/N)·(θₐ−θ)/η        + √(2·lr·T/N)·ξ'

    It is SGLD for the joint energy U(θ) + ‖θ−θₐ‖²/(2η), at one gradient a step.

    Invariant law: exp(−(U(θ) + ‖θ−θₐ‖²/2η)/T) up to O(lr). So the weights have the posterior exp(−U/T) itself, and the
    guide has the posterior smoothed by N(0, ηT), which lowers sharp modes and keeps flat ones. On a quadratic of
    curvature k: Var θ = T/k, Var θₐ = T/k + ηT, Cov = T/k in the limit; at finite lr it is T·H⁻¹(I − hH/2)⁻¹ with
    h = lr/N and H = [[k + 1/η, −1/η], [−1/η, 1/η]]. Stable while h times H's largest eigenvalue is below 2, so η must
    be above lr/N.

    The samples that `PosteriorSamples` collects are those of θ; `at_guide` puts θₐ into the model to predict with it.

    Raises:
        ValueError, TypeError: an argument is out of range or of a wrong type, or lr ≥ N·η, also by a schedule; see
            `Sampler.step` for those of a step.
    """

    temperature: float = setting(
        default=1.0,
        check=validation.non_negative,
        doc="T; the paper's experiments have 1e-4. At 0 the pair is an optimizer of the joint energy.",
    )
    guide_variance: float = setting(
        default=4e-4,
        check=validation.positive,
        doc="η > 0, in θ²; larger is a looser pair, and a flatter preference of the guide. The prior is on θ alone.",
    )

    badge = "O(h)"
    not_sharded = ""
    side_by_side = ("stacked", "separate")
    takes_prior_mean = False
    state_names = ("guide",)
    rule = staticmethod(entropy_mcmc_rule)

    def check_together(self, group: dict[str, Any]) -> None:
        lr, limit = as_number(group["lr"]), as_number(group["num_data"]) * as_number(group["guide_variance"])
        if lr >= limit:
            raise ValueError(
                f"lr must be below num_data·guide_variance = {limit:g}, where the weights and their guide swing apart, "
                f"got {lr:g}: lower it, or raise guide_variance"
            )

    def noise_like(self, p: Tensor) -> Tensor:
        """Two independent draws on a last axis: one for the weights, one for the guide."""
        return torch.stack([super().noise_like(p), super().noise_like(p)], dim=-1)

    def initial_state(self, group: dict[str, Any], p: Tensor, name: str) -> Tensor:
        """The guide starts as a copy of the weights."""
        return p.detach().clone()

    @contextmanager
    def at_guide(self) -> Iterator[None]:
        """``with sampler.at_guide():`` the parameters hold the guide θₐ; afterwards they hold θ again.

        A parameter without a guide (frozen, or before the first step) keeps its value. Do not step inside.
        """
        pairs = [(p, s["guide"]) for group in self.param_groups for p in group["params"] if (s := self.state.get(p))]
        weights = [p.detach().clone() for p, _ in pairs]
        try:
            with torch.no_grad():
                for p, guide in pairs:
                    p.copy_(guide)
            yield
        finally:
            with torch.no_grad():
                for (p, _), value in zip(pairs, weights, strict=True):
                    p.copy_(value)
