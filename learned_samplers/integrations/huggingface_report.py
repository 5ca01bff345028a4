"""Sends what a chain does to the loggers of a Hugging Face ``Trainer``."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from learned_samplers.integrations.huggingface import CollectPosterior
from learned_samplers.integrations.report import Report


class ReportChain(TrainerCallback):
    """Logs what a chain does by ``Trainer.log``, so that TensorBoard, a progress bar and others show it.

    It is added once the trainer exists, which it logs by::

        trainer = Trainer(model, arguments, ..., callbacks=[collect])
        trainer.add_callback(ReportChain(trainer, collect, inputs=a_batch))

    At every ``logging_steps``: ``chain/learning_rate``, ``chain/temperature``, the two estimates of
    `Sampler.temperatures`, ``chain/sampling`` (1 once the warm-up is over), ``chain/cycle``, ``chain/samples`` and
    ``chain/seconds_left``; where there are such, ``chain/warmup_left`` (steps) and ``chain/acceptance_rate``. With
    ``inputs``, whenever the number of samples has doubled, from eight on: ``chain/rhat`` and
    ``chain/effective_samples`` of their predictions, and ``chain/settled``, 1 or 0.

    Args:
        trainer: the trainer.
        collect: the callback that collects.
        inputs: a few inputs whose predictions are judged, as for `PosteriorSamples.verdict`; None for no judgement.
        options: those of the prediction, such as ``output``.

    Raises:
        TypeError: ``collect`` is no `CollectPosterior`.
    """

    def __init__(self, trainer: Any, collect: CollectPosterior, *, inputs: Any = None, **options: Any) -> None:
        if not isinstance(collect, CollectPosterior):
            raise TypeError(f"collect must be a CollectPosterior, got {type(collect).__name__}")
        self.trainer, self.collect, self._report = trainer, collect, Report(inputs, options)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin to measure time."""
        self._report.begin(state.global_step)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure, while the gradients belong to the weights."""
        if _is_due(state, state.global_step + 1):
            self._report.measure(kwargs["optimizer"])

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Log."""
        if _is_due(state, state.global_step):
            step, total = state.global_step, state.max_steps
            self.trainer.log(self._report.values(kwargs["optimizer"], step, total, self.collect.posterior))


def _is_due(state: Any, step: int) -> bool:
    every = int(state.logging_steps or 0)
    return every > 0 and step % every == 0
