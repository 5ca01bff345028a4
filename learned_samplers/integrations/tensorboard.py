"""Watching a chain in TensorBoard: learning rates, temperatures, phases, gradient norms, time left, settings."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

from learned_samplers.base import validation
from learned_samplers.base.norms import joint_norms
from learned_samplers.base.operations import as_number
from learned_samplers.base.optional import require
from learned_samplers.base.sampler import Sampler
from learned_samplers.classical.restarts import Restarts
from learned_samplers.integrations.report import Report, sampler_of
from learned_samplers.posterior import PosteriorSamples
from learned_samplers.posterior.snapshots import unwrapped


def gradient_norm(sampler: Sampler) -> float:
    """The norm of all gradients together; nan where there is none."""
    gradients = [p.grad for group in sampler.param_groups for p in group["params"] if p.grad is not None]
    return math.hypot(*(value for _, value in joint_norms(gradients)[0])) if gradients else math.nan


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

    One line beside the loop, and ``tensorboard --logdir runs`` beside the run::

        log = ChainLog(sampler, "runs/chain", posterior=posterior, total_steps=n)

    Tags: ``chain/learning_rate`` and ``chain/temperature`` (of the step that was taken; see
    `learned_samplers.integrations.report.rates`); ``chain/kinetic_temperature`` and
    ``chain/configurational_temperature``, which are near the temperature once the chain has settled (the second one not
    in a loop with a closure, where no gradient of the present weights is there before the step); ``chain/sampling`` (1
    where the state reached is a sample, 0 in a warm-up, or while a cyclical chain explores), ``chain/cycle``,
    ``chain/warmup_left`` and ``chain/acceptance_rate`` of samplers that have such; ``gradient/norm``; ``chain/samples``
    and ``chain/seconds_left``. The count of steps is the sampler's, so that a resumed chain goes on in its curves.

    Args:
        sampler: whose steps are watched; or a `Restarts`, whose present sampler is.
        writer: a ``SummaryWriter``, or the folder of one that is made here and closed by :meth:`close`.
        every: steps between two points.
        posterior: the collector whose samples are counted.
        total_steps: steps of the run, for the time that is left.

    Raises:
        TypeError, ValueError: no sampler, or ``every`` or ``total_steps`` is no positive whole number.
    """

    def __init__(
        self,
        sampler: Sampler | Restarts,
        writer: Any,
        *,
        every: int = 100,
        posterior: PosteriorSamples | None = None,
        total_steps: int | None = None,
    ) -> None:
        if sampler_of(sampler) is None:
            raise TypeError(f"sampler must be a Sampler, got {type(sampler).__name__}")
        chain: Any = unwrapped(sampler)
        validation.integer("every", every)
        if total_steps is not None:
            validation.integer("total_steps", total_steps)
        if posterior is not None and not isinstance(posterior, PosteriorSamples):
            raise TypeError(f"posterior must be a PosteriorSamples, got {type(posterior).__name__}")
        self._owns_writer = isinstance(writer, str | os.PathLike)
        if not self._owns_writer and not hasattr(writer, "add_scalar"):
            raise TypeError(f"writer must be a SummaryWriter or a folder, got {type(writer).__name__}")
        if self._owns_writer:
            require("tensorboard", "meta")
            from torch.utils.tensorboard import SummaryWriter

            writer = SummaryWriter(str(writer))
        self.writer, self.every, self.posterior, self.total_steps = writer, every, posterior, total_steps
        self._report = Report()
        self._report.begin(chain.step_count)
        self._handles = [
            chain.register_step_pre_hook(self._before),
            chain.register_step_post_hook(self._after),
        ]

    def _before(self, sampler: Any, arguments: Any, keywords: Any) -> None:
        if (sampler.step_count + 1) % self.every == 0:
            # The first argument is the sampler.
            has_closure = any(value is not None for value in (*arguments[1:], *keywords.values()))
            self._report.measure(sampler, gradients=not has_closure)

    def _after(self, sampler: Any, arguments: Any, keywords: Any) -> None:
        step = sampler.step_count
        if step % self.every:
            return
        values = self._report.values(sampler, step, self.total_steps or 0, self.posterior)
        for tag, value in {**values, "gradient/norm": gradient_norm(sampler)}.items():
            self.writer.add_scalar(tag, value, step)

    def close(self) -> None:
        """Stop watching; a writer that was given stays open."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if self._owns_writer:
            self.writer.close()
