"""The learned samplers' update rules as the inner loop runs them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from learned_samplers.base.validation import fraction
from learned_samplers.learned.features import feature_set_named, features, update_averages
from learned_samplers.learned.kinetic.rule import KineticSettings, kinetic_mean, l2e_kinetic_rule
from learned_samplers.learned.l2e.measures import term_contributions
from learned_samplers.learned.l2e.rule import L2ESettings, l2e_rule
from learned_samplers.learned.meta_sgmcmc.rule import MetaSGMCMCSettings, meta_sgmcmc_rule
from learned_samplers.learned.native.kinetic import half_step
from learned_samplers.learned.native.step import can_step, step_flat_
from learned_samplers.learned.network import Phi, apply_network, flatten, layers_of, shapes_of, unflatten
from learned_samplers.learned.preconditioned.rule import PreconditionedSettings, l2e_precond_rule
from learned_samplers.learned.registry import settings_from_card
from learned_samplers.learned.settings import LearnedSettings
from meta_tasks.random_streams import generator
from meta_tasks.rules.base import SamplerRule, State, arguments_of
from meta_tasks.rules.start import FeatureStart, Start, WeightStart

__all__ = [
    "LEARNED_RULES",
    "KineticRule",
    "L2ERule",
    "MetaSGMCMCRule",
    "NetworkRule",
    "PrecondL2ERule",
    "rule_from_card",
]


class NetworkRule(SamplerRule):
    """A rule whose meta-parameters are the weights of one coordinate-wise network, laid end to end.

    Args:
        settings: of the sampler.
        hidden: widths of the network's hidden layers; by default those of the sampler.
    """

    state_names: ClassVar[tuple[str, ...]] = ("momentum",)

    def __init__(self, settings: LearnedSettings, hidden: Sequence[int] | None = None) -> None:
        self.settings, self.hidden = settings, tuple(settings.hidden if hidden is None else hidden)
        self._shapes = shapes_of(layers_of(settings.fresh_network(self.hidden)))
        self.num_weights = sum(out * (into + 1) for out, into in self._shapes)

    def initial_weights(self, seed: int) -> Tensor:
        network = self.settings.fresh_network(self.hidden, generator=generator(seed, "network"))
        return flatten(layers_of(network)).detach().clone()

    def prepare(self, weights: Tensor) -> Phi:
        return [(weight.contiguous(), bias.contiguous()) for weight, bias in unflatten(weights, self._shapes)]

    def network(self, weights: Tensor) -> nn.Module:
        """The network of meta-parameters (n,), as the optimizer takes it."""
        network = self.settings.fresh_network(self.hidden)
        nn.utils.vector_to_parameters(weights.detach().cpu(), network.parameters())
        return network

    def specification(self) -> dict[str, Any]:
        return {"sampler": self.name, "hidden": list(self.hidden), **self.settings.as_dict()}

    def card(self) -> dict[str, Any]:
        """The fields of a weight card that say which sampler the network belongs to; its law is not measured here."""
        return {**self.settings.to_card(), "badge": "heuristic", "law": None}


def _settings(kind: type[Any], settings: Any, **options: Any) -> Any:
    """The settings as given, or made of options: None leaves one at its default.

    Raises:
        ValueError: both were given, or see ``kind``.
    """
    if settings is None:
        return kind.given(**options)
    if given := {name: value for name, value in options.items() if value is not None}:
        raise ValueError(f"settings and {', '.join(given)} cannot both be given, got {given}")
    return settings


class _CoordinateRule(NetworkRule):
    """What L2E and Precond-L2E share: features with running averages, two outputs, and ways to start."""

    state_names = ("momentum", "averages")
    settings: L2ESettings | PreconditionedSettings

    def __init__(
        self,
        settings: L2ESettings | PreconditionedSettings,
        hidden: Sequence[int] | None,
        start: tuple[str, float] | Path | None,
        tell_horizon: float = 0.0,
    ) -> None:
        super().__init__(settings, hidden)
        fraction("tell_horizon", tell_horizon)
        if settings.averages_dtype != "float32":
            raise ValueError(
                f"averages_dtype must be 'float32' in the inner loop, whose chains are short and small, got "
                f"{settings.averages_dtype!r}"
            )
        if tell_horizon and not feature_set_named(settings.feature_set).sees_progress:
            raise ValueError(
                f"tell_horizon is for a feature set with the progress of the run, got {tell_horizon} with "
                f"{settings.feature_set!r}"
            )
        self.tell_horizon = tell_horizon
        self.start: Start | None = None
        if isinstance(start, Path):
            self.start = WeightStart(start, settings, self._shapes)
        elif start is not None:
            self.start = FeatureStart(*start, settings.features, self._shapes)

    def initial_weights(self, seed: int) -> Tensor:
        weights = super().initial_weights(seed)
        return weights if self.start is None else self.start(weights)

    def specification(self) -> dict[str, Any]:
        more: dict[str, Any] = {} if self.start is None else {"start": self.start.specification()}
        if self.tell_horizon:
            more["tell_horizon"] = self.tell_horizon
        return {**super().specification(), **more}

    def for_run(self, steps: int, *keys: int | str) -> Self:
        """In a share ``tell_horizon`` of all runs the network is told how long the run is."""
        told = self.tell_horizon and torch.rand((), generator=generator(*keys, "tell horizon")) < self.tell_horizon
        if not told:
            return self
        other = copy.copy(self)
        other.settings = replace(self.settings, total_steps=steps)
        return other

    def initial_state(self, parameter: Tensor) -> State:
        members, d = parameter.shape
        rows = feature_set_named(self.settings.feature_set).num_averages
        return parameter.new_zeros(members, d), parameter.new_zeros(members, rows, d)

    def _updated(self, *tensors: Any, **hyper: Any) -> tuple[Tensor, ...]:
        raise NotImplementedError

    def update(self, prepared, at):
        """As `SamplerRule.update`: by compiled code, in place, where there is any for these tensors."""
        common = dict(
            phi=prepared, segments=at.segments, settings=self.settings, step=at.step, **arguments_of(at.hyper)
        )
        *plain, averages = at.tensors
        if can_step(prepared, self.settings, *plain, averages=[averages]):
            step_flat_(*at.tensors, **common)
            return at.parameter, at.state
        parameter, *state = self._updated(*at.tensors, **common)
        return parameter, tuple(state)

    #: What the two outputs stand for, in figures.
    output_names: ClassVar[tuple[str, str]] = ("α", "β")

    def figures(self, weights: Tensor) -> dict[str, Any]:
        from meta_tasks.rules.contours import output_contours

        settings = self.settings
        phi = self.prepare(weights)
        figure = output_contours(phi, settings.feature_set, settings.output_bound, names=self.output_names)
        return {"contours": figure}


class L2ERule(_CoordinateRule):
    """`learned_samplers.L2E` in its residual or its paper form.

    Args:
        form: "residual" (the last layer starts at zero: the sampler is SGHMC), or "paper" (Eq. 6; starts at random).
        feature_set: name of what the network sees, see `learned_samplers.learned.features`.
        hidden: widths of the network's hidden layers.
        start: the path of a weight file to start from, whose features and units this rule must have (what it has
            besides starts without effect); or (feature, gain): β = −gain·feature exactly, α = 0. With
            "average_0.9_to_rms", of the adaptive sets, that is Adam with the learning rate s_β·√(lr/N)·gain beside
            SGHMC's momentum.
        tell_horizon: share of the runs in which the network is told how many steps there are, of a feature set that
            sees the progress of a run.
        settings: in the place of form, feature set and options.
        options: further settings, such as ``alpha_scale``, ``beta_scale`` or ``output_bound``.

    Raises:
        ValueError, TypeError: a setting is out of range or of the other form; a ``start`` with a feature that the set
            has not, without two units in every hidden layer, or of another sampler or form, with other scales, or with
            features or units that this one has not.
    """

    name = "L2E"
    settings: L2ESettings

    def __init__(
        self, form: str | None = None, feature_set: str | None = None, hidden: Sequence[int] | None = None, *,
        start: tuple[str, float] | Path | None = None, tell_horizon: float = 0.0, settings: L2ESettings | None = None,
        **options: Any,
    ) -> None:  # fmt: skip
        chosen = _settings(L2ESettings, settings, form=form, feature_set=feature_set, **options)
        super().__init__(chosen, hidden, start, tell_horizon)

    def _updated(self, *tensors: Any, **hyper: Any) -> tuple[Tensor, ...]:
        return l2e_rule(*tensors, **hyper)

    def output_scales(self, prepared, at):
        """As they enter the step, in units of the momentum: α, and β in the velocity."""
        terms = term_contributions(
            at.parameter,
            at.gradient,
            *at.state,
            phi=prepared,
            segments=at.segments,
            step=at.step,
            settings=self.settings,
            **arguments_of(at.hyper),
        )
        return {"alpha": terms["alpha"], "beta": terms["learned_velocity"]}


class PrecondL2ERule(_CoordinateRule):
    """`learned_samplers.PrecondL2E`; arguments are those of `L2ERule`, without a form."""

    name = "PrecondL2E"
    output_names = ("log Q", "log D")
    settings: PreconditionedSettings

    def __init__(
        self, feature_set: str | None = None, hidden: Sequence[int] | None = None, *,
        start: tuple[str, float] | Path | None = None, tell_horizon: float = 0.0,
        settings: PreconditionedSettings | None = None, **options: Any,
    ) -> None:  # fmt: skip
        if isinstance(start, tuple):
            raise ValueError(f"start={start} is for L2E, whose output β it sets; PrecondL2E has none")
        chosen = _settings(PreconditionedSettings, settings, feature_set=feature_set, **options)
        super().__init__(chosen, hidden, start, tell_horizon)

    def _updated(self, *tensors: Any, **hyper: Any) -> tuple[Tensor, ...]:
        return l2e_precond_rule(*tensors, **hyper)

    def output_scales(self, prepared, at):
        """Of log Q and log D, before they are clipped."""
        settings, (momentum, averages) = self.settings, at.state
        averages = update_averages(averages, at.gradient, settings.feature_set)
        x = features(
            at.parameter,
            momentum,
            at.gradient,
            averages,
            at.segments,
            settings.feature_set,
            lr=at.hyper.lr,
            num_data=at.hyper.num_data,
            step=at.step,
            total_steps=settings.total_steps,
        )
        q, d = (y.square().mean(-1).sqrt() for y in apply_network(prepared, x, output_bound=settings.output_bound))
        return {"log_curl": settings.curl_scale * q, "log_friction": settings.friction_scale * d}


class KineticRule(NetworkRule):
    """`learned_samplers.KineticL2E`, with the Hessian-vector product by a finite difference of gradients.

    Args:
        hidden: widths of the network's hidden layers.
        settings: in the place of the options.
        options: settings, ``mean_scale`` or ``output_bound``.
    """

    name = "KineticL2E"
    needs_hessian = True
    settings: KineticSettings

    def __init__(
        self, hidden: Sequence[int] | None = None, *, settings: KineticSettings | None = None, **options: Any
    ) -> None:
        super().__init__(_settings(KineticSettings, settings, **options), hidden)

    def update(self, prepared, at):
        parameter, momentum = l2e_kinetic_rule(
            *at.tensors,
            hessian_product=at.hessian_product,
            half_step=half_step,
            phi=prepared,
            segments=at.segments,
            settings=self.settings,
            **arguments_of(at.hyper),
        )
        return parameter, (momentum,)

    def output_scales(self, prepared, at):
        mean = kinetic_mean(
            at.parameter,
            at.gradient,
            phi=prepared,
            segments=at.segments,
            num_data=at.hyper.num_data,
            prior_precision=at.hyper.prior_precision,
            settings=self.settings,
        )
        return {"mean": mean.square().mean(-1).sqrt()}


class MetaSGMCMCRule(NetworkRule):
    """`learned_samplers.MetaSGMCMC`, with the networks' inputs detached, as the paper trains it.

    Args:
        form: "signed" or "absolute".
        hidden: widths of the hidden layers of each of its two networks.
        feature_set: "energy" or "energy_rms", see `learned_samplers.MetaSGMCMC`.
        settings: in the place of form, feature set and options.
        options: further settings, such as ``energy_scale`` or ``correction``.

    Raises:
        ValueError, TypeError: a setting is out of range.
    """

    name = "MetaSGMCMC"
    needs_loss = True
    settings: MetaSGMCMCSettings

    def __init__(
        self, form: str | None = None, hidden: Sequence[int] | None = None, *, feature_set: str | None = None,
        settings: MetaSGMCMCSettings | None = None, **options: Any,
    ) -> None:  # fmt: skip
        chosen = _settings(MetaSGMCMCSettings, settings, form=form, feature_set=feature_set, **options)
        super().__init__(chosen, hidden)

    def update(self, prepared, at):
        prior = 0.5 * at.hyper.prior_precision * at.parameter.square().sum(-1)
        parameter, momentum = meta_sgmcmc_rule(
            *at.tensors,
            energy=at.hyper.num_data * at.loss + prior,
            phi=prepared,
            segments=at.segments,
            detach_inputs=True,
            settings=self.settings,
            **arguments_of(at.hyper),
        )
        return parameter, (momentum,)

    def figures(self, weights: Tensor) -> dict[str, Any]:
        from meta_tasks.rules.contours import meta_contours

        return {"contours": meta_contours(self.prepare(weights), self.settings)}


#: The rules by the name of the sampler.
LEARNED_RULES: dict[str, type[Any]] = {
    each.name: each for each in (L2ERule, PrecondL2ERule, KineticRule, MetaSGMCMCRule)
}


def rule_from_card(card: dict[str, Any]) -> NetworkRule:
    """The rule of a weight card, with the settings and the layers of its weights.

    Raises:
        ValueError: the card is of no learned sampler, or has settings that its sampler has not.
    """
    settings = settings_from_card(card)
    hidden = [out for out, _ in card["layers"][:-1]]
    if card["sampler"] == MetaSGMCMCRule.name:  # two networks side by side in one stack of layers
        hidden = [width // 2 for width in hidden]
    return LEARNED_RULES[card["sampler"]](hidden=hidden, settings=settings)
