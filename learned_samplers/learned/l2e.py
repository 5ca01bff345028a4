"""L2E, a learned sampler: a small network, applied to every weight, inside stochastic gradient HMC."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from learned_samplers.base import matrices
from learned_samplers.base import validation as check
from learned_samplers.base.matrix_cost import warn_if_slow
from learned_samplers.base.operations import FUNCTIONAL, IN_PLACE, kick, scalar_sqrt
from learned_samplers.base.segments import Segments
from learned_samplers.base.settings import choice, keyword_of, setting
from learned_samplers.base.step import GroupInputs
from learned_samplers.learned.averages import Kept, begin_late_
from learned_samplers.learned.feature_sets import AVERAGE_DECAYS, FEATURE_SETS, FeatureSet
from learned_samplers.learned.features import network_at
from learned_samplers.learned.network import RuleArguments
from learned_samplers.learned.sampler import LearnedSampler
from learned_samplers.learned.settings import LearnedSettings

# The factors on the network's outputs, by form.
_BY_FORM: dict[str, dict[str, Any]] = {
    "residual": {"alpha_scale": 0.1, "beta_scale": 1.0},
    "paper": {"alpha_scale": 1e-3, "beta_scale": 1e-3},
}


@dataclass(frozen=True, kw_only=True)
class L2ESettings(LearnedSettings):
    """The settings of `L2E`; None is the form's default.

    Raises:
        ValueError, TypeError: a value is out of range or of a wrong type, or a setting belongs to the other form.
    """

    sampler: ClassVar[str] = "L2E"
    retired: ClassVar[dict[str, Any]] = {"noise_multiplier": 1.0, "friction": "equation6"}

    form: str = choice("residual", "paper", default="residual", doc="SGHMC with learned terms, or Eq. 6 of the paper.")
    feature_set: str = choice(
        *FEATURE_SETS,
        default="paper",
        doc="what the network sees, a name in `learned_samplers.learned.feature_sets.FEATURE_SETS`.",
    )
    alpha_scale: float = setting(
        default=None,
        check=check.non_negative,
        optional=True,
        doc="s_α, the factor on the output α, by default 0.1 (residual form) or 10⁻³ (paper's).",
    )
    beta_scale: float = setting(
        default=None,
        check=check.non_negative,
        optional=True,
        doc="s_β, the factor on the output β, by default 1 (residual form) or 10⁻³ (paper's).",
    )
    friction_scale: float = setting(
        default=1.0,
        check=check.non_negative,
        doc="a further factor on β in the friction alone. With 0 the friction acts on r only: Eq. 6 still, with "
        "C·s_β·β taken out of α, but a β that lasts is not cancelled by the momentum that friction builds up against "
        "it (at 1, r → −s_β·β within 1/a steps unless α undoes it).",
    )
    normalise_output: bool = setting(
        default=False,
        check=check.truth,
        doc="divide β by its root mean square over the tensor, so that s_β alone says how far the learned velocity "
        "moves it.",
    )
    gated: bool = setting(
        default=False,
        check=check.truth,
        doc="give the network a third output γ, held to ±6, which multiplies β by exp(γ): it can learn how far to move "
        "apart from where to (residual form).",
    )
    attenuated: bool = setting(
        default=False,
        check=check.truth,
        doc="shorten the matrix direction, of a feature set that has it, where the gradients fall below the prior's "
        "pull (`learned_samplers.base.matrices.attenuation`).",
    )
    num_data_in_training: float | None = setting(
        default=None,
        check=check.positive,
        optional=True,
        doc="N₀ (residual form): s_β is multiplied by √(N/N₀), so that the learned part of a step moves θ by "
        "√(lr/N₀)·s_β·β whatever N is, as an adaptive optimizer's step does.",
    )
    total_steps: int | None = setting(
        default=None,
        check=check.integer,
        optional=True,
        in_card=False,
        doc="length of the run in steps, for feature sets with its progress; it is of a run, not of the weights.",
    )
    averages_dtype: str = choice(
        "float32",
        "bfloat16",
        default="float32",
        in_card=False,
        doc='"bfloat16" keeps the running averages in half the memory, rounded so that the error averages out, and '
        "steps in torch rather than in compiled code.",
    )

    def __post_init__(self) -> None:
        check.one_of("form", self.form, _BY_FORM)
        for name, value in _BY_FORM[self.form].items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        if self.form != "residual" and self.num_data_in_training is not None:
            raise ValueError(
                f"num_data_in_training does not belong to this form of L2E, form={self.form!r}, got "
                f"{self.num_data_in_training!r}"
            )
        super().__post_init__()
        if self.gated and (self.form != "residual" or self.normalise_output):
            raise ValueError(
                f"gated=True needs form='residual' and normalise_output=False, got {self.form!r} and "
                f"{self.normalise_output}"
            )
        seen = FEATURE_SETS[self.feature_set]
        if self.attenuated and not seen.matrix:
            raise ValueError(f"attenuated=True is for a matrix direction, which feature_set={self.feature_set!r} lacks")
        if self.total_steps is not None and not seen.matrix:
            serving = ", ".join(repr(name) for name, choice in FEATURE_SETS.items() if choice.matrix)
            raise ValueError(
                f"total_steps is for a feature set with the progress of the run ({serving}), got {self.total_steps} "
                f"with feature_set={self.feature_set!r}"
            )

    def to_card(self) -> dict[str, Any]:
        card = super().to_card()
        if self.form != "residual":
            del card["scales"]["num_data_in_training"]
        return card

    @property
    def features(self) -> tuple[str, ...]:
        return FEATURE_SETS[self.feature_set].names

    @property
    def outputs(self) -> int:
        return 3 if self.gated else 2

    @property
    def zero_is_base(self) -> bool:
        return self.form == "residual"


def velocity_scale(settings: L2ESettings, num_data: Any) -> Any:
    """s_β, or s_β·√(N/N₀) where there is an N₀."""
    trained = settings.num_data_in_training
    return settings.beta_scale if trained is None else settings.beta_scale * scalar_sqrt(num_data / trained)


def l2e_rule(
    parameter: Tensor,
    gradient: Tensor,
    noise: Tensor | None,
    momentum: Tensor,
    averages: Kept,
    covariances: Kept | None = None,
    *,
    settings: L2ESettings,
    step: Any = 0,
    in_place: bool = False,
    **at: Unpack[RuleArguments],
) -> tuple[Any, ...]:
    """Step of L2E: a pure function of flat buffers, in the residual form or in the paper's, as the settings say.

    With ε = √(lr/N), momentum decay a and (α, β) = network(features(θ, r)), after m ← running averages of g, the
    residual form is SGHMC plus learned terms, and with a last layer of zeros it is `sghmc_rule`, bit for bit:

        r ← (1−a)·r − ε·(N·g + λθ) + √(2aT)·ξ − s_α·α(θ, r) − a·s_β·β(θ, r)
        θ ← θ + ε·(r + s_β·β(θ, r_new))

    that is, Eq. 6 of the paper with ∂g/∂r = r + s_β·β and ∂g/∂θ = (s_α/ε)·α. The paper's form is Eq. 6 as it stands,
    with s_α = s_β = 10⁻³ and the friction C = a/ε, so that the noise has variance 2Cε·T:

        r ← r − ε·[N·g + λθ + s_α·α(θ, r) + C·s_β·β(θ, r)] + √(2aT)·ξ
        θ ← θ + ε·s_β·β(θ, r_new)

    Args:
        parameter, gradient, noise, momentum: (..., d); gradient of the *mean* minibatch loss, noise standard normal or
            None at temperature 0.
        averages: (..., `FeatureSet.num_averages`, d), zeros at the start; or in place a tensor for each parameter.
        covariances: needed by a feature set with a matrix direction: (..., w), zeros at the start, where w is the sum
            of `learned_samplers.base.matrices.state_lengths`; or in place a tensor for each parameter.
        settings: with s_α = ``alpha_scale`` and s_β = ``beta_scale``; see `L2ESettings` for what else they change.
        step: updates done so far (0 at the first), a number or a zero-dimensional tensor.
        in_place: change all of them in place, averages by compiled code where it takes them.
        at: see `RuleArguments`.

    Returns:
        The new (parameter, momentum, averages), and covariances where there are any. Without ``in_place`` nothing is
        changed, and all is differentiable but for a gradient that covariances see.
    """
    lr, num_data, momentum_decay = at["lr"], at["num_data"], at["momentum_decay"]
    prior_precision, temperature = at["prior_precision"], at["temperature"]
    run = dict(settings=settings, lr=lr, num_data=num_data, step=step, prior_precision=prior_precision)
    network, kept = network_at(
        at["phi"], parameter, gradient, averages, at["segments"], covariances=covariances, in_place=in_place, **run
    )
    step_size, beta_scale = scalar_sqrt(lr / num_data), velocity_scale(settings, num_data)
    residual, ops = settings.form == "residual", IN_PLACE if in_place else FUNCTIONAL
    heads = (0, 1) if settings.friction_scale else (0,)
    outputs = network(momentum, heads) if settings.friction_scale or settings.alpha_scale else ()

    momentum = ops.scale(momentum, 1 - momentum_decay) if residual else momentum
    force = dict(step_size=step_size, num_data=num_data, prior_precision=prior_precision)
    momentum = kick(momentum, parameter, gradient, **force, ops=ops)
    if noise is not None:
        momentum = ops.add(momentum, noise, scalar_sqrt(2 * momentum_decay * temperature))
    friction = beta_scale * momentum_decay * settings.friction_scale
    factors = (settings.alpha_scale * (1.0 if residual else step_size), friction)
    for output, factor in zip(outputs, factors, strict=False):
        momentum = ops.add(momentum, output, -factor)

    (beta,) = network(momentum, (1,))
    parameter = ops.add(parameter, momentum, step_size) if residual else parameter
    return ops.add(parameter, beta, step_size * beta_scale), momentum, *kept


class L2E(LearnedSampler):
    """SGHMC with a learned correction, so that the average over its trajectory predicts well after few steps.

    Source: Kim, Jung, Kim and Lee, Learning to explore for stochastic gradient MCMC, ICML 2024. The gradient of the
    kinetic energy is learned.

    Learned, of the default weights "l2e-gated": 29 numbers, by half an hour of meta-training on small networks and
    image data sets, which say how far each tensor goes in a step, and what is mixed into its direction. A person chose
    that direction (the momentum of each matrix, whitened, made orthogonal, and short where the data are fitted) and all
    else.

    With ε = √(lr/N), momentum decay a, ∇Ũ = N·g + λθ, ξ ~ N(0, I), m the running averages of g, and
    (α, β) = network(features(θ, r, g, m)), coordinate by coordinate (the features may be of a whole tensor; a gated
    network gives (α, β, γ), and β·exp(γ) stands for β):

    ``form="residual"`` (default): the network corrects SGHMC; with a last layer of zeros it is `SGHMC`, bit for bit:

        r ← (1−a)·r − ε·∇Ũ + √(2aT)·ξ − s_α·α(θ, r) − a·s_β·β(θ, r)
        θ ← θ + ε·(r + s_β·β(θ, r_new))

    ``form="paper"``: Eq. 6, with both outputs times s = s_α = s_β, 10⁻³ unless a card says otherwise (`l2e-paper`: 1):

        r ← r − ε·[∇Ũ + s·α(θ, r) + C·s·β(θ, r)] + √(2aT)·ξ,    C = a/ε
        θ ← θ + ε·s·β(θ, r_new)

    Where paper and published code disagree this is the paper's rule. The code has C = a, N = 50,000, noise of variance
    2a·10⁻³ and a momentum that starts at zero; its ``step_mult`` is lr. (The paper also says that features have "l2
    norm 1"; root mean square 1 over the tensor is what the code does, and what is done here. Momentum starts from
    N(0, I) in the paper: ``momentum_init="normal"``.)

    Invariant law: none is claimed, and the average is one over a trajectory. Eq. 6 leaves the posterior invariant if α
    and β are the gradients of one function of (θ, r) alone (Assumption 3.1); the network sees running averages and
    minibatch gradients and is not constrained to that. On Gaussians the default weights' variances are far from the
    target's whatever the step size (`pretrained.card("l2e-gated")`). `tools/ship.py` says how far given weights stray,
    and `learned_samplers.learned.measures.assumption_violation` by how much the assumption fails.

    The default keeps a covariance of each weight matrix's inputs and its root (in blocks of at most 288 columns; none
    of a matrix with very many beside its rows, `learned_samplers.base.matrices.state_shape`), decomposes a tenth of the
    blocks in each step, and is not differentiable.

    Raises:
        ValueError, TypeError: an argument is out of range, of a wrong type, or contradicts the network's card; a weight
            file that cannot be used is named with the reason. See `Sampler.step` for the errors of a step.
    """

    total_steps: int | None = keyword_of(L2ESettings, "total_steps", default=None)
    form: str | None = keyword_of(L2ESettings, "form", default=None)

    settings_class: ClassVar[type[LearnedSettings]] = L2ESettings
    flat_rule = staticmethod(l2e_rule)
    default_network: ClassVar[str | None] = "l2e-gated"
    hyperparameters: ClassVar[tuple[str, ...]] = (*LearnedSampler.hyperparameters, "step")
    in_place: ClassVar[dict[str, Any]] = {"in_place": True}
    #: What the network sees.
    feature_set: ClassVar[FeatureSet]

    def _shipped(self, asked: dict[str, Any]) -> str | None:
        return "l2e-paper" if asked.get("form") == "paper" else self.default_network

    def _settled(self) -> None:
        self.feature_set = FEATURE_SETS[self.settings.feature_set]  # type: ignore[misc]
        self.state_names = ("momentum", "averages", *(("whitening",) if self.feature_set.matrix else ()))  # type: ignore[misc]

    def start(self, params: Any, defaults: dict[str, Any]) -> None:
        super().start(params, defaults)
        if self.feature_set.matrix:
            parameters = [p for group in self.param_groups for p in group["params"]]
            instead = "Weights without it: network='l2e' of L2E"
            warn_if_slow(parameters, f"{type(self).__name__}'s network sees", instead)

    @property
    def not_sharded(self) -> str:  # type: ignore[override]
        """Statistics of whole tensors are there, derivatives of the network along a tensor are not."""
        if self._rounded:
            return "averages in bfloat16 are rounded by a coordinate's place in a whole tensor"
        if self.feature_set.matrix:
            others = "take other weights, such as network='l2e' of L2E"
            return f"feature set {self.feature_set.name!r} sees whole matrices ({others})"
        return ""

    # ---------------------------------------------------------------- the step

    def advance(self, group: dict[str, Any], inputs: GroupInputs, lead: Sequence[int] = (), **more: Any) -> None:
        super().advance(group, inputs, lead, **more)
        if self.feature_set.matrix:
            plain = not (lead or torch.compiler.is_compiling())
            matrices.renew_roots(self, group, self.plan(inputs.params).states if plain else ())

    # ---------------------------------------------------------------- the state

    @property
    def _rounded(self) -> bool:
        return self.settings.averages_dtype == "bfloat16"

    def state_shape(self, name: str, p: Tensor) -> tuple[int, ...]:
        if name == "whitening":
            return matrices.state_shape(p.shape)
        return (self.feature_set.num_averages, *p.shape) if name == "averages" else tuple(p.shape)

    def initial_state(self, group: dict[str, Any], p: Tensor, name: str) -> Tensor:
        if name in ("averages", "whitening"):
            rounded = name == "averages" and self._rounded
            return p.new_zeros(self.state_shape(name, p), dtype=torch.bfloat16 if rounded else None)
        return super().initial_state(group, p, name)

    def begin_state(self, group: dict[str, Any], p: Tensor, gradient: Tensor) -> None:
        begun = "averages" in self.state[p]
        super().begin_state(group, p, gradient)
        if begun or not group["step"] or not (p.numel() or self.parts is not None):
            return
        segments = Segments.of([p]) if self.parts is None else self.parts.segments(p)
        if segments.lengths[0]:  # it joins late
            mean_square = segments.mean(gradient.reshape(-1).square()).reshape([1] * p.dim())
            begin_late_(self.state[p]["averages"], mean_square, self.feature_set, group["step"])

    def flat_state(self, name: str, tensors: list[Tensor]) -> Tensor:
        lead = (self.feature_set.num_averages,) if name == "averages" else ()
        return torch.cat([tensor.reshape(*lead, -1) for tensor in tensors], -1)

    def validate_saved(self, saved: dict[str, Any]) -> None:
        super().validate_saved(saved)
        means = len(AVERAGE_DECAYS)
        for group, saved_group in zip(self.param_groups, saved["param_groups"], strict=True):
            for i, index in enumerate(saved_group["params"]):
                state, name = saved["state"].get(index, {}), self.name_of(group, i)
                if "averages" in state and (state["averages"][means:] < 0).any():
                    raise ValueError(f"state_dict's averages of parameter {name} hold negative means of squares")
                if "whitening" in state and _has_negative_variance(state["whitening"]):
                    raise ValueError(f"state_dict's whitening of parameter {name} holds negative variances")

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        for state in self.state.values() if self._rounded else ():
            if "averages" in state:  # which torch has given the parameter's dtype
                state["averages"] = state["averages"].to(torch.bfloat16)

    load_state_dict.__doc__ = LearnedSampler.load_state_dict.__doc__

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "feature_set": self.feature_set, "state_names": self.state_names}


def _has_negative_variance(whitening: Tensor) -> bool:
    """Return True where a covariance has a negative number on its diagonal; a state (0,) holds no covariance."""
    return whitening.dim() == 4 and bool((whitening[0].diagonal(dim1=-2, dim2=-1) < 0).any())
