"""Watching a chain in TensorBoard: effective learning rates, sampling phases, gradient norms, settings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from learned_samplers.base import validation
from learned_samplers.base.norms import joint_norms
from learned_samplers.base.operations import as_number
from learned_samplers.base.sampler import Sampler


def rates(sampler: Sampler) -> dict[str, float]:
    """Learning rate and temperature of a sampler's next step, by tag, for each parameter group.

    These are the values that the update takes: within a cycle of `CyclicalSGMCMC` the learning rate falls and the
    temperature is 0 while it explores, though ``lr`` and ``temperature`` of the group stay. Where there are several
    groups, the tag ends in the group's name, or its number.
    """
    values = {}
    for number, group in enumerate(sampler.param_groups):
        suffix = f"/{group.get('name', number)}" if len(sampler.param_groups) > 1 else ""
        hyper = sampler.hyper(group)
        for tag, key in (("learning_rate", "lr"), ("temperature", "temperature")):
            factor = getattr(sampler, "lr_factor", 1.0) if key == "lr" else 1.0  # what HMC adapts
            values[f"chain/{tag}{suffix}"] = float(as_number(hyper.get(key, group[key]))) * factor
    return values


def gradient_norm(sampler: Sampler) -> float:
    """The norm of all gradients together; nan where there is none."""
    gradients = [p.grad for group in sampler.param_groups for p in group["params"] if p.grad is not None]
    return math.hypot(*(value for _, value in joint_norms(gradients))) if gradients else math.nan


def settings_of(sampler: Sampler) -> dict[str, int | float | str | bool]:
    """The sampler and the settings of its first parameter group, as TensorBoard's HParams takes them."""
    settings: dict[str, int | float | str | bool] = {"sampler": type(sampler).__name__}
    for key in sampler.defaults:
        value = as_number(sampler.param_groups[0].get(key)) if key != "prior_mean" else None
        if isinstance(value, int | float | str | bool):
            settings[key] = value
    return settings


def write_settings(writer: Any, settings: Mapping[str, Any], results: Mapping[str, float]) -> None:
    """Write a run's settings and results for TensorBoard's HParams page, into the run's own folder.

    Args:
        writer: a ``torch.utils.tensorboard.SummaryWriter``.
        settings: numbers, words and truth values; anything else is written as text.
        results: numbers by tag, at least one.
    """
    kinds = (int, float, str, bool)
    plain = {key: value if isinstance(value, kinds) else str(value) for key, value in settings.items()}
    from torch.utils.tensorboard.summary import hparams

    # `SummaryWriter.add_hparams` does the same in a second event file, of a run beside this one.
    for summary in hparams(plain, dict(results)):
        writer.file_writer.add_summary(summary)
    for tag, value in results.items():
        writer.add_scalar(tag, value)


class ChainLog:
    """Writes what a chain does to TensorBoard, every so many steps, for any training loop.

    Tags: ``chain/learning_rate`` and ``chain/temperature`` (of the step that was taken; see `rates`),
    ``chain/sampling`` (1 where the state reached is a sample, 0 while a cyclical chain explores), ``chain/cycle``, and
    ``gradient/norm``, against the sampler's own count of steps, so that a resumed chain goes on in its curves::

        writer = torch.utils.tensorboard.SummaryWriter("runs/chain")
        log = ChainLog(sampler, writer)

    Args:
        sampler: whose steps are watched.
        writer: a ``SummaryWriter``.
        every: steps between two points.

    Raises:
        TypeError, ValueError: no sampler, or ``every`` is no positive whole number.
    """

    def __init__(self, sampler: Sampler, writer: Any, *, every: int = 100) -> None:
        if not isinstance(sampler, Sampler):
            raise TypeError(f"sampler must be a Sampler, got {type(sampler).__name__}")
        validation.integer("every", every)
        self.writer, self.every = writer, every
        self._rates: dict[str, float] = {}
        self._handles = [
            sampler.register_step_pre_hook(self._before),
            sampler.register_step_post_hook(self._after),
        ]

    def _before(self, sampler: Sampler, arguments: Any, keywords: Any) -> None:
        if (sampler.step_count + 1) % self.every == 0:
            self._rates = rates(sampler)

    def _after(self, sampler: Sampler, arguments: Any, keywords: Any) -> None:
        step = sampler.step_count
        if step % self.every:
            return
        extra = {"chain/sampling": float(sampler.is_sampling), "chain/cycle": sampler.cycle}
        for tag, value in {**self._rates, **extra, "gradient/norm": gradient_norm(sampler)}.items():
            self.writer.add_scalar(tag, value, step)

    def close(self) -> None:
        """Stop watching; the writer stays open."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
