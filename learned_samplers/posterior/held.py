"""Sampled weights with the network that they belong to: what every prediction and statistic of them begins with."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from learned_samplers.base import validation
from learned_samplers.base.warning import Once
from learned_samplers.posterior.inputs import Inputs
from learned_samplers.posterior.network import refuse_scripted
from learned_samplers.posterior.normalisation import OwnBuffers, reestimated_buffers, statistics_to_compute
from learned_samplers.posterior.options import Options, validate_batch_size, validated
from learned_samplers.posterior.outputs import OutputFormat
from learned_samplers.posterior.running import Run, Runner
from learned_samplers.posterior.snapshots import Fingerprints, same_values
from learned_samplers.posterior.store import Store
from learned_samplers.posterior.tensor_files import Tensors


class HeldSamples:
    """Samples in a store, and the network that runs with them."""

    def __init__(self, model: nn.Module, store: Store, settings: dict[str, Any]) -> None:
        refuse_scripted(model)
        self.model = model
        self._store = store
        self._settings = dict(settings)
        #: By chain and step.
        self._reestimated: dict[tuple[int, int], Tensors] = {}
        self._runner = Runner(model)
        self._fingerprints = Fingerprints(model)
        self._gives_verdict, self._gives_early_verdict = Once(), Once()
        #: The first rows of the last prediction, and its options.
        self._probed: tuple[Inputs, Options] | None = None

    def __len__(self) -> int:
        return len(self._store.entries)

    def _fixed(self) -> Tensors:
        """Return what was not sampled, once frozen weights that come with the model are those of the samples."""
        self._fingerprints.validate(self._store.frozen, "the samples")
        return self._store.fixed or {}

    def _require_samples(self, purpose: str) -> None:
        if not len(self):
            raise RuntimeError(f"there is no sample {purpose}: {self._why_empty()}")

    def _why_empty(self) -> str:
        return repr(self)

    def _state(self, store: Store, index: int) -> Tensors:
        """Return the parameters and buffers of one sample, for prediction."""
        state = dict(store.read(index))
        if self._settings["buffers"] == "reestimate" and statistics_to_compute(self.model, store.fixed or {}):
            entry = store.entries[index]
            if (entry.chain, entry.step) not in self._reestimated:
                raise RuntimeError(
                    f"the normalisation buffers of sample {index} (step {entry.step}) have not been re-estimated: "
                    "call reestimate_buffers(data) with training inputs before predicting"
                )
            state |= self._reestimated[entry.chain, entry.step]
        return state

    def _shared_buffers(self) -> Tensors:
        """The buffers that every sample holds a copy of, the same in all; OwnBuffers where one differs."""
        if statistics_to_compute(self.model, self._store.fixed or {}):
            raise OwnBuffers(
                f"samples: {type(self.model).__name__} has running statistics, which do not fit weights between two "
                "samples"
            )
        shared = {n: tensor for n, tensor in self._store.read(0).items() if n not in self._settings["shapes"]}
        for k in range(1, len(self) if shared else 0):
            later = self._store.read(k)
            for name, tensor in shared.items():
                if not same_values(tensor, later[name]):
                    raise OwnBuffers(
                        f"samples: the buffer {name!r} differs from sample 0 to sample {k}, and no values of it belong "
                        "to the weights between two samples"
                    )
        return shared

    def _run_samples(self, x: Inputs, form: OutputFormat, options: Options, transform: Callable[[Any], Tensor]) -> Run:
        """Return the network under the chosen samples on all batches of ``x``."""
        store = copy.copy(self._store)  # as it is now, whatever a sampler adds meanwhile
        chosen = self._chosen(options)
        run = self._run(x, form, options, transform, lambda index: self._state(store, index), chosen, self._fixed())
        run.entries = [store.entries[index] for index in chosen]
        return run

    def _run(
        self,
        x: Inputs,
        form: OutputFormat,
        options: Options,
        transform: Callable[[Any], Tensor],
        read: Callable[[int], Tensors],
        chosen: list[int],
        fixed: Tensors,
    ) -> Run:
        batches = self._runner.batches(x, options["batch_size"], options["targets"])
        chunk, vectorize = options["sample_chunk"], options["vectorize"]
        return Run(self._runner, batches, read, chosen, fixed, transform, form, sample_chunk=chunk, vectorize=vectorize)

    def _chosen(self, options: Options) -> list[int]:
        """Return the samples to predict with: so many, evenly spaced, the last one among them."""
        held, wanted = len(self), options["num_samples"]
        count = held if wanted is None else wanted
        return [(k + 1) * held // count - 1 for k in range(count)]

    def _validated(self, options: Options, method: str = "") -> tuple[OutputFormat, Options]:
        """Return the meaning of the output, and all options; ValueError if ``method`` cannot work with a function."""
        self._require_samples("to predict with")
        if method and callable(options.get("output")):
            raise ValueError(
                f"{method} needs to know what the output means: output='softmax', 'binary', 'multilabel' or "
                "'regression', not a function (predict_samples takes one)"
            )
        return validated(options, len(self))

    def reestimate_buffers(self, data: Any, *, batch_size: int | None = 256, targets: bool | None = None) -> None:
        """Compute every sample's normalisation statistics from data, for ``buffers="reestimate"``.

        Each statistic is its average over the batches, as in ``torch.optim.swa_utils.update_bn``. One pass over
        ``data`` per sample. Call it again after more samples were collected. Layers that were in evaluation mode while
        they were keep the statistics that they had.

        Args:
            data: inputs (N, ...), a tuple or a dictionary of them, or a loader of inputs or of (input, target) pairs.
            batch_size: for tensors only; a loader has its own.
            targets: as in :meth:`predict`.

        Raises:
            ValueError: another policy was chosen, or the data hold no batch.

        Warns:
            UserWarning: all layers were in evaluation mode, so that there is nothing to compute.
        """
        if self._settings["buffers"] != "reestimate":
            raise ValueError(f"reestimate_buffers needs buffers='reestimate', got {self._settings['buffers']!r}")
        validate_batch_size(batch_size)
        validation.one_of("targets", targets, (True, False, None))
        if not statistics_to_compute(self.model, self._fixed()):
            warnings.warn(
                "every normalisation layer was in evaluation mode when the samples were collected, and keeps the "
                "statistics that it had: nothing is re-estimated",
                stacklevel=2,
            )
            return
        states = (self._store.read(index) for index in range(len(self)))
        results = list(reestimated_buffers(self.model, states, self._fixed(), data, batch_size, targets))
        keys = [(entry.chain, entry.step) for entry in self._store.entries]
        self._reestimated = dict(zip(keys, results, strict=True))
