"""The warm-up of `AdaptedSGHMC`: another optimizer explores, the chain settles, and then it samples, also in cycles."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base import validation
from learned_samplers.base.momentum import MomentumSampler
from learned_samplers.base.sampler import Sampler
from learned_samplers.base.settings import setting
from learned_samplers.base.step import Evaluation, GroupInputs
from learned_samplers.classical.budget import thinning_of
from learned_samplers.classical.cycles import cycle_of, done_in_cycle, position_in_cycle
from learned_samplers.classical.explorer import Explorer, MakeOptimizer
from learned_samplers.classical.whitened import WhitenedSGHMC

#: What explores where a budget alone is given.
WARMUP = partial(WhitenedSGHMC, lr=0.002)


def position(group: dict[str, Any]) -> Any:
    """Steps done since the chain, or its cycle, began."""
    return position_in_cycle(group["step"], group.get("cycle_length"))


def exploration(group: dict[str, Any]) -> int:
    """Number of the ``warmup_steps`` in which the other optimizer moves; in those after it the chain settles."""
    steps = group["warmup_steps"]
    return max(min(steps, 1), steps - int(group["settling_share"] * steps))


def _makes_optimizer(name: str, value: Any) -> None:
    if not callable(value):
        raise TypeError(f"{name} must be None or make an optimizer of parameter groups, got {value!r:.60}")


class WarmedUpSampler(MomentumSampler):
    """A sampler whose first ``warmup_steps`` W are no samples: another optimizer explores, then the chain settles.

    With ``cycle_length`` all of it begins anew every so many steps, from the weights where it is. A subclass calls
    `begin_phase` and then either `explore` or its own update in `advance`.
    """

    total_steps: int | None = setting(
        default=None,
        check=validation.integer,
        optional=True,
        of_sampler=True,
        doc="the budget. It stands for the two next ones: `WhitenedSGHMC` explores, at lr 0.002, and W is four "
        "fifths of it (of a cycle), but not more than N/8 steps, down to half of it. `thinning` is then "
        "known, too. At least 13 (a cycle, too), so that the mass is that of ten gradients.",
    )
    warmup_steps: int | None = setting(
        default=None,
        check=partial(validation.integer, least=0),
        shared=True,
        doc="W. A mass of a few gradients is a bad one, which slows the chain; its law is the same.",
    )
    warmup: MakeOptimizer | None = setting(
        default=None,
        check=_makes_optimizer,
        optional=True,
        of_sampler=True,
        doc="None, or what makes an optimizer of parameter groups: the class of a sampler that needs nothing but "
        "gradients (`WhitenedSGHMC`, `L2E`, ...), a ``functools.partial`` of one, or any callable, as ``lambda groups: "
        "torch.optim.AdamW(groups, lr=0.001)``. It has its own lr. A class of samplers gets ``num_data``, "
        "``temperature`` and ``prior_precision``, and follows them; other optimizers keep their own settings, and "
        "minimise the loss (their weight decay is the prior's part). None stays at the mass of the moment.",
    )
    settling_share: float | None = setting(
        default=None,
        check=partial(validation.fraction, open_right=True),
        shared=True,
        doc="S in [0, 1); by default 0.1 with a matrix mass and 0.25 with a diagonal one, but at least twice as many "
        "steps as a weight without gradients takes to the prior's width, √(T/λ)/lr, up to half of W: with a wide prior "
        "the chain has far to go before its gradients are those of the posterior (the longest such time of the groups "
        "given here). 0 without a ``warmup``, for then it has settled anyway.",
    )
    cycle_length: int | None = setting(
        default=None,
        check=validation.integer,
        optional=True,
        shared=True,
        structural=True,
        doc="K > W, in steps; None for a single warm-up.",
    )

    def prepare(self, params: Any, values: dict[str, Any]) -> dict[str, Any]:
        for name in ("warmup", "total_steps"):
            self.declared[name].validate(values[name])
        if values["warmup"] is None and values["total_steps"] is not None:
            values["warmup"] = WARMUP
        self.warmup = values["warmup"]
        #: The optimizer that explores, while it does.
        self.explorer: Explorer | None = None
        return super().prepare(params, values)

    def start(self, params: Any, defaults: dict[str, Any]) -> None:
        super().start(params, defaults)
        if defaults["cycle_length"] is not None:
            self.badge = "heuristic"  # type: ignore[misc]
        if self.warmup is not None:
            self.explorer = Explorer(self.warmup, self.param_groups)

    def check_together(self, group: dict[str, Any]) -> None:
        steps, length = group["warmup_steps"], group["cycle_length"]
        validation.integer("warmup_steps", steps, least=0 if self.warmup is None else 1)
        if length is not None and length <= steps:
            raise ValueError(f"cycle_length {length} leaves no step to sample in after warmup_steps={steps}")

    def join(self, param_group: dict[str, Any]) -> None:
        super().join(param_group)
        if self.explorer is not None:
            self.explorer.add(self.param_groups[-1])

    # ---------------------------------------------------------------- what the chain says of itself

    @property
    def is_sampling(self) -> bool:
        """Tell whether the last step had the frozen mass (and, under a cyclical schedule, sampled)."""
        first = self.param_groups[0]
        return done_in_cycle(first["step"], first["cycle_length"]) > first["warmup_steps"] and super().is_sampling

    def thinning(self, num_samples: int) -> int:
        """Steps between samples that give this many by the end of ``total_steps``.

            PosteriorSamples(model, sampler, thinning=sampler.thinning(30))

        Raises:
            ValueError: ``total_steps`` was not given, or leaves fewer steps in which it samples.
        """
        validation.integer("num_samples", num_samples)
        if self.total_steps is None:
            raise ValueError("total_steps must have been given to plan samples, got None")
        first = self.param_groups[0]
        return thinning_of(self.total_steps, first["warmup_steps"], first["cycle_length"], num_samples)

    @property
    def cycle(self) -> int:
        """Index of the cycle that the last step belonged to, from 0."""
        length = self.param_groups[0]["cycle_length"]
        return cycle_of(self.step_count, length) if length else super().cycle

    @property
    def not_sharded(self) -> str:  # type: ignore[override]
        return "" if self.warmup is None else "its warm-up may need whole tensors"

    def not_compiled(self) -> str:
        if self.warmup is not None and self.explorer is not None and not isinstance(self.explorer.optimizer, Sampler):
            return f"its warm-up is by {type(self.explorer.optimizer).__name__}"
        return super().not_compiled()

    # ---------------------------------------------------------------- the phases of a step

    def explores(self, group: dict[str, Any]) -> bool:
        """Tell whether the other optimizer takes the next step of a group."""
        return self.warmup is not None and position(group) < exploration(group)

    def evaluate(self, closure: Callable[[], Any] | None) -> Evaluation:
        evaluation = super().evaluate(closure)
        if self.explorer is not None and not self.explores(self.param_groups[0]):
            if isinstance(self.explorer.optimizer, Sampler):  # its warning about the noise is not repeated
                self.reseeding.warned |= self.explorer.optimizer.reseeding.warned
            self.explorer = None
        return evaluation

    def begin_phase(self, group: dict[str, Any], moving: list[Tensor]) -> None:
        """Begin a cycle, or settling, if the next step of the group is its first; ``moving`` have a gradient in it."""
        if position(group) == 0 and group["step"]:
            self._begin_cycle(group, moving)
        if self.warmup is not None and position(group) == exploration(group):
            self.begin_settling(group)

    def begin_settling(self, group: dict[str, Any]) -> None:
        """Make the state with which the chain goes on from what has explored."""

    def _begin_cycle(self, group: dict[str, Any], moving: list[Tensor]) -> None:
        """Forget all but the weights, and the master copies of those that move now."""
        if self.warmup is not None and group is self.param_groups[0]:
            self.explorer = Explorer(self.warmup, self.param_groups)
        ids = {id(p) for p in moving}
        for p in group["params"]:
            if id(p) not in ids:
                self.state.pop(p, None)
                continue
            for name in self.state_names:
                self.state[p].pop(name, None)

    def explore(self, group: dict[str, Any], inputs: GroupInputs) -> None:
        """Take the step of the other optimizer."""
        number = next(i for i, other_group in enumerate(self.param_groups) if other_group is group)
        assert self.explorer is not None
        self.explorer.step(number, group, inputs, position(group), self.generator)

    def inner_optimizers(self) -> list[torch.optim.Optimizer]:
        return [] if self.explorer is None else [self.explorer.optimizer]

    # ---------------------------------------------------------------- saving and resuming

    def saved_names(self, group: dict[str, Any], p: Tensor) -> tuple[str, ...]:
        # The group is that of a saved state, of which all else is checked later.
        validation.integer("warmup_steps", group["warmup_steps"], least=0)
        validation.fraction("settling_share", group["settling_share"], open_right=True)
        names = super().saved_names(group, p)
        if self.warmup is not None and 0 < done_in_cycle(group["step"], group["cycle_length"]) <= exploration(group):
            return tuple(name for name in names if name != "momentum")
        return names

    def state_dict(self) -> dict[str, Any]:
        """As `Sampler.state_dict`, with that of the optimizer that explores while it does."""
        saved, first = super().state_dict(), self.param_groups[0]
        if self.explorer is not None and position(first) and self.explores(first):
            saved["sampler"]["warmup"] = self.explorer.state_dict()
        return saved

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.validate_saved(state_dict)
        explorer = self._resumed(state_dict)
        super().load_state_dict(state_dict)
        self.explorer = explorer

    load_state_dict.__doc__ = Sampler.load_state_dict.__doc__

    def validate_header(self, header: dict[str, Any]) -> None:
        super().validate_header(header)
        if self.warmup is None and "warmup" in header:
            raise ValueError("state_dict is of a chain that explores by a warmup, this sampler has none")

    def _resumed(self, saved: dict[str, Any]) -> Explorer | None:
        """Make the optimizer that explores on from a saved state; None if the chain does not explore there."""
        group, state = {**self.param_groups[0], **saved["param_groups"][0]}, saved["sampler"].get("warmup")
        if self.warmup is None or not self.explores(group):
            return None
        noise = self.rng_state(), self.global_rng_state()
        try:
            explorer = Explorer(self.warmup, self.param_groups)
            if position(group):
                explorer.load_state_dict(state, saved["state"], self.param_groups[0]["params"][0].device)
        finally:
            for states in noise:
                self.set_rng_state(states)
        return explorer

    def bookmark(self) -> Callable[[], None]:
        explorer = self.explorer
        restore_explorer = None if explorer is None else explorer.bookmark()

        def restore() -> None:
            self.explorer = explorer
            if restore_explorer is not None:
                restore_explorer()

        return restore

    def __getstate__(self) -> dict[str, Any]:
        names = ("warmup", "explorer", "badge", "total_steps")
        return {**super().__getstate__(), **{name: getattr(self, name) for name in names}}
