"""The base classes of the learned samplers' rules, and these rules by name."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from learned_samplers.base.matrices import state_lengths
from learned_samplers.base.segments import Segments
from learned_samplers.base.validation import fraction, integer, number
from learned_samplers.learned.feature_sets import feature_set_named
from learned_samplers.learned.network import Phi, flatten, layers_of, shapes_of, unflatten
from meta_tasks.random_streams import generator
from meta_tasks.rules.base import SamplerRule, State, arguments_of
from meta_tasks.rules.start import FeatureStart, WeightStart

#: The rules by the name of their sampler. A subclass of `NetworkRule` with a ``name`` of its own is here as soon as its
#: module is imported.
LEARNED_RULES: dict[str, type[Any]] = {}


class NetworkRule(SamplerRule):
    """A rule whose meta-parameters are the weights of one coordinate-wise network, laid end to end.

    Args:
        hidden: widths of the network's hidden layers; by default those of the sampler.
        settings: of the sampler, in the place of the options.
        options: settings by name; None leaves one at its default.

    Raises:
        ValueError: both settings and options were given, a setting that the inner loop has in a way of its own is not
            at its default, or see ``settings_class``.
    """

    state_names: tuple[str, ...] = ("momentum",)
    settings_class: ClassVar[type[Any]]
    settings: Any
    #: Settings of the sampler that the inner loop has in a way of its own, and which way: they stay at their defaults.
    fixed: ClassVar[dict[str, str]] = {}

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "name" in cls.__dict__:
            LEARNED_RULES[cls.name] = cls

    def __init__(self, hidden: Sequence[int] | None = None, *, settings: Any = None, **options: Any) -> None:
        options = {name: value for name, value in options.items() if value is not None}
        if settings is None:
            settings = self.settings_class.given(**options)
        elif options:
            raise ValueError(f"settings and {', '.join(options)} cannot both be given, got {options}")
        for field in fields(settings):
            if field.name in self.fixed and (value := getattr(settings, field.name)) != field.default:
                way = self.fixed[field.name]
                raise ValueError(f"{field.name} must be {field.default!r} in the inner loop, {way}, got {value!r}")
        widths = settings.hidden if hidden is None else hidden
        if not isinstance(widths, Sequence):
            raise TypeError(f"hidden must be the widths of the hidden layers, as (32, 32), got {widths!r}")
        for width in widths:
            integer("hidden", width)
        self.settings, self.hidden = settings, tuple(widths)
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

    @staticmethod
    def hidden_of(layers: list[list[int]]) -> list[int]:
        """The ``hidden`` that gives a network with the ``layers`` of a card, pairs (out, in)."""
        return [out for out, _ in layers[:-1]]

    def specification(self) -> dict[str, Any]:
        return {"sampler": self.name, "hidden": list(self.hidden), **self.settings.as_dict()}

    def current(self, specification: dict[str, Any]) -> dict[str, Any]:
        return self.settings.current(specification)

    def card(self) -> dict[str, Any]:
        """The fields of a weight card that say which sampler the network belongs to; its law is not measured here."""
        return {**self.settings.to_card(), "badge": "heuristic", "law": None}


class CoordinateRule(NetworkRule):
    """Base class of the rules of L2E and its kin: features with running averages, two outputs, and ways to start."""

    fixed: ClassVar[dict[str, str]] = {"averages_dtype": "whose chains are short and small"}
    #: The pure rule.
    rule: ClassVar[Callable[..., tuple[Tensor, ...]]]

    def __init__(
        self,
        feature_set: str | None = None,
        hidden: Sequence[int] | None = None,
        *,
        start: tuple[str, float] | Path | None = None,
        tell_horizon: float = 0.0,
        settings: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(hidden, settings=settings, feature_set=feature_set, **options)
        fraction("tell_horizon", tell_horizon)
        seen = feature_set_named(self.settings.feature_set)
        if tell_horizon and not seen.matrix:
            raise ValueError(
                f"tell_horizon is for a feature set with the progress of the run, got {tell_horizon} with "
                f"{self.settings.feature_set!r}"
            )
        self.tell_horizon = tell_horizon
        self.state_names = ("momentum", "averages", "covariances") if seen.matrix else ("momentum", "averages")
        self.by_member = not seen.context  # the context has one lr and N for all members
        self.start: FeatureStart | WeightStart | None = None
        if isinstance(start, str | Path):
            self.start = WeightStart(Path(start), self.settings, self._shapes)
        elif start is not None:
            if "β" not in self.output_names:
                raise ValueError(f"start={start} is for L2E, whose output β it sets; {self.name} has none")
            if not isinstance(start, Sequence) or len(start) != 2:
                raise TypeError(f"start must be a weight file, or a feature and its gain, got {start!r}")
            number("start's gain", start[1])
            self.start = FeatureStart(*start, self.settings.features, self._shapes)

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
        rule = copy.copy(self)
        rule.settings = replace(self.settings, total_steps=steps)
        return rule

    def initial_state(self, parameter: Tensor, segments: Segments) -> State:
        (members, d), named = parameter.shape, feature_set_named(self.settings.feature_set)
        state = parameter.new_zeros(members, d), parameter.new_zeros(members, named.num_averages, d)
        return (*state, parameter.new_zeros(members, sum(state_lengths(segments)))) if named.matrix else state

    def update(self, prepared, at):
        """Take one step, see `SamplerRule.update`; in place, by compiled code where it takes the tensors."""
        common = dict(
            phi=prepared, segments=at.segments, settings=self.settings, step=at.step, **arguments_of(at.hyper)
        )
        parameter, *state = self.rule(*at.tensors, in_place=not torch.is_grad_enabled(), **common)
        return parameter, tuple(state)

    #: What the two outputs stand for, in figures.
    output_names: ClassVar[tuple[str, str]] = ("α", "β")

    def figures(self, weights: Tensor) -> dict[str, Any]:
        from meta_tasks.rules.contours import output_contours

        figure = output_contours(self.prepare(weights), self.settings.feature_set, names=self.output_names)
        return {"contours": figure}
