"""The update of scale-adapted L2E: L2E explores, a mass settles, and frozen it samples.

A pure function of flat buffers with any leading batch axes, which `ScaleAdaptedL2E` and the meta-trainer call.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from learned_samplers.base import validation as check
from learned_samplers.base.operations import FUNCTIONAL
from learned_samplers.base.segments import Segments
from learned_samplers.classical.adapted import diagonal_mass_rule
from learned_samplers.learned.feature_sets import FEATURE_SETS, feature_set_named
from learned_samplers.learned.features import TensorScales, update_averages
from learned_samplers.learned.l2e.rule import L2ESettings, l2e_rule
from learned_samplers.learned.network import GATE_BOUND, Phi, raw_outputs
from learned_samplers.learned.settings import LearnedSettings, choice, setting

#: The sets with a second moment, which the mass is made of.
_SETS = tuple(name for name, each in FEATURE_SETS.items() if each.second_moment_decays)
#: Of the running average that stands for the gradient when the mass is chosen, and of the second moment: the slowest.
SLOWEST = -1


@dataclass(frozen=True, kw_only=True)
class ScaleAdaptedL2ESettings(LearnedSettings):
    """The settings of `learned_samplers.ScaleAdaptedL2E`, where each is explained."""

    sampler: ClassVar[str] = "ScaleAdaptedL2E"
    hidden: ClassVar[tuple[int, ...]] = (8, 8)
    at_zero: ClassVar[str] = "its exploration is that of SGHMC"
    law_stands_for_any: ClassVar[tuple[str, ...]] = ("adaptation_steps",)  # whatever the mass is, it is frozen
    added: ClassVar[dict[str, Any]] = {"normalise_output": False}

    feature_set: str = choice("lean", *_SETS, doc="What the network sees.")
    alpha_scale: float = setting(0.1, check.non_negative, doc="Factor on the output α.")
    beta_scale: float = setting(10.0, check.non_negative, doc="Factor on the output β.")
    friction_scale: float = setting(0.0, check.non_negative, doc="Share of the friction that acts on β.")
    output_bound: float | None = setting(None, check.positive, optional=True, doc="Bound on α and β.")
    normalise_output: bool = setting(
        False, check.truth, doc="Divide β by its root mean square over the tensor; there is no gate then."
    )
    reference_data: float | None = setting(
        50_000.0,
        check.positive,
        optional=True,
        doc="N₀ at which the factor on β holds; it grows with the root of N/N₀.",
    )
    mass_scale: float = setting(0.2, check.positive, doc="κ, factor on lr once the mass is frozen.")
    _explorer: ClassVar[L2ESettings]  # of the instance, made once
    eps: float = setting(1e-5, check.positive, doc="Added to the root of the second moment in the mass.")
    settling_share: float = setting(
        0.25,
        partial(check.fraction, open_right=True),
        doc="Share of adaptation_steps, at their end, in which the mass settles at the temperature.",
    )
    adaptation_steps: int | None = setting(
        None, check.whole, optional=True, in_card=False, doc="Steps after which the mass is frozen."
    )

    @property
    def features(self) -> tuple[str, ...]:
        return feature_set_named(self.feature_set).names

    @property
    def outputs(self) -> int:
        return 3 if self.normalise_output else 4

    @property
    def exploration_steps(self) -> int:
        """The first of the ``adaptation_steps``, those of L2E."""
        assert self.adaptation_steps is not None
        return max(1, self.adaptation_steps - int(self.settling_share * self.adaptation_steps))

    def __post_init__(self) -> None:
        super().__post_init__()
        # No cached_property, whose lock torch.compile cannot follow before Python 3.12.
        object.__setattr__(self, "_explorer", self._exploration())

    @property
    def exploration(self) -> L2ESettings:
        """Those of the `L2E` that explores; the length of its run is that of the exploration."""
        return self._explorer

    def _exploration(self) -> L2ESettings:
        sees = feature_set_named(self.feature_set).sees_progress
        return L2ESettings(
            feature_set=self.feature_set,
            alpha_scale=self.alpha_scale,
            beta_scale=self.beta_scale,
            friction_scale=self.friction_scale,
            output_bound=self.output_bound,
            reference_data=self.reference_data,
            gated=not self.normalise_output,
            normalise_output=self.normalise_output,
            total_steps=self.exploration_steps if sees and self.adaptation_steps is not None else None,
        )


def explorer(phi: Phi) -> Phi:
    """The layers of the network that explores: all but the output of the mass."""
    *hidden, (weight, bias) = phi
    return [*hidden, (weight[..., :-1, :].contiguous(), bias[..., :-1].contiguous())]


def unsettled_root(
    parameter: Tensor,
    averages: Tensor,
    *,
    phi: Phi,
    segments: Segments,
    settings: ScaleAdaptedL2ESettings,
    lr: Any,
    num_data: Any,
    momentum_decay: Any,
    step: Any,
    whitening: Tensor | None = None,
    **hyper: Any,
) -> Tensor:
    """√(κ·a·exp(μ)), (..., d): what the network has to say of √G, after its exploration.

    μ, held to ±6, is its last output where the momentum is zero and the gradient is its slowest running average:
    statistics of the chain, not of its last minibatch. Before the mass is frozen, `settled_root` has the rest of it;
    where no step is left to settle in, that of the exploration.

    Args:
        parameter, averages, whitening: of the chain after step + 1 updates, (..., d), (..., K, d) and (..., w).
        phi, segments, settings, lr, num_data, momentum_decay, step, hyper: as for `scale_adapted_l2e_rule`.
    """
    named = feature_set_named(settings.feature_set)
    k = len(named.average_decays)
    mean = averages[..., k - 1, :] / (1 - named.average_decays[SLOWEST] ** (step + 1))
    scales = TensorScales(
        parameter,
        mean,
        averages,
        segments,
        named,
        lr=lr,
        num_data=num_data,
        step=step,
        total_steps=settings.exploration.total_steps,
        prior_precision=hyper["prior_precision"],
        whitening=whitening,
    ).with_momentum(torch.zeros_like(parameter))
    (mu,) = raw_outputs(phi, scales, slice(settings.outputs - 1, settings.outputs))
    root = (mu.clamp(-GATE_BOUND, GATE_BOUND).exp() * (settings.mass_scale * momentum_decay)).sqrt()
    if settings.exploration_steps < settings.adaptation_steps:  # type: ignore[operator]
        return root
    return settled_root(root, averages, settings=settings, num_data=num_data, step=step, **hyper)


def settled_root(
    root: Tensor,
    averages: Tensor,
    *,
    settings: ScaleAdaptedL2ESettings,
    num_data: Any,
    temperature: Any,
    prior_precision: Any,
    step: Any,
) -> Tensor:
    """√G of every coordinate, (..., d): `unsettled_root` over the root of √v̂ + √(λT)/N + eps.

    v̂ is the slowest of the set's second moments after step + 1 updates, bias-corrected. √(λT)/N is the root mean square
    of the prior's part of the gradient, at the prior: without it a weight that has seen hardly any gradient would fly
    away on its noise.
    """
    named = feature_set_named(settings.feature_set)
    second = averages[..., SLOWEST, :] / (1 - named.second_moment_decays[SLOWEST] ** (step + 1))
    prior = (prior_precision * temperature) ** 0.5 / num_data
    return root / (second.sqrt() + prior + settings.eps).sqrt()


def scale_adapted_l2e_rule(
    parameter: Tensor,
    gradient: Tensor,
    noise: Tensor | None,
    momentum: Tensor,
    averages: Tensor,
    root: Tensor,
    whitening: Tensor | None = None,
    *,
    phi: Phi,
    segments: Segments,
    lr: Any,
    num_data: Any,
    temperature: Any,
    prior_precision: Any,
    momentum_decay: Any,
    step: Any,
    settings: ScaleAdaptedL2ESettings,
) -> tuple[Tensor, ...]:
    """One step: of `l2e_rule` while ``step`` < ``exploration_steps``, of `sampling_rule` afterwards.

    The last step of the exploration also sets ``root`` to `unsettled_root`, and the momentum to zero. Until
    ``adaptation_steps`` the mass is `settled_root`, of averages that follow the gradients of a chain at its
    temperature; then it is frozen, and ``root`` is √G.

    Args:
        parameter, gradient, noise, momentum, averages: as for `l2e_rule`.
        root: (..., d); zeros while the chain explores.
        whitening: as for `l2e_rule`, which alone changes it.
        phi: layers with four outputs α, β, γ (the gate of β, which normalised outputs have not) and μ, with the leading
            axes of ``parameter`` or none.
        segments, lr, num_data, temperature, prior_precision, momentum_decay, step: as for `l2e_rule`.
        settings: with ``adaptation_steps``.

    Returns:
        The new (parameter, momentum, averages, root), and whitening where there is any. Nothing is changed in place.
    """
    at = dict(
        lr=lr,
        num_data=num_data,
        temperature=temperature,
        prior_precision=prior_precision,
        momentum_decay=momentum_decay,
    )
    if step >= settings.exploration_steps:
        mass = root
        if step < settings.adaptation_steps:
            averages = update_averages(averages, gradient, settings.feature_set)
            here = dict(num_data=num_data, temperature=temperature, prior_precision=prior_precision, step=step)
            mass = settled_root(root, averages, settings=settings, **here)
        parameter, momentum = sampling_rule(parameter, gradient, noise, momentum, mass, **at)
        root = mass if step + 1 == settings.adaptation_steps else root
        return parameter, momentum, averages, root, *(() if whitening is None else (whitening,))
    parameter, momentum, averages, *covariances = l2e_rule(
        parameter,
        gradient,
        noise,
        momentum,
        averages,
        whitening,
        phi=explorer(phi),
        segments=segments,
        step=step,
        settings=settings.exploration,
        **at,
    )
    if step + 1 == settings.exploration_steps:
        whitening = covariances[0] if covariances else None
        known = dict(phi=phi, segments=segments, settings=settings, step=step, whitening=whitening)
        root = unsettled_root(parameter, averages, **known, **at)
        momentum = torch.zeros_like(momentum)
    return parameter, momentum, averages, root, *covariances


def sampling_rule(
    parameter: Any,
    gradient: Any,
    noise: Any,
    momentum: Any,
    root: Any,
    *,
    num_data: Any,
    prior_precision: Any,
    ops: Any = FUNCTIONAL,
    **settings: Any,
) -> tuple[Any, Any]:
    """`diagonal_mass_rule` with BAOA and the prior's gradient: the step of a chain that has a mass."""
    gradient = ops.combine(gradient, parameter, prior_precision / num_data)
    settings |= {"num_data": num_data, "integrator": "baoa", "ops": ops}
    return diagonal_mass_rule(parameter, gradient, noise, momentum, root, **settings)
