"""Cyclical stochastic gradient MCMC: the cosine schedule, on its own and as a sampler."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from learned_samplers.base import validation
from learned_samplers.base.momentum import MomentumSampler
from learned_samplers.base.operations import as_number
from learned_samplers.base.sampler import Sampler
from learned_samplers.base.settings import choice, learning_rate, setting
from learned_samplers.classical.cycles import cycle_of, cyclical_phase, in_sampling_phase, validate_schedule
from learned_samplers.classical.sghmc import SGHMC
from learned_samplers.classical.sgld import SGLD

_BASES: dict[str, type[Sampler]] = {"sghmc": SGHMC, "sgld": SGLD}


#: What a schedule writes into a group, and from what.
_WRITTEN = ("lr", "temperature"), ("peak_lr", "sampling_temperature")


def _written(group: dict[str, Any]) -> list[Any]:
    return [as_number(group[name]) for name in _WRITTEN[0]]


class CyclicalSchedule(LRScheduler):
    """The cyclical schedule for any `Sampler`: call ``schedule.step()`` after every ``sampler.step()``.

    It is a ``torch.optim.lr_scheduler.LRScheduler``, to be given to any training loop that takes one; each of its steps
    is one of the sampler, not an epoch.

    In step k of the chain, with K = ``cycle_length``:

        lr_k = lr₀/2·(cos(π·mod(k−1, K)/K) + 1);    T_k = 0 if mod(k−1, K)/K < exploration_ratio, else T

    (Zhang et al., ICLR 2020.) The peak lr₀ and T are those the groups have when their first schedule is made; they are
    kept in the groups as ``peak_lr`` and ``sampling_temperature``, which are what to write to change them: a second
    schedule goes on from these, not from the ``lr`` that the first has written. The position in the cycle is the
    sampler's own `step_count`, so a resumed sampler needs only a new schedule with the same arguments. While it is
    attached the sampler's `is_sampling` and `cycle` answer for it.

    Args:
        sampler: whose groups' ``lr`` and ``temperature`` the schedule writes.
        cycle_length: K, in steps.
        exploration_ratio: share of a cycle without noise, in [0, 1).

    Raises:
        TypeError, ValueError: no sampler, or a schedule without a sampling step.
    """

    def __init__(self, sampler: Sampler, cycle_length: int, exploration_ratio: float = 0.8):
        if not isinstance(sampler, Sampler):
            raise TypeError(f"sampler must be a Sampler, got {type(sampler).__name__}")
        validate_schedule(cycle_length, exploration_ratio)
        # What LRScheduler's constructor sets; it would also wrap the sampler's step, which then compiles no longer.
        self.optimizer, self.cycle_length, self.exploration_ratio = sampler, cycle_length, exploration_ratio
        self.base_lrs: list[Any] = [group["lr"] for group in sampler.param_groups]
        self._step_count, self.last_epoch = 0, -1
        sampler.schedule = self
        self.step()

    @property
    def sampler(self) -> Any:
        """The sampler whose learning rate and temperature it writes."""
        return self.optimizer

    def get_lr(self) -> list[Any]:
        """The learning rates of the sampler's next step."""
        return [group["lr"] for group in self.sampler.param_groups]

    def step(self, epoch: int | None = None) -> None:
        """Write the learning rate and the temperature of the sampler's next step."""
        if epoch is not None:
            raise ValueError(f"epoch={epoch}: the position in the cycle is that of the sampler, whose steps count")
        factor, sampling = cyclical_phase(self.sampler.step_count + 1, self.cycle_length, self.exploration_ratio)
        for group in self.sampler.param_groups:
            self._write(group, factor, sampling)
        self._written = [_written(group) for group in self.sampler.param_groups]
        self._step_count, self.last_epoch = self._step_count + 1, self.sampler.step_count
        self._last_lr = self.get_lr()

    def validate(self) -> None:
        """Raise RuntimeError if the sampler has moved since the schedule's last step, and so at a rate of before;
        ValueError if something else has written a rate or a temperature since then, which the next step would undo."""
        if (behind := self.sampler.step_count - self.last_epoch) > 0:
            raise RuntimeError(
                f"CyclicalSchedule.step must follow every step of the sampler, got none after the last {behind}"
            )
        for number, (group, written) in enumerate(zip(self.sampler.param_groups, self._written, strict=True)):
            for name, kept, before, now in zip(*_WRITTEN, written, _written(group), strict=True):
                if before != now:
                    raise ValueError(
                        f"{name} of parameter group {number} was set to {now:g}, and CyclicalSchedule writes "
                        f"{before:g}, and another one at each step: set {kept!r} of the group, and attach no other "
                        "scheduler"
                    )

    def joined(self, group: dict[str, Any]) -> None:
        """Write the learning rate and the temperature of the next step into a group that the sampler was just given."""
        self._write(group, *cyclical_phase(self.sampler.step_count + 1, self.cycle_length, self.exploration_ratio))
        self._written.append(_written(group))

    def left(self, count: int) -> None:
        """Forget all groups but the first ``count``: the others could not join."""
        del self._written[count:]

    @staticmethod
    def _write(group: dict[str, Any], factor: Any, sampling: Any) -> None:
        peak, temperature = (
            group.setdefault(kept, group[name])
            for kept, name in (("peak_lr", "lr"), ("sampling_temperature", "temperature"))
        )
        group["lr"], group["temperature"] = peak * factor, temperature if sampling else 0.0

    @property
    def is_sampling(self) -> bool:
        """Tell whether the sampler's last step was one of a sampling phase."""
        return in_sampling_phase(self.sampler.step_count, self.cycle_length, self.exploration_ratio)

    @property
    def cycle(self) -> int:
        """Index of the cycle that the sampler's last step belonged to."""
        return cycle_of(self.sampler.step_count, self.cycle_length)


class CyclicalSGMCMC(MomentumSampler):
    """Visits several modes: every cycle first optimises at a large learning rate, then samples while it falls.

    Source: Zhang, Li, Zhang, Chen and Wilson, Cyclical stochastic gradient MCMC for Bayesian deep learning, ICLR 2020;
    here over `SGHMC` or `SGLD`.

    Step k = 1, 2, … is a step of the base sampler with

        lr_k = lr/2·(cos(π·mod(k−1, K)/K) + 1);    T_k = 0 if mod(k−1, K)/K < exploration_ratio, else T

    so that each cycle of K steps first moves to a new mode as an optimizer does, then samples around it. ``lr`` in the
    parameter groups stays the peak (a scheduler may change it); `is_sampling` tells whether the last step belonged to a
    sampling phase. The momentum keeps variance ≈ T across the jump of lr between cycles (see `SGHMC`).

    Invariant law: that of the base sampler within a sampling phase at its small learning rate; the union over cycles
    weighs modes by how often exploration finds them, which nothing guarantees. Hence the badge.
    """

    lr: float = learning_rate(kw_only=False, doc="peak learning rate.")
    cycle_length: int = setting(check=validation.integer, shared=True, doc="K > 0, in steps.")
    exploration_ratio: float = setting(
        default=0.8,
        check=partial(validation.fraction, open_right=True),
        shared=True,
        doc="share of each cycle without noise, in [0, 1); at least one step must be left.",
    )
    base: str = choice(
        *_BASES,
        default="sghmc",
        shared=True,
        structural=True,
        doc='"sghmc" or "sgld", for which the settings of the momentum are without effect.',
    )

    badge = "heuristic"
    not_sharded = ""
    side_by_side = ("stacked", "separate")

    def check_together(self, group: dict[str, Any]) -> None:
        validate_schedule(group["cycle_length"], group["exploration_ratio"])

    @property
    def state_names(self) -> tuple[str, ...]:  # type: ignore[override]
        return _BASES[self.defaults["base"]].state_names

    @property
    def hyperparameters(self) -> tuple[str, ...]:  # type: ignore[override]
        return _BASES[getattr(self, "defaults", {"base": "sghmc"})["base"]].hyperparameters

    @property
    def rule(self) -> Any:  # type: ignore[override]
        return _BASES[self.defaults["base"]].rule

    def hyper(self, group: dict[str, Any], *, keep_tensors: bool = False) -> dict[str, Any]:
        hyper = super().hyper(group, keep_tensors=keep_tensors)
        step = group["step"] + 1
        if torch.compiler.is_compiling():  # a tensor keeps one graph for every step: the noise is drawn and weighted
            step = torch.full((), step, dtype=torch.float64)
        factor, sampling = cyclical_phase(step, group["cycle_length"], group["exploration_ratio"])
        return {**hyper, "lr": hyper["lr"] * factor, "temperature": hyper["temperature"] * sampling}

    @property
    def is_sampling(self) -> bool:
        """Tell whether the last step belonged to the sampling phase of its cycle."""
        group = self.param_groups[0]
        return in_sampling_phase(group["step"], group["cycle_length"], group["exploration_ratio"])

    @property
    def cycle(self) -> int:
        """Index of the cycle that the last step belonged to, from 0."""
        return cycle_of(self.step_count, self.param_groups[0]["cycle_length"])
