"""L2E, a learned sampler: a small network, applied to every weight, inside stochastic gradient HMC."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from learned_samplers.base.group_keys import SamplerOptions
from learned_samplers.base.sampler import arguments
from learned_samplers.learned.default_weights import l2e_weights
from learned_samplers.learned.l2e.rule import L2E_PASSES, L2ESettings, l2e_rule
from learned_samplers.learned.two_pass_sampler import TwoPassSampler
from learned_samplers.learned.two_passes import TwoPasses

#: What the published code does where it differs from the paper: ``L2E(params, lr, **PUBLISHED_CODE, network=...)``,
#: with lr its ``step_mult`` (its step size h is lr/50,000).
PUBLISHED_CODE: dict[str, Any] = {
    "form": "paper",
    "num_data": 50_000,
    "friction": "algorithm2",
    "noise_multiplier": 1e-3,
    "momentum_init": "zero",
}


class L2E(TwoPassSampler):
    """SGHMC with a correction, learned or chosen so that predictions are good after few steps.

    Source: Kim, Jung, Kim and Lee, Learning to explore for stochastic gradient MCMC, ICML 2024. The gradient of the
    kinetic energy is learned.

    With ε = √(lr/N), momentum decay a, ∇Ũ = N·g + λθ, ξ ~ N(0, I), m the running averages of g, and
    (α, β) = network(features(θ, r, g, m)), coordinate by coordinate (the features may be of a whole tensor: the default
    weights see the orthogonal factor of each matrix's whitened momentum, and β is minus it; a gated network gives
    (α, β, γ), and β·exp(γ) stands for β: the default from N = 10,000 on, which has learned how far each tensor goes):

    ``form="residual"`` (default): the network corrects SGHMC; with a last layer of zeros it is `SGHMC`, bit for bit:

        r ← (1−a)·r − ε·∇Ũ + √(2aT)·ξ − s_α·α(θ, r) − a·s_β·β(θ, r)
        θ ← θ + ε·(r + s_β·β(θ, r_new))

    ``form="paper"``: Eq. 6, with both outputs times s = 10⁻³:

        r ← r − ε·[∇Ũ + s·α(θ, r) + C·s·β(θ, r)] + √(2aT)·ξ,    C = a/ε
        θ ← θ + ε·s·β(θ, r_new)

    Where paper and published code disagree the paper's rule is the default, and `PUBLISHED_CODE` holds the options
    that reproduce the code: C = a (as in the paper's Algorithm 2), noise of variance 2a·10⁻³, N = 50,000, momentum from
    zero. (The paper also says that features have "l2 norm 1"; root mean square 1 over the tensor is what the code does,
    and what is done here. Momentum starts from N(0, I) in the paper: ``momentum_init="normal"``.)

    Invariant law: none is claimed. Eq. 6 leaves the posterior invariant if α and β are the gradients of one function of
    (θ, r) alone (Assumption 3.1); the network sees running averages and minibatch gradients and is not constrained to
    that. With random weights variances on Gaussians are off by up to 70 % (residual form), whatever the step size, and
    with the default ones they are up to 8 times the target's at their own lr (with the gate 41); hence the badge.
    `learned_samplers.learned.law.l2e_law` says how far given weights stray, and
    `learned_samplers.learned.l2e.measures.assumption_violation` by how much the assumption fails.

    Args:
        params: parameters, named parameters or parameter groups.
        lr: learning rate of ordinary training; by default what the network's card recommends.
        num_data: N, the number of training points.
        network: name of shipped weights, path of a weight file, an ``nn.Module`` of ``nn.Linear`` layers with ReLU
            between them, or None for fresh weights (last layer zero in the residual form). "default" is the shipped
            "l2e-gated" where ``num_data`` is at least 10,000, below it "l2e-damped", the same direction without a gate,
            short where the data are fitted; "l2e-paper" with ``form="paper"``. Sharded parameters need network="l2e".
        form: "residual" or "paper"; by default the card's, else "residual".
        feature_set: name of the features the network sees (`learned_samplers.learned.feature_sets.FEATURE_SETS`); by
            default the card's, else "paper". "whitened" and those with "orthogonal_whitened" keep two matrices of
            (inputs × kernel)² numbers for each weight matrix (in blocks of 512 inputs), decompose one of them every ten
            steps, and are not differentiable.
        momentum_decay: a in (0, 1]; by default the card's, else 0.1.
        alpha_scale, beta_scale: s_α and s_β; by default the card's, else 0.1 and 1 (residual) or 10⁻³ (paper).
        friction_scale: a further factor on β in the friction alone; by default the card's, else 1. With 0 the friction
            acts on r only: Eq. 6 still, with C·s_β·β taken out of α, but a β that lasts is not cancelled by the
            momentum that friction builds up against it (at 1, r → −s_β·β within 1/a steps unless α undoes it).
        reference_data: N₀ > 0 (residual form): s_β is multiplied by √(N/N₀), so that the learned part of a step depends
            on lr alone, as an adaptive optimizer's does; by default the card's, else s_β is as it is.
        decay_time: τ > 0 in steps (residual form): the network's outputs are divided by √(1 + t/τ) after t updates,
            before any bound, so that the sampler tends to SGHMC; τ·N₀/N in the place of τ where there is a
            ``reference_data``. By default the card's, else they are not.
        output_bound: B > 0 holds the network's outputs to B·tanh(·/B); by default the card's, else no bound.
        normalise_output: whether β, after any bound, is divided by its root mean square over the tensor, so that s_β
            alone says how far the learned velocity moves it (a ``decay_time`` acts after that); by default the card's,
            else False.
        total_steps: length of the run in steps, for networks that see the progress of a run (feature sets "lean",
            "adaptive_run", "matrix" and those that whiten, as the default weights do), which may then act by how
            much of it is over (a schedule in the network; lr stays as it is); by default None, not known. It is of
            this run, not of the weights' card, and a resumed chain must have the same.
        averages_dtype: "bfloat16" keeps the running averages in half the memory, rounded so that the error averages out
            (`learned_samplers.learned.narrow`), and the momentum as it is; by default "float32", the parameters' dtype.
        noise_multiplier, friction: of the paper's form, see `learned_samplers.learned.l2e.rule.l2e_rule`; by
            default the card's, else 1 and "equation6".
        settings: a `learned_samplers.learned.l2e.rule.L2ESettings` in the place of ``form``, ``feature_set`` and the
            keywords from ``alpha_scale`` to ``friction``.
        temperature, prior_precision, generator, options: as for `SGLD`.
        momentum_init: "zero", or "normal" to draw the first momentum from N(0, T).
        foreach: as every sampler takes it; here small tensors are always updated together, large ones alone.

    Raises:
        ValueError, TypeError: an argument is out of range, of a wrong type, or contradicts the network's card; a weight
            file that cannot be used is named with the reason. See `Sampler.step` for the errors of a step.
    """

    settings_class = L2ESettings
    settings: L2ESettings

    def __init__(
        self,
        params: Any,
        lr: float | None = None,
        num_data: float | None = None,
        *,
        network: str | os.PathLike[str] | nn.Module | None = "default",
        form: str | None = None,
        feature_set: str | None = None,
        momentum_decay: float | None = None,
        temperature: float = 1.0,
        prior_precision: float = 0.0,
        alpha_scale: float | None = None,
        beta_scale: float | None = None,
        friction_scale: float | None = None,
        reference_data: float | None = None,
        decay_time: float | None = None,
        output_bound: float | None = None,
        normalise_output: bool | None = None,
        total_steps: int | None = None,
        averages_dtype: torch.dtype | str | None = None,
        noise_multiplier: float | None = None,
        friction: str | None = None,
        settings: L2ESettings | None = None,
        momentum_init: str = "zero",
        foreach: bool | None = None,
        generator: torch.Generator | None = None,
        **options: Unpack[SamplerOptions],
    ):
        super().__init__(params, arguments(locals()), generator=generator)

    def _shipped(self, own: dict[str, Any], num_data: float) -> str:
        return l2e_weights(num_data, own["form"])

    def know_length(self, steps: int) -> None:
        """Let the network know the length of the run where it may see that and has not been told (`AdaptedSGHMC`)."""
        if self.settings.total_steps is None and self.feature_set.sees_progress:
            self.settings = replace(self.settings, total_steps=steps)

    @property
    def form(self) -> str:
        """The form of the update, "residual" or "paper"."""
        return self.settings.form

    def passes(self) -> TwoPasses:
        return L2E_PASSES[self.form]

    def flat_rule(self, *tensors: Any, **hyper: Any) -> tuple[Tensor, ...]:
        return l2e_rule(*tensors, **hyper)
