"""The update of `ScaleAdaptedL2E` as the inner loop runs it: exploration by L2E, then sampling with a frozen mass."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from learned_samplers.base.segments import Segments
from learned_samplers.learned.native.step import can_step, step_flat_
from learned_samplers.learned.scale_adapted.rule import (
    ScaleAdaptedL2ESettings,
    explorer,
    scale_adapted_l2e_rule,
    unsettled_root,
)
from meta_tasks.rules.base import State, arguments_of
from meta_tasks.rules.network_rule import CoordinateRule, settings_given


class ScaleAdaptedL2ERule(CoordinateRule):
    """`learned_samplers.ScaleAdaptedL2E`; in the first half of a run it explores and settles.

    Args:
        feature_set, hidden, settings, options: as for `L2ERule`.
        start: as for `L2ERule`; the weight file may also be one of `L2E`.
    """

    name = "ScaleAdaptedL2E"
    capturable = False  # a captured step cannot turn from one update to the other
    begins_anew = True
    least_burn_in = 0.5  # see `for_run`
    fixed: ClassVar[dict[str, str]] = {"adaptation_steps": "where half of a run explores, or the burn-in of each cycle"}
    settings: ScaleAdaptedL2ESettings

    def __init__(
        self,
        feature_set: str | None = None,
        hidden: Sequence[int] | None = None,
        *,
        start: tuple[str, float] | Path | None = None,
        settings: ScaleAdaptedL2ESettings | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            settings_given(ScaleAdaptedL2ESettings, settings, feature_set=feature_set, **options), hidden, start
        )
        momentum, averages, *whitening = self.state_names
        self.state_names = (momentum, averages, "root", *whitening)

    @property
    def can_be_told(self) -> bool:
        return False  # it always knows how long it explores

    def for_run(self, steps: int, *keys: int | str) -> Self:
        other = copy.copy(self)
        other.settings = replace(self.settings, adaptation_steps=max(steps // 2, 1))
        return other

    def in_cycles(self, length: int, exploration: int) -> Self:
        other = super().in_cycles(length, exploration)
        other.settings = replace(self.settings, adaptation_steps=exploration)
        return other

    def initial_state(self, parameter: Tensor, segments: Segments) -> State:
        momentum, averages, *whitening = super().initial_state(parameter, segments)
        return momentum, averages, torch.zeros_like(parameter), *whitening

    def update(self, prepared, at):
        settings, hyper = self.settings, arguments_of(at.hyper)
        if settings.adaptation_steps is None:
            raise ValueError("adaptation_steps is not known: take the rule of `for_run`")
        momentum, averages, root, *whitening = at.state
        chain = (at.parameter, at.gradient, at.noise, momentum, averages, *whitening)
        phi, exploration = explorer(prepared), settings.exploration
        if at.step >= settings.exploration_steps or not can_step(phi, exploration, *chain):
            parameter, *state = scale_adapted_l2e_rule(
                *at.tensors, phi=prepared, segments=at.segments, settings=settings, step=at.step, **hyper
            )
            return parameter, tuple(state)
        step_flat_(*chain, phi=phi, segments=at.segments, settings=exploration, step=at.step, **hyper)
        if at.step + 1 == settings.exploration_steps:
            chosen = dict(phi=prepared, segments=at.segments, settings=settings, step=at.step)
            chosen["whitening"] = whitening[0] if whitening else None
            root = unsettled_root(at.parameter, averages, **chosen, **hyper)
            momentum.zero_()
        return at.parameter, (momentum, averages, root, *whitening)

    def output_scales(self, prepared, at):
        """Of √G once it is chosen: where the mass lets the chain move."""
        return {"root": at.state[2].square().mean(-1).sqrt()}
