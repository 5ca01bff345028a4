"""A collection of sampled weights of one network: reading, predicting, saving. Collecting is in ``collecting.py``."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from learned_samplers.base import validation
from learned_samplers.posterior.arviz_export import to_arviz
from learned_samplers.posterior.prediction import (
    Inputs,
    Output,
    chunk_predictions,
    normalisation_buffers,
    reestimated_buffers,
    vmap_is_faster,
)
from learned_samplers.posterior.saved import read_collection, validate_network
from learned_samplers.posterior.storage import Entry, FolderStore, MemoryStore, Tensors, write_safetensors

if TYPE_CHECKING:
    import arviz


class SampleCollection:
    """K sets of weights θ_1 … θ_K of one network, and the predictions that average over them.

    Made by :meth:`load` (a file or a folder that :class:`~learned_samplers.PosteriorSamples` wrote), by
    :meth:`from_samples` (any list of weights: the members of a deep ensemble, say), and, while it is being
    collected, by :class:`~learned_samplers.PosteriorSamples`, its subclass.

    ``len(samples)`` is K; ``samples[k]`` and iteration give dictionaries from parameter name to tensor, in the dtype
    and on the device of storage. They are the stored tensors themselves: copy before changing them.
    """

    def __init__(self, model: nn.Module, store: MemoryStore | FolderStore, settings: Mapping[str, Any]) -> None:
        self.model = model
        self._store = store
        self._settings = dict(settings)
        self._reestimated: dict[int, Tensors] = {}

    # -- what is held ---------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._store.entries)

    def __getitem__(self, index: int) -> Tensors:
        tensors = self._store.read(self._position(index))
        return {name: tensors[name] for name in self.parameter_names}

    def __iter__(self) -> Iterator[Tensors]:
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} samples of {type(self.model).__name__})"

    @property
    def parameter_names(self) -> list[str]:
        """Names of the sampled parameters, as in ``model.named_parameters()``; a tied one counts once."""
        return list(self._settings["shapes"])

    @property
    def steps(self) -> list[int]:
        """The sampler's step at each sample."""
        return [entry.step for entry in self._store.entries]

    @property
    def cycles(self) -> list[int]:
        """The sampler's cycle at each sample; 0 throughout for a sampler without cycles."""
        return [entry.cycle for entry in self._store.entries]

    def _position(self, index: int) -> int:
        if isinstance(index, bool) or not isinstance(index, int):
            raise TypeError(f"a sample is chosen by an integer, got {index!r}")
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} of a collection of {len(self)}")
        return index % len(self)

    def _fixed(self) -> Tensors:
        return self._store.fixed or {}

    def _state(self, index: int) -> Tensors:
        """Parameters and buffers of one sample, for prediction."""
        state = dict(self._store.read(index))
        if self._settings["buffers"] == "reestimate":
            step = self._store.entries[index].step
            if step not in self._reestimated:
                raise RuntimeError(
                    f"the normalisation buffers of sample {index} (step {step}) have not been re-estimated: "
                    "call reestimate_buffers(data) with training inputs before predicting"
                )
            state |= self._reestimated[step]
        return state

    # -- predictions ----------------------------------------------------------------------------------------------

    def predict(
        self,
        x: Inputs,
        *,
        batch_size: int = 256,
        sample_chunk: int = 8,
        num_samples: int | None = None,
        cumulative: bool = False,
        output: Output = "classification",
        vectorize: bool | None = None,
    ) -> Tensor:
        r"""The Bayesian model average over the samples,

            p(y | x, D) ≈ (1/K) Σ_k p(y | x, θ_k),

        with p(y | x, θ) = softmax(f(x; θ)) for classification and f(x; θ) for regression. The model runs in evaluation
        mode on its own device, in its own dtype; the softmax and the average are taken in float32, or float64 for a
        model in float64. Its weights, buffers and modes are as before afterwards.

        Args:
            x: inputs (N, ...), or a tuple of such tensors for a network with several arguments.
            batch_size: examples run at once. Memory grows with ``batch_size`` · ``sample_chunk``.
            sample_chunk: samples stacked and run at once.
            num_samples: average over so many evenly spaced samples, the last one among them; None for all.
            cumulative: return the averages over the first 1, 2, …, K samples instead of the last one alone.
            output: "classification" (softmax over axis 1 of the logits), "regression" (the output as it is), or a
                function from the network's output (batch, ...) to what shall be averaged.
            vectorize: True runs the samples of a chunk as one with ``torch.func.vmap``; False runs them one after the
                other, for networks that vmap cannot run; None chooses the faster one: vmap, except for a network with
                convolutions on a CPU. The results agree to rounding.

        Returns:
            (N, classes), or whatever one network's prediction is shaped like; (K, N, classes) if ``cumulative``. On
            the device of ``x``.

        Raises:
            RuntimeError: no sample yet; buffers not re-estimated; vmap cannot run the network.
            TypeError, ValueError: an argument that cannot be used, by name.
        """
        total: Tensor | float = 0.0
        averages: list[Tensor] = []
        seen = 0
        # Closing restores the model's modes even when something fails in between.
        with closing(self._predictions(x, batch_size, sample_chunk, num_samples, output, vectorize)) as parts:
            for part in parts:
                sums = total + (part.cumsum(dim=0) if cumulative else part.sum(dim=0, keepdim=True))
                counts = torch.arange(len(part), device=part.device) + seen + 1
                total, seen = sums[-1:], seen + len(part)
                # One row a sample if cumulative; else only the last average is needed, and the last part has it.
                averages = [*averages, sums / counts.view(-1, *[1] * (sums.ndim - 1))] if cumulative else [sums / seen]
        return torch.cat(averages) if cumulative else averages[0][0]

    def predict_samples(
        self,
        x: Inputs,
        *,
        batch_size: int = 256,
        sample_chunk: int = 8,
        num_samples: int | None = None,
        output: Output = "classification",
        vectorize: bool | None = None,
    ) -> Tensor:
        """Each sample's own predictions p(y | x, θ_k), of shape (K, N, classes); arguments as in :meth:`predict`."""
        with closing(self._predictions(x, batch_size, sample_chunk, num_samples, output, vectorize)) as parts:
            return torch.cat(list(parts))

    def _predictions(
        self,
        x: Inputs,
        batch_size: int,
        sample_chunk: int,
        num_samples: int | None,
        output: Output,
        vectorize: bool | None,
    ) -> Generator[Tensor, None, None]:
        if not len(self):
            raise RuntimeError(f"no sample to predict with: {self!r}")
        count = len(self) if num_samples is None else num_samples
        validation.whole("num_samples", count)
        validation.whole("batch_size", batch_size)
        validation.whole("sample_chunk", sample_chunk)
        if count > len(self):
            raise ValueError(f"num_samples must be at most the {len(self)} samples held, got {num_samples}")
        return chunk_predictions(
            self.model,
            self._state,
            [(k + 1) * len(self) // count - 1 for k in range(count)],
            self._fixed(),
            x,
            output=output,
            batch_size=batch_size,
            sample_chunk=sample_chunk,
            vectorize=vmap_is_faster(self.model) if vectorize is None else vectorize,
        )

    def reestimate_buffers(self, data: Any, *, batch_size: int = 256) -> None:
        """Compute every sample's normalisation statistics from data, for ``buffers="reestimate"``.

        Each statistic is its average over the batches, as in ``torch.optim.swa_utils.update_bn``. One pass over
        ``data`` per sample. Call it again after more samples were collected.

        Args:
            data: inputs (N, ...), a tuple of them, or a loader of inputs or of (input, target) pairs.
            batch_size: for tensors only; a loader has its own.

        Raises:
            ValueError: another policy was chosen, or the data hold no batch.
        """
        if self._settings["buffers"] != "reestimate":
            raise ValueError(f"reestimate_buffers needs buffers='reestimate', got {self._settings['buffers']!r}")
        validation.whole("batch_size", batch_size)
        states = (self._store.read(index) for index in range(len(self)))
        results = list(reestimated_buffers(self.model, states, self._fixed(), data, batch_size))
        self._reestimated = dict(zip(self.steps, results, strict=True))

    # -- elsewhere ------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all samples to one safetensors file, whole or not at all.

        It holds ``samples/<name>`` with a leading axis K for each parameter (and buffer, with ``buffers="snapshot"``),
        ``reestimated/<name>`` likewise, ``fixed/<name>`` for what was not sampled, and in its metadata the settings,
        steps and cycles.

        Raises:
            OSError: it could not be written (a full disk, say); a file of that name is as it was.
        """
        if not len(self):
            raise RuntimeError(f"no sample to save: {self!r}")
        samples = [self._store.read(index) for index in range(len(self))]
        tensors = {f"samples/{name}": torch.stack([sample[name] for sample in samples]) for name in samples[0]}
        tensors |= {f"fixed/{name}": tensor for name, tensor in self._fixed().items()}
        if all(step in self._reestimated for step in self.steps):
            buffers = [self._reestimated[step] for step in self.steps]
            tensors |= {f"reestimated/{name}": torch.stack([b[name] for b in buffers]) for name in buffers[0]}
        metadata = {"settings": self._settings, "steps": self.steps, "cycles": self.cycles}
        write_safetensors(Path(path), tensors, metadata)

    @staticmethod
    def load(path: str | os.PathLike[str], model: nn.Module, *, device: str | torch.device = "cpu") -> SampleCollection:
        """Read the file of :meth:`save`, or a folder of samples, as a collection that predicts with ``model``.

        Frozen parameters and fixed buffers come from the file too: of ``model`` only the code, dtype and device matter.

        Raises:
            FileNotFoundError: nothing there.
            ValueError: the file is truncated, not of this format, or of another network; the message names it.
        """
        store, settings, reestimated = read_collection(Path(path), torch.device(device))
        validate_network(model, store, settings, str(path))
        collection = SampleCollection(model, store, settings)
        collection._reestimated = reestimated
        return collection

    @staticmethod
    def from_samples(model: nn.Module, samples: Sequence[Mapping[str, Tensor]]) -> SampleCollection:
        """A collection of given weights, such as ``[member.state_dict() for member in ensemble]``.

        Every mapping must hold all parameters of ``model``; the buffers among its keys belong to the sample.

        Raises:
            ValueError: no samples, or one with a name or shape that is not the model's.
        """
        if not samples:
            raise ValueError("samples must hold at least one set of weights, got none")
        shapes = {name: list(parameter.shape) for name, parameter in model.named_parameters()}
        buffers = {name: list(buffer.shape) for name, buffer in model.named_buffers()}
        aliases = {name for name, _ in model.named_parameters(remove_duplicate=False)} - set(shapes)
        store = MemoryStore()
        rows: dict[int, Tensors] = {}
        for k, sample in enumerate(samples):
            rows[k + 1] = {name: t.detach().clone() for name, t in sample.items() if name not in aliases}
            expected = {**shapes, **{name: shape for name, shape in buffers.items() if name in samples[0]}}
            found = {name: list(tensor.shape) for name, tensor in rows[k + 1].items()}
            if found != expected:
                wrong = next(name for name in (*expected, *found) if expected.get(name) != found.get(name))
                raise ValueError(
                    f"samples[{k}]: {wrong!r} has shape {found.get(wrong)}, the model's is {expected.get(wrong)}"
                )
        missing = [name for name in normalisation_buffers(model) if name not in samples[0]]
        if missing:
            raise ValueError(f"samples[0] lacks the running statistics {missing[0]!r} of the model")
        store.commit([Entry(step, 0, step) for step in rows], rows, store.progress)
        store.set_fixed({n: b.detach().clone() for n, b in model.named_buffers() if n not in samples[0]})
        return SampleCollection(model, store, {"shapes": shapes, "buffers": "snapshot"})

    def to_arviz(
        self,
        *other_chains: SampleCollection,
        parameters: Sequence[str] | None = None,
        max_parameters: int | None = 1000,
    ) -> arviz.InferenceData:
        """The samples as an ArviZ ``InferenceData``, this collection being the first chain. See :func:`to_arviz`."""
        return to_arviz([self, *other_chains], parameters=parameters, max_parameters=max_parameters)
