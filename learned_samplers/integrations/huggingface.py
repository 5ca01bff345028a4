"""Collecting posterior samples in a Hugging Face ``Trainer``."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from learned_samplers.base.files import sealed, unsealed, write_atomically
from learned_samplers.integrations.resumption import begin, validate_missing, warn_of_clipping
from learned_samplers.posterior.collect import PosteriorSamples
from learned_samplers.posterior.network import parameters_of
from learned_samplers.posterior.snapshots import unwrapped
from learned_samplers.posterior.tensor_files import fingerprint

FILE = "posterior.pt"
_COMPARED = 8  # parameters whose values tell checkpoints apart


def _weights(model: Any, names: Iterable[str] | None = None) -> dict[str, str] | None:
    """Digests of a model's first trained weights, or of those named; None of sharded ones."""
    parameters = parameters_of(model)
    if names is None:  # frozen ones are the same in every checkpoint
        names = [name for name, parameter in parameters.items() if parameter.requires_grad][:_COMPARED]
    compared = {name: parameters[name] for name in names if name in parameters}
    if any(hasattr(parameter, "to_local") for parameter in compared.values()):
        return None
    return {name: fingerprint(parameter) for name, parameter in compared.items()}


class CollectPosterior(TrainerCallback):
    """Collects posterior samples while a Hugging Face ``Trainer`` trains, and carries them through its checkpoints.

    The sampler is given as the optimizer, with a schedule that does not end at 0, and without gradient clipping::

        sampler = SGHMC(model.parameters(), lr=0.1, num_data=len(train_set))
        schedule = torch.optim.lr_scheduler.ConstantLR(sampler, factor=1.0)
        collect = CollectPosterior(burn_in=1000, thinning=100, store_frozen=False)
        arguments = TrainingArguments("out", max_grad_norm=0.0)
        Trainer(model, arguments, train_dataset=train_set, optimizers=(sampler, schedule), callbacks=[collect]).train()
        probabilities = collect.posterior.predict({"input_ids": ids, "attention_mask": mask})

    Every checkpoint folder gets a file ``posterior.pt``, and ``train(resume_from_checkpoint=...)`` goes on with it.

    Args:
        checkpoint: folder of the checkpoint that is resumed, where that is not ``checkpoint-<step>`` in the output
            folder.
        missing: what to do when a run is resumed from a checkpoint without samples, or begins anew while this callback
            holds those of another: "refuse" or "warn".
        options: those of `PosteriorSamples`. With ``path`` checkpoints hold the list of the samples alone.

    Raises:
        RuntimeError: as training begins, if samples would be lost and ``missing`` is "refuse", or if those of the
            checkpoint were kept beside other weights than those that training goes on with.
        TypeError, ValueError: an option that cannot be used.
    """

    def __init__(self, *, checkpoint: str | None = None, missing: str = "refuse", **options: Any) -> None:
        self.missing = validate_missing(missing)
        self.checkpoint, self.options = checkpoint, options
        #: What is collected; None before training begins.
        self.posterior: PosteriorSamples | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin, after the weights and the optimizer were restored from a checkpoint."""
        sampler = unwrapped(kwargs["optimizer"])
        warn_of_clipping(sampler, args.max_grad_norm, "pass max_grad_norm=0.0")
        saved = None
        if state.global_step:
            file = self._folder(args, state) / FILE
            saved = self._read(file, kwargs["model"]) if file.is_file() else None
        self.posterior = begin(
            kwargs["model"], sampler, self.options, saved, state.global_step, self.missing, held=self.posterior
        )

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the samples beside the checkpoint that was just written."""
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if self.posterior is not None and state.is_world_process_zero and folder.is_dir():
            buffer = io.BytesIO()
            torch.save({"posterior": self.posterior.state_dict(), "weights": _weights(kwargs["model"])}, buffer)
            write_atomically(folder / FILE, sealed(buffer.getvalue()))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop collecting; the samples stay."""
        if self.posterior is not None:
            self.posterior.detach()

    @staticmethod
    def _read(file: Path, model: Any) -> Any:
        """The samples of a file, once it is known to lie beside the weights that were restored."""
        try:
            saved = torch.load(io.BytesIO(unsealed(file)), weights_only=True)
        except Exception as error:  # torch.load raises many types
            raise RuntimeError(
                f"the samples in {file} cannot be read ({error}): resume an earlier checkpoint"
            ) from error
        weights = saved["weights"]
        if isinstance(weights, dict) and weights != _weights(model, weights):
            raise RuntimeError(
                f"the samples in {file} belong to another checkpoint than the weights that training continues with: "
                "give the folder that is resumed, CollectPosterior(..., checkpoint=...)"
            )
        return saved["posterior"]

    def _folder(self, args: Any, state: Any) -> Path:
        if self.checkpoint is not None:
            return Path(self.checkpoint)
        resumed = args.resume_from_checkpoint
        if isinstance(resumed, str) and Path(resumed).is_dir():
            return Path(resumed)
        return Path(args.output_dir) / f"checkpoint-{state.global_step}"
