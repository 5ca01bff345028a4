"""Scale-adapted L2E: the learned sampler explores, and leaves a frozen mass with which the chain has a law."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor, nn

from learned_samplers.base import prior_mean, validation
from learned_samplers.base.group_keys import SamplerOptions
from learned_samplers.base.operations import FOREACH
from learned_samplers.base.sampler import arguments
from learned_samplers.base.segments import Segments
from learned_samplers.base.step import Evaluation, GroupInputs, blocks
from learned_samplers.classical.cyclical import cycle_of
from learned_samplers.learned.badge import HEURISTIC
from learned_samplers.learned.feature_sets import feature_set_named
from learned_samplers.learned.features import begin_late_
from learned_samplers.learned.native.step import can_step, step_tensors_
from learned_samplers.learned.sampler import LearnedSampler, gather, scatter, together
from learned_samplers.learned.scale_adapted.rule import (
    ScaleAdaptedL2ESettings,
    explorer,
    sampling_rule,
    scale_adapted_l2e_rule,
    settled_root,
    unsettled_root,
)


class ScaleAdaptedL2E(LearnedSampler):
    """`L2E` for the first steps, then a sampler with a law, whose step size in each coordinate a network has chosen.

    The learned sampler is good at reaching a mode and has no invariant law; `ScaleAdaptedSGHMC` has a law whatever its
    frozen mass is. This one explores as the first and samples as the second. With a = ``momentum_decay`` and t the
    step,

        t ≤ exploration_steps:  the step of L2E (residual form, gated), its run being exploration_steps long
        t = exploration_steps:  μ = network, coordinate by coordinate, on statistics of the chain (running averages,
                                θ, sizes, N);  r = 0
        t > exploration_steps:  r ← r − h·N·ĝ;  θ ← θ + (h/2)·r;  r ← (1−a)·r + √(T(2a−a²))·ξ;  θ ← θ + (h/2)·r
                                hᵢ = √(lr·Gᵢ/N),  G = κ·a·exp(μ)/(√v̂ + √(λT)/N + eps)

    with ĝ = g + λθ/N and v̂ the running average of g², which is frozen after ``adaptation_steps``: BAOA in the
    coordinates θ/√G. The exploration takes ``adaptation_steps`` but for a share of ``settling_share`` at their end, in
    which the mass settles: where L2E ends, at a mode, gradients are smaller than in the posterior around it. The factor
    a makes κ·lr Adam's learning rate, as for `ScaleAdaptedSGHMC`.

    Invariant law once the mass is frozen: exp(−U/T) up to O(lr), for *any* network; exactly on quadratics, while
    hᵢ²k < 4. Before, there is none, and `is_sampling` is False, so that `PosteriorSamples` collects nothing.

    With ``cycle_length`` K it does all of it anew every K steps from the weights where it is (t counts from 1 in each
    cycle; momenta, averages and mass are forgotten), to visit several modes. Each cycle's samples keep the law around
    what its exploration found; how often a mode is found is not its probability, hence the badge "heuristic" then.

    Source: the exploration is that of Kim, Jung, Kim and Lee, Learning to explore for stochastic gradient MCMC, ICML
    2024, the mass that of Springenberg et al., Bayesian optimization with robust Bayesian neural networks, NeurIPS
    2016; to join them is ours.

    Args:
        params, num_data, temperature, prior_precision, momentum_init, generator, options: as for `SGHMC`.
        lr: of the exploration, as for `L2E`; by default what the network's card recommends.
        adaptation_steps: steps of exploration and of settling; half the run, say. 0 is not possible: there is no mass
            without them.
        cycle_length: K > adaptation_steps, in steps; None for a single exploration.
        network: name of shipped weights, path of a weight file, an ``nn.Module`` whose ``nn.Linear`` layers are the
            network (four outputs: α, β, γ and μ; three with ``normalise_output``), "default" for the shipped
            "scale-adapted-l2e-gated" (a chosen direction, a learned gate), or None for fresh weights, with which the
            exploration is SGHMC and μ = 0.
        momentum_decay: a in (0, 1]; by default the card's, else 0.1.
        feature_set: a set with a second moment; by default the card's, else "lean".
        alpha_scale, beta_scale, friction_scale, output_bound, normalise_output, reference_data: of `L2E`; by default
            the card's, else 0.1, 10, 0, no bound, False and 50,000.
        mass_scale: κ; by default the card's, else 0.2.
        eps: added to √v̂, in units of the mean loss's gradient; by default the card's, else 1e-5.
        settling_share: in [0, 1); by default the card's, else 0.25.
        settings: a `ScaleAdaptedL2ESettings` in the place of the keywords from ``feature_set`` to ``settling_share``
            and of ``adaptation_steps``.
        foreach: as every sampler takes it; here small tensors are always updated together.

    Raises:
        ValueError, TypeError: an argument is out of range, of a wrong type, or contradicts the network's card; a step
            of a parameter that joined after the exploration. See `Sampler.step` for the others of a step.
    """

    settings_class = ScaleAdaptedL2ESettings
    not_sharded = "its network sees statistics of whole tensors"
    claims_law = True
    settings: ScaleAdaptedL2ESettings
    hyperparameters: ClassVar[tuple[str, ...]] = (*LearnedSampler.hyperparameters, "step")

    def __init__(
        self,
        params: Any,
        lr: float | None = None,
        num_data: float | None = None,
        *,
        adaptation_steps: int | None = None,
        cycle_length: int | None = None,
        network: str | os.PathLike[str] | nn.Module | None = "default",
        feature_set: str | None = None,
        momentum_decay: float | None = None,
        temperature: float = 1.0,
        prior_precision: float = 0.0,
        alpha_scale: float | None = None,
        beta_scale: float | None = None,
        friction_scale: float | None = None,
        output_bound: float | None = None,
        normalise_output: bool | None = None,
        reference_data: float | None = None,
        mass_scale: float | None = None,
        eps: float | None = None,
        settling_share: float | None = None,
        settings: ScaleAdaptedL2ESettings | None = None,
        momentum_init: str = "zero",
        foreach: bool | None = None,
        generator: torch.Generator | None = None,
        **options: Unpack[SamplerOptions],
    ):
        _require_steps(adaptation_steps, settings)
        super().__init__(params, arguments(locals()), generator=generator)

    @property
    def state_names(self) -> tuple[str, ...]:  # type: ignore[override]
        whitens = feature_set_named(self.settings.feature_set).whitens
        return ("momentum", "averages", "root", "whitening") if whitens else ("momentum", "averages", "root")

    def _shipped(self, own: dict[str, Any], num_data: float) -> str:
        return "scale-adapted-l2e-gated"

    def _rows(self) -> dict[str, int]:
        return {"averages": feature_set_named(self.settings.feature_set).num_averages}

    def _validate(self, group: dict[str, Any]) -> None:
        super()._validate(group)
        length = group.get("cycle_length")
        if length is not None:
            validation.whole("cycle_length", length)
            if length <= self._adaptation_steps:
                raise ValueError(
                    f"cycle_length {length} leaves no step to sample in after adaptation_steps={self._adaptation_steps}"
                )
        if hasattr(self, "defaults") and length != self.defaults.get("cycle_length"):
            raise ValueError(
                f"cycle_length must be the same in every group, got {length!r} beside {self.defaults['cycle_length']!r}"
            )

    def _badge(self) -> tuple[str, str]:
        if self.param_groups[0].get("cycle_length"):
            return HEURISTIC, "how often its cycles find a mode is not the probability of that mode"
        return super()._badge()

    @property
    def is_sampling(self) -> bool:
        """Whether the last step was one with the frozen mass (and, under a cyclical schedule, one that samples)."""
        length = self.param_groups[0].get("cycle_length")
        done = (self.step_count - 1) % length + 1 if length and self.step_count else self.step_count
        return done > self._adaptation_steps and super().is_sampling

    @property
    def cycle(self) -> int:
        """Index of the cycle that the last step belonged to, from 0."""
        length = self.param_groups[0].get("cycle_length")
        return cycle_of(self.step_count, length) if length else super().cycle

    def hyper(self, group: dict[str, Any], *, keep_tensors: bool = False) -> dict[str, Any]:
        """As of every learned sampler; "step" is that in its cycle."""
        hyper, length = super().hyper(group, keep_tensors=keep_tensors), group.get("cycle_length")
        return {**hyper, "step": hyper["step"] % length} if length else hyper

    @property
    def _adaptation_steps(self) -> int:
        assert self.settings.adaptation_steps is not None
        return self.settings.adaptation_steps

    def evaluate(self, closure: Callable[[], Any] | None) -> Evaluation:
        evaluation = super().evaluate(closure)
        for group in self.param_groups:
            for i, p in enumerate(group["params"]):
                if not p.requires_grad or p.grad is None or "root" in self.state.get(p, {}):
                    continue
                # Read for new ones alone: a compiled step must not depend on the count.
                exploring, step = self.settings.exploration_steps, self.hyper(group)["step"]
                if step >= exploring:
                    raise ValueError(
                        f"parameter {self.name_of(group, i)} has no mass: the exploration has {exploring} steps, "
                        f"{step} are over and it was in none of them; let it join before"
                    )
        return evaluation

    def advance(self, group: dict[str, Any], inputs: GroupInputs) -> None:
        params, gradients, hyper = inputs.params, inputs.gradients, self.hyper(group)
        step = hyper["step"]
        if step == 0 and group["step"]:
            self._begin_cycle(group, params)
        for p, gradient in zip(params, gradients, strict=True):  # all of it, before any noise is drawn
            joins = "averages" not in self.state.get(p, {})  # a half-precision one has its master copy there already
            for name in self.state_names:
                self.state_of(group, p, name)
            if joins and p.numel() and step:
                begin_late_(self.state[p]["averages"], gradient.square().mean(), self.settings.feature_set, step)
        if step < self.settings.exploration_steps:
            do = self._explore
        else:
            do = self._settle if step < self._adaptation_steps else self._sample
        for alike in together(params):
            chosen, slopes = [params[i] for i in alike], [gradients[i] for i in alike]
            for block in blocks(chosen):
                do(chosen[block], slopes[block], hyper)
        if "whitening" in self.state_names and step < self.settings.exploration_steps:
            self.keep_roots(params, step)
        if step + 1 in (self.settings.exploration_steps, self._adaptation_steps):
            self._complete(group, params, hyper)

    def _begin_cycle(self, group: dict[str, Any], params: list[Tensor]) -> None:
        """Forget all but the weights, and the master copies of those that move now."""
        here = {id(p) for p in params}
        for p in group["params"]:
            self.roots.last.pop(p, None)
            if id(p) not in here:
                self.state.pop(p, None)
                continue
            for name in self.state_names:
                self.state[p].pop(name, None)

    def _explore(self, params: list[Tensor], gradients: list[Tensor], hyper: dict[str, Any]) -> None:
        noise, phi = self.noise_for(params, hyper), self._phi(params[0])
        momenta, averages, _, *covariances = ([self.state[p][name] for p in params] for name in self.state_names)
        everything = (*params, *gradients, *(noise or ()), *momenta, *averages)
        exploration = self.settings.exploration
        if not can_step(explorer(phi), exploration, *everything):
            self.advance_flat(params, gradients, noise, hyper)
            return
        more = covariances[0] if covariances else None
        step_tensors_(
            params, gradients, noise, momenta, averages, more, phi=explorer(phi), **{**hyper, "settings": exploration}
        )
        if hyper["step"] + 1 == self.settings.exploration_steps:
            self._choose(params, params, hyper)

    def _choose(self, params: list[Tensor], centred: list[Tensor], hyper: dict[str, Any]) -> None:
        """End the exploration of some parameters, whose differences from the prior's mean are ``centred``."""
        segments = Segments.of(params)
        momenta, averages, roots, *more = ([self.state[p][name] for p in params] for name in self.state_names)
        flat = gather(centred), self._flat_state("averages", averages)
        covariances = self._flat_state("whitening", more[0]) if more else None
        phi = self._phi(centred[0])  # not of a half-precision parameter itself
        scatter(unsettled_root(*flat, phi=phi, segments=segments, whitening=covariances, **hyper), roots, segments)
        torch._foreach_zero_(momenta)

    def _complete(self, group: dict[str, Any], seen: list[Tensor], hyper: dict[str, Any]) -> None:
        """Choose, or freeze, also the mass of the parameters that have no gradient in the very step that does so."""
        here = {id(p) for p in seen}
        left = [p for p in group["params"] if p.numel() and id(p) not in here and "root" in self.state.get(p, {})]
        chosen = ("num_data", "temperature", "prior_precision", "step", "settings")
        for p, centred in zip(left, prior_mean.centred(group, left), strict=True):
            root = self.state[p]["root"]
            if hyper["step"] + 1 == self.settings.exploration_steps:
                self._choose([p], [centred.to(root.dtype)], hyper)
            else:
                averages = self._flat_state("averages", [self.state[p]["averages"]])
                frozen = settled_root(root.reshape(-1), averages, **{name: hyper[name] for name in chosen})
                root.copy_(frozen.reshape(root.shape))

    def _settle(self, params: list[Tensor], gradients: list[Tensor], hyper: dict[str, Any]) -> None:
        self.advance_flat(params, gradients, self.noise_for(params, hyper), hyper)

    def _sample(self, params: list[Tensor], gradients: list[Tensor], hyper: dict[str, Any]) -> None:
        momenta, roots = ([self.state[p][name] for p in params] for name in ("momentum", "root"))
        chosen = ("lr", "num_data", "temperature", "prior_precision", "momentum_decay")
        noise = self.noise_for(params, hyper)
        sampling_rule(params, gradients, noise, momenta, roots, ops=FOREACH, **{name: hyper[name] for name in chosen})

    def flat_rule(self, *tensors: Any, **hyper: Any) -> tuple[Tensor, ...]:
        return scale_adapted_l2e_rule(*tensors, **hyper)


def _require_steps(adaptation_steps: Any, settings: Any) -> None:
    """Raise ValueError unless one of them says when the mass is frozen; settings of another class are refused later."""
    if isinstance(settings, ScaleAdaptedL2ESettings):
        adaptation_steps = settings.adaptation_steps
    elif settings is not None:
        return
    if adaptation_steps is None:
        raise ValueError(
            "adaptation_steps must be given: the steps after which the mass is frozen, and samples are taken"
        )
