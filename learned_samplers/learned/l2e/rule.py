"""The L2E update: a pure function of flat buffers, with any leading batch axes.

A model's tensors lie end to end in one axis of length d (`Segments` says where each begins). The optimizer `L2E`, the
meta-trainer (a leading axis of P perturbed networks) and the tests all call `l2e_rule`.

Source: Kim, Jung, Kim and Lee, "Learning to Explore for Stochastic Gradient MCMC", ICML 2024 (Eq. 6, Appendix I).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from learned_samplers.base import validation as check
from learned_samplers.base.operations import FUNCTIONAL, scalar_sqrt
from learned_samplers.classical.sghmc import sghmc_rule
from learned_samplers.learned.feature_sets import FEATURE_SETS, check_total_steps, feature_set_named
from learned_samplers.learned.network import NetworkOnChain, Phi, RuleArguments, network_at
from learned_samplers.learned.settings import LearnedSettings, choice, setting
from learned_samplers.learned.two_passes import TwoPasses

# The settings of one form alone, and what "by default" means for those whose default depends on it.
_OF_ONE_FORM = {
    "reference_data": "residual",
    "decay_time": "residual",
    "noise_multiplier": "paper",
    "friction": "paper",
}
_BY_FORM: dict[str, dict[str, Any]] = {
    "residual": {"alpha_scale": 0.1, "beta_scale": 1.0},
    "paper": {"alpha_scale": 1e-3, "beta_scale": 1e-3, "noise_multiplier": 1.0, "friction": "equation6"},
}


@dataclass(frozen=True, kw_only=True)
class L2ESettings(LearnedSettings):
    """The settings of `learned_samplers.L2E`, where each is explained; None is the form's default.

    Raises:
        ValueError, TypeError: a value is out of range or of a wrong type, or a setting belongs to the other form.
    """

    sampler: ClassVar[str] = "L2E"

    form: str = choice("residual", "residual", "paper", doc="SGHMC with learned terms, or Eq. 6 of the paper.")
    feature_set: str = choice("paper", *FEATURE_SETS, doc="What the network sees.")
    alpha_scale: float = setting(None, check.non_negative, optional=True, doc="Factor on the output α.")
    beta_scale: float = setting(None, check.non_negative, optional=True, doc="Factor on the output β.")
    friction_scale: float = setting(
        1.0, check.non_negative, doc="Share of the friction that acts on β; of Meta-SGMCMC and Precond-L2E s_D."
    )
    output_bound: float | None = setting(None, check.positive, optional=True, doc="Bound on the network's outputs.")
    normalise_output: bool = setting(
        False, check.truth, doc="Divide β by its root mean square over the tensor, after the bound."
    )
    gated: bool = setting(
        False, check.truth, doc="Whether a third output γ multiplies β by exp(γ), γ held to ±6 (residual form)."
    )
    reference_data: float | None = setting(
        None, check.positive, optional=True, doc="N₀ at which the factor on β holds; it grows with the root of N/N₀."
    )
    decay_time: float | None = setting(
        None, check.positive, optional=True, doc="τ in steps: outputs are divided by √(1 + t/τ) after t updates."
    )
    total_steps: int | None = setting(
        None, check.whole, optional=True, in_card=False, doc="Length of the run, for feature sets with its progress."
    )
    averages_dtype: str = choice("float32", "float32", "bfloat16", in_card=False)
    noise_multiplier: float | None = setting(
        None, check.non_negative, optional=True, doc="Factor on the noise's variance (paper form)."
    )
    friction: str | None = choice(
        None, "equation6", "algorithm2", doc="Friction of the paper form: a/ε (equation6) or a (algorithm2)."
    )

    def __post_init__(self) -> None:
        check.one_of("form", self.form, _BY_FORM)
        for name, value in _BY_FORM[self.form].items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        for name, form in _OF_ONE_FORM.items():
            if form != self.form and getattr(self, name) is not None:
                raise ValueError(
                    f"{name} does not belong to this form of L2E, form={self.form!r}, got {getattr(self, name)!r}"
                )
        super().__post_init__()
        if self.gated and (self.form != "residual" or self.normalise_output):
            raise ValueError(
                f"gated=True needs form='residual' and normalise_output=False, got {self.form!r} and "
                f"{self.normalise_output}"
            )
        check_total_steps(self.total_steps, self.feature_set)

    def to_card(self) -> dict[str, Any]:
        card = super().to_card()
        card["scales"] = {name: v for name, v in card["scales"].items() if _OF_ONE_FORM.get(name) in (None, self.form)}
        return card

    @property
    def features(self) -> tuple[str, ...]:
        return feature_set_named(self.feature_set).names

    @property
    def outputs(self) -> int:
        return 3 if self.gated else 2

    @property
    def zero_is_base(self) -> bool:
        return self.form == "residual"


def velocity_scale(settings: L2ESettings, num_data: Any) -> Any:
    """s_β, or s_β·√(N/N₀) where there is a reference N₀."""
    reference = settings.reference_data
    return settings.beta_scale if reference is None else settings.beta_scale * scalar_sqrt(num_data / reference)


def decay_factor(settings: L2ESettings, step: Any, num_data: Any) -> Any:
    """1/√(1 + t/τ), the factor on the outputs after t = ``step`` updates, or 1 where there is no ``decay_time``.

    τ = ``decay_time``, or τ = ``decay_time``·N₀/N where there is a reference N₀.
    """
    decay_time: Any = settings.decay_time
    if decay_time is None:
        return 1.0
    if settings.reference_data is not None:
        decay_time = decay_time * settings.reference_data / num_data
    passed = step.double() if isinstance(step, Tensor) else step
    return 1 / scalar_sqrt(1 + passed / decay_time)


def decayed(phi: Phi, settings: L2ESettings, step: Any, num_data: Any) -> Phi:
    """The network with `decay_factor` times α and β; times α alone where normalising β would lose the factor."""
    if settings.decay_time is None:
        return phi
    *hidden, (weight, bias) = phi
    scaled = 1 if settings.normalise_output else 2
    factor = torch.ones_like(bias)
    factor[..., :scaled] = decay_factor(settings, step, num_data)
    return [*hidden, (weight * factor.unsqueeze(-1), bias * factor)]


def l2e_network(
    phi: Phi, *tensors: Any, settings: L2ESettings, num_data: Any, step: Any, **at: Any
) -> tuple[NetworkOnChain, tuple[Tensor, ...]]:
    """As `network_at`, with `decayed` and normalised outputs."""
    factor = decay_factor(settings, step, num_data) if settings.normalise_output else None
    phi = decayed(phi, settings, step, num_data)
    return network_at(phi, *tensors, settings=settings, num_data=num_data, step=step, normalised=factor, **at)


def _residual_kick(
    parameter: Tensor,
    gradient: Tensor,
    noise: Tensor | None,
    momentum: Tensor,
    alpha: Tensor,
    beta: Tensor,
    *,
    settings: L2ESettings,
    step: Any,
    **hyper: Any,
) -> Tensor:
    _, momentum = sghmc_rule(parameter, gradient, noise, momentum, **hyper)
    momentum = FUNCTIONAL.add(momentum, alpha, -settings.alpha_scale)
    by_beta = hyper["momentum_decay"] * velocity_scale(settings, hyper["num_data"]) * settings.friction_scale
    return FUNCTIONAL.add(momentum, beta, -by_beta)


def _residual_move(
    parameter: Tensor, momentum: Tensor, beta: Tensor, *, settings: L2ESettings, lr: Any, num_data: Any, **_: Any
) -> Tensor:
    velocity = FUNCTIONAL.add(momentum, beta, velocity_scale(settings, num_data))
    return FUNCTIONAL.add(parameter, velocity, scalar_sqrt(lr / num_data))


def _paper_kick(
    parameter: Tensor,
    gradient: Tensor,
    noise: Tensor | None,
    momentum: Tensor,
    alpha: Tensor,
    beta: Tensor,
    *,
    settings: L2ESettings,
    momentum_decay: Any,
    **hyper: Any,
) -> Tensor:
    step_size = scalar_sqrt(hyper["lr"] / hyper["num_data"])
    momentum = FUNCTIONAL.add(momentum, gradient, -step_size * hyper["num_data"])
    momentum = FUNCTIONAL.add(momentum, parameter, -step_size * hyper["prior_precision"])
    momentum = FUNCTIONAL.add(momentum, alpha, -step_size * settings.alpha_scale)
    damping = momentum_decay if settings.friction == "equation6" else step_size * momentum_decay
    momentum = FUNCTIONAL.add(momentum, beta, -damping * settings.beta_scale * settings.friction_scale)
    if noise is None:
        return momentum
    spread = scalar_sqrt(2 * momentum_decay * settings.noise_multiplier * hyper["temperature"])
    return FUNCTIONAL.add(momentum, noise, spread)


def _paper_move(
    parameter: Tensor, momentum: Tensor, beta: Tensor, *, settings: L2ESettings, lr: Any, num_data: Any, **_: Any
) -> Tensor:
    return FUNCTIONAL.add(parameter, beta, scalar_sqrt(lr / num_data) * settings.beta_scale)


#: The two updates by form, as `TwoPasses` of the network.
L2E_PASSES: dict[str, TwoPasses] = {
    "residual": TwoPasses(l2e_network, _residual_kick, _residual_move, second=1),
    "paper": TwoPasses(l2e_network, _paper_kick, _paper_move, second=1),
}


def l2e_rule(
    parameter: Tensor,
    gradient: Tensor,
    noise: Tensor | None,
    momentum: Tensor,
    averages: Tensor,
    whitening: Tensor | None = None,
    *,
    settings: L2ESettings,
    step: Any = 0,
    **at: Unpack[RuleArguments],
) -> tuple[Tensor, ...]:
    """One step of L2E: a pure function of flat buffers, in the residual form or in the paper's, as the settings say.

    With ε = √(lr/N), momentum decay a and (α, β) = network(features(θ, r)), after m ← running averages of g, the
    residual form is SGHMC plus learned terms, and with a last layer of zeros it is `sghmc_rule`, bit for bit:

        r ← (1−a)·r − ε·(N·g + λθ) + √(2aT)·ξ − s_α·α(θ, r) − a·s_β·β(θ, r)
        θ ← θ + ε·(r + s_β·β(θ, r_new))

    that is, Eq. 6 of the paper with ∂g/∂r = r + s_β·β and ∂g/∂θ = (s_α/ε)·α. The paper's form is Eq. 6 as it stands,
    with s_α = s_β = 10⁻³ and ν = ``noise_multiplier``:

        r ← r − ε·[N·g + λθ + s_α·α(θ, r) + C·s_β·β(θ, r)] + √(2aνT)·ξ
        θ ← θ + ε·s_β·β(θ, r_new)

    The friction is C = a/ε with ``friction="equation6"`` (so that the noise has variance 2Cε·T = 2aT, as Eq. 6 has it),
    or C = a with ``friction="algorithm2"`` (Algorithm 2 of the paper, noise of variance 2a). The published code is
    ``friction="algorithm2", noise_multiplier=1e-3`` at ``num_data=50_000``, T = 1, momentum starting at zero.

    Args:
        parameter, gradient, noise, momentum: (..., d); gradient of the *mean* minibatch loss, noise standard normal or
            None at temperature 0.
        averages: (..., `FeatureSet.num_averages`, d), zeros at the start.
        whitening: (..., w), zeros at the start, of a feature set that `FeatureSet.whitens`, where w is the sum of
            `learned_samplers.base.whitening.state_lengths`.
        settings: with s_α = ``alpha_scale`` and s_β = ``beta_scale``, in the residual form in units of the momentum,
            whose equilibrium scale is √T;

            - ``friction_scale``, a further factor on β in the friction alone; with 0 the friction acts on r only (the
              same rule with another α, easier to learn: at 1 a lasting β is cancelled by the momentum it builds up);
            - ``reference_data`` N₀ multiplies s_β by √(N/N₀), so that the learned velocity moves θ by √(lr/N₀)·s_β·β
              whatever N is, as an adaptive optimizer's step does;
            - ``decay_time`` τ in steps divides (α, β) by √(1 + t/τ), t the updates done before, so that the rule tends
              to `sghmc_rule` and its law to that of SGHMC. With ``reference_data`` it holds at N = N₀ and is τ·N₀/N at
              another N: the fewer the data, the longer the noise keeps a chain from memorising them;
            - ``gated`` (residual form): the network has a third output γ, and β·exp(γ) stands in β's place, so that it
              can learn how far to move apart from where to;
            - ``output_bound`` and ``feature_set`` of the network, see `apply_network` and `features`.
        step: updates done so far (0 at the first), a number or a zero-dimensional tensor.
        at: see `RuleArguments`.

    Returns:
        The new (parameter, momentum, averages), and whitening where there is any. Nothing is changed in place;
        differentiable in every tensor, but for a gradient that a whitening sees.
    """
    passes = L2E_PASSES[settings.form]
    return passes(parameter, gradient, noise, momentum, averages, whitening, settings=settings, step=step, **at)
