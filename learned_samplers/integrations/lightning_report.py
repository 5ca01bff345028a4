"""Sends what a chain does to the loggers of a Lightning ``Trainer``."""

from __future__ import annotations

from typing import Any

import torch

from learned_samplers.integrations.lightning import Callback, CollectPosterior
from learned_samplers.integrations.report import Report
from learned_samplers.posterior.snapshots import unwrapped


class ReportChain(Callback):
    """Logs what a chain does to every logger that the trainer has::

        collect = CollectPosterior(burn_in=1000, thinning=100)
        Trainer(callbacks=[collect, ReportChain(collect, inputs=a_batch)], logger=TensorBoardLogger("runs")).fit(...)

    At every ``log_every_n_steps`` of the trainer, with the tags of
    `learned_samplers.integrations.huggingface_report.ReportChain`: temperatures, the end of the warm-up, acceptance,
    samples, the time that is left, and with ``inputs`` whether the chain has settled. They are in
    ``trainer.callback_metrics``, too. ``chain/seconds_left`` needs ``max_steps`` or ``max_epochs``.

    Args:
        collect: the callback that collects, before this one in ``callbacks``.
        inputs: a few inputs whose predictions are judged, as for `PosteriorSamples.verdict`; None for no judgement.
        options: those of the prediction, such as ``output``.

    Raises:
        TypeError: ``collect`` is no `CollectPosterior`.
    """

    def __init__(self, collect: CollectPosterior, *, inputs: Any = None, **options: Any) -> None:
        super().__init__()
        if not isinstance(collect, CollectPosterior):
            raise TypeError(f"collect must be a CollectPosterior, got {type(collect).__name__}")
        self.collect, self._report, self._is_measured = collect, Report(inputs, options), False

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to measure time."""
        self._report.begin(self._step(trainer))
        self._total, self._is_measured = float(trainer.estimated_stepping_batches), False

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Measure, while the gradients belong to the weights: at the first evaluation of a step."""
        is_due = (self._step(trainer) + 1) % max(1, trainer.log_every_n_steps) == 0
        if is_due and not self._is_measured and unwrapped(optimizer) is self._optimizer(trainer):
            self._report.measure(optimizer)
            self._is_measured = True

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *batch: Any) -> None:
        """Log, after a step whose temperatures were measured."""
        if not self._is_measured:
            return
        self._is_measured, step = False, self._step(trainer)
        values = self._report.values(self._optimizer(trainer), step, self._total, self.collect.posterior)
        trainer.callback_metrics.update({name: torch.tensor(value) for name, value in values.items()})
        for logger in trainer.loggers:
            logger.log_metrics(values, step=step)

    def _optimizer(self, trainer: Any) -> Any:
        return unwrapped(trainer.optimizers[self.collect.optimizer])

    def _step(self, trainer: Any) -> int:
        """Return the sampler's count of steps, as others may step beside it; the trainer's of another optimizer."""
        return int(getattr(self._optimizer(trainer), "step_count", trainer.global_step))
