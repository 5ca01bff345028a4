"""Sends a chain's temperatures, whether it has settled, and the time that is left to a ``Trainer``'s logger."""

from __future__ import annotations

import time
import warnings
from typing import Any

from transformers import TrainerCallback

from learned_samplers.base.sampler import Sampler
from learned_samplers.integrations.huggingface import CollectPosterior
from learned_samplers.integrations.tensorboard import rates
from learned_samplers.posterior.snapshots import unwrapped
from learned_samplers.posterior.verdict import ENOUGH


class ReportChain(TrainerCallback):
    """Logs what a chain does by ``Trainer.log``, so that TensorBoard, a progress bar and others show it.

    It is added once the trainer exists, which it logs by::

        trainer = Trainer(model, arguments, ..., callbacks=[collect])
        trainer.add_callback(ReportChain(trainer, collect, inputs=a_batch))

    At every ``logging_steps``: ``chain/learning_rate``, ``chain/temperature``, the two estimates of
    `Sampler.temperatures`, ``chain/samples``, and ``chain/seconds_left``. With ``inputs``, whenever the number of
    samples has doubled, from eight on: ``chain/rhat`` and ``chain/effective_samples`` of their predictions, and
    ``chain/settled``, 1 or 0.

    Args:
        trainer: the trainer.
        collect: the callback that collects.
        inputs: a few inputs whose predictions are judged, as for `PosteriorSamples.verdict`; None for no judgement.
        options: those of the prediction, such as ``output``.
    """

    def __init__(self, trainer: Any, collect: CollectPosterior, *, inputs: Any = None, **options: Any) -> None:
        if not isinstance(collect, CollectPosterior):
            raise TypeError(f"collect must be a CollectPosterior, got {type(collect).__name__}")
        self.trainer, self.collect, self.inputs, self.options = trainer, collect, inputs, options
        self._values: dict[str, float] = {}
        self._judged = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin to measure time."""
        self._begin, self._first, self._judged = time.perf_counter(), state.global_step, 0

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure, while the gradients belong to the weights."""
        sampler = unwrapped(kwargs["optimizer"])
        if isinstance(sampler, Sampler) and self._is_due(state, state.global_step + 1):
            self._values = rates(sampler)
            for number, group in enumerate(sampler.temperatures()):
                suffix = f"/{number}" if len(sampler.param_groups) > 1 else ""
                self._values |= {f"chain/{name}_temperature{suffix}": value for name, value in group.items()}

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Log."""
        if not self._is_due(state, state.global_step) or self.collect.posterior is None:
            return
        pace = (time.perf_counter() - self._begin) / max(1, state.global_step - self._first)
        left = pace * (state.max_steps - state.global_step)
        values = {**self._values, "chain/samples": float(len(self.collect.posterior)), "chain/seconds_left": left}
        # NaN, where a sampler has no momentum, is no JSON.
        self.trainer.log({name: v for name, v in {**values, **self._judgement()}.items() if v == v})

    @staticmethod
    def _is_due(state: Any, step: int) -> bool:
        every = int(state.logging_steps or 0)
        return every > 0 and step % every == 0

    def _judgement(self) -> dict[str, float]:
        posterior = self.collect.posterior
        assert posterior is not None
        if self.inputs is None or len(posterior) < max(ENOUGH, 2 * self._judged):
            return {}
        self._judged = len(posterior)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            verdict = posterior.verdict(self.inputs, **self.options)
        scalars = {"chain/rhat": verdict.within, "chain/effective_samples": verdict.effective}
        return scalars if verdict.settled is None else {**scalars, "chain/settled": float(verdict.settled)}
