"""A collection of sampled weights of one network: reading, predicting, saving. Collecting is in ``collect.py``."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor, nn

from learned_samplers.base import validation
from learned_samplers.posterior.arviz_export import to_arviz
from learned_samplers.posterior.by_chain import ByChain
from learned_samplers.posterior.network import (
    buffers_of,
    parameters_of,
    plain_names,
    refuse_merged,
    refuse_sharded,
    tensors_of,
    with_plain_names,
)
from learned_samplers.posterior.normalisation import normalisation_buffers, validate_policy
from learned_samplers.posterior.saved_file import read_collection, save_collection, validate_network
from learned_samplers.posterior.snapshots import Fingerprints, same_values, validate_device
from learned_samplers.posterior.store import (
    Entry,
    MemoryStore,
    StoreView,
    compare_settings,
    merged_view,
    warn_of_copies,
)
from learned_samplers.posterior.tensor_files import Tensors, require_finite


class SampleCollection(ByChain):
    """K sets of weights θ_1 … θ_K of one network, and the predictions that average over them.

    `load` reads a file or a folder that `PosteriorSamples` wrote. `from_samples` takes any list of weights, such as the
    members of a deep ensemble, `from_draws` draws from a Gaussian approximation, and `merge` joins several chains. The
    subclass `PosteriorSamples` is a collection that grows while a sampler runs.

    ``len(samples)`` is K; ``samples[k]`` and iteration give dictionaries from parameter name to tensor, in the dtype
    and on the device of storage. They are the stored tensors themselves: copy before changing them. :meth:`load_into`
    puts one into a network. ``samples[10:]`` is a collection without the first ten, which keep their steps: a burn-in
    that is chosen afterwards. Of several chains each is cut by itself:
    ``SampleCollection.merge([chain[10:] for chain in samples.split()])``.
    """

    # -- what is held ---------------------------------------------------------------------------------------------

    @overload
    def __getitem__(self, index: int) -> Tensors: ...

    @overload
    def __getitem__(self, index: slice) -> SampleCollection: ...

    def __getitem__(self, index: int | slice) -> Tensors | SampleCollection:
        if isinstance(index, slice):
            return self._part(range(len(self))[index])
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

    @property
    def chains(self) -> list[int]:
        """The number of each sample's chain, from 0; of several only by `Restarts`, or where chains were merged."""
        return [entry.chain for entry in self._store.entries]

    def _position(self, index: int) -> int:
        validation.integer("index", index, least=-sys.maxsize)
        if not -len(self) <= index < len(self):
            raise IndexError(f"index must be that of one of {len(self)} samples, got {index}")
        return index % len(self)

    def load_into(self, model: nn.Module, index: int) -> None:
        """Copy one sample into a network: its weights, and the buffers and frozen weights that it predicts with.

        Everything is copied into the network's own tensors, in their dtype and on their device; tied weights stay tied.
        A sampler that still runs would go on from there: give a copy of its network, ``copy.deepcopy(model)``.

        Args:
            model: a network like the collection's, or that one; it may be compiled or wrapped.
            index: which sample; a negative one counts from the last.

        Raises:
            IndexError, TypeError: no such sample.
            RuntimeError: its normalisation buffers have not been re-estimated (see :meth:`reestimate_buffers`).
            ValueError: ``model`` is another network, sharded, has not the frozen weights that the samples need, or has
                merged an adapter that was sampled into its weight, as ``eval()`` does with loralib's layers.
        """
        validation.module("model", model)
        index = self._position(index)
        refuse_merged(model, lambda: self.parameter_names)
        refuse_sharded(model)
        validate_network(model, self._store, self._settings, "the samples")
        Fingerprints(model).validate(self._store.frozen, "the samples")
        values, tensors = {**(self._store.fixed or {}), **self._state(self._store, index)}, tensors_of(model)
        with torch.no_grad():
            for name, value in values.items():
                tensors[name].copy_(value)

    # -- elsewhere ------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], *, store_frozen: bool | None = None) -> None:
        """Write all samples to one safetensors file, atomically.

        It holds ``samples/<name>`` with a leading axis K for each parameter (and buffer, with ``buffers="snapshot"``),
        ``reestimated/<name>`` likewise, ``fixed/<name>`` for what was not sampled, and in its metadata the settings,
        steps, cycles, chains and checksums.

        Args:
            path: the file.
            store_frozen: False leaves the parameters that were not sampled (a base model under LoRA) out; :meth:`load`
                then needs a model that has them, and knows them by their fingerprints. True takes those that this
                collection left out from the model. None: what this collection holds.

        Raises:
            OSError: it could not be written (a full disk, say); a file of that name is as it was.
            ValueError: the model has no longer the frozen parameters that the samples were collected with, or a sample
                holds what is not finite; likewise.
        """
        validation.one_of("store_frozen", store_frozen, (True, False, None))
        self._require_samples("to save")
        save_collection(
            Path(path), self.model, self._store, self._settings, self._reestimated, self._fingerprints, store_frozen
        )

    @staticmethod
    def load(path: str | os.PathLike[str], model: nn.Module, *, device: str | torch.device = "cpu") -> SampleCollection:
        """Read the file of :meth:`save`, or a folder of samples, as a collection that predicts with ``model``.

        Frozen parameters and fixed buffers come from the file too: of ``model`` only the code, dtype and device matter,
        unless the samples were stored without the frozen parameters. ``model`` may be wrapped for DDP or compiled.

        Raises:
            FileNotFoundError: nothing there.
            ValueError: the file is truncated, damaged, not of this format, or of another network, or its frozen
                parameters are not those of ``model``; the message names it.
        """
        validation.module("model", model)
        store, settings, reestimated = read_collection(Path(path), validate_device(device))
        validate_network(model, store, settings, str(path))
        collection = SampleCollection(model, store, settings)
        collection._fingerprints.validate(store.frozen, str(path))
        collection._reestimated = reestimated
        return collection

    @staticmethod
    def from_samples(model: nn.Module, samples: Sequence[Mapping[str, Tensor]]) -> SampleCollection:
        """A collection of given weights, such as ``[member.state_dict() for member in ensemble]``.

        Every mapping must hold all parameters of ``model``; the buffers among its keys belong to the sample. Of torch's
        ``AveragedModel`` take ``averaged.module.state_dict()``.

        Raises:
            TypeError, ValueError: no samples, or one with a name or shape that is not the model's, with what is no
                tensor, or that is not finite.
        """
        validation.module("model", model)
        if isinstance(samples, Mapping | Tensor | str) or not isinstance(samples, Sequence):
            raise TypeError(
                f"samples must be a list of state dicts, got {type(samples).__name__}: of one network give "
                "[network.state_dict()]"
            )
        return SampleCollection._of_weights(model, samples, "snapshot")

    @staticmethod
    def from_draws(
        model: nn.Module,
        sampled_params: Callable[[], AbstractContextManager[Any]],
        count: int,
        *,
        buffers: str = "refuse",
    ) -> SampleCollection:
        """A collection of ``count`` draws from an approximate posterior: `IVON`'s, `SWAG`'s, or one of your own.

        Args:
            model: the network whose parameters the draws change.
            sampled_params: called once a draw; gives a context in which the model's parameters are that draw.
            count: number of draws, ≥ 1.
            buffers: as for `PosteriorSamples`. Draws do not change running statistics. A network that has them needs
                "reestimate", and those of all its layers are computed, whatever their mode; or "snapshot", if its
                layers were in evaluation mode throughout training, and all draws have those of the network.

        Raises:
            TypeError, ValueError: an argument that cannot be used, by name and value.

        Warns:
            UserWarning: "snapshot", and the network has running statistics.
        """
        validation.module("model", model)
        validation.integer("count", count)
        if not callable(sampled_params) or hasattr(type(sampled_params), "__enter__"):
            raise TypeError(
                "sampled_params must be a function that returns a context manager (give it without brackets), got "
                f"{type(sampled_params).__name__}"
            )
        validate_policy(model, buffers)
        statistics = normalisation_buffers(model)
        if statistics and buffers == "snapshot":
            warnings.warn(
                f"buffers='snapshot' gives every draw the running statistics ({statistics[0]!r}, ...) that the network "
                "has now: right if its normalisation layers were in evaluation mode throughout training; else choose "
                "buffers='reestimate' and call reestimate_buffers(data)",
                stacklevel=2,
            )
        samples, before = [], {name: p.detach().clone() for name, p in parameters_of(model).items()}
        for _ in range(count):
            with torch.no_grad(), sampled_params():
                tensors: Tensors = dict(parameters_of(model))
                if buffers == "snapshot":
                    tensors |= buffers_of(model)
                samples.append({name: tensor.detach().clone() for name, tensor in tensors.items()})
        if all(torch.equal(sample[name], p) for sample in samples for name, p in before.items()):
            raise ValueError(
                f"sampled_params changes no parameter of model in {count} draws: give the network that it was made for"
            )
        return SampleCollection._of_weights(model, samples, buffers)

    @staticmethod
    def _of_weights(model: nn.Module, samples: Sequence[Mapping[str, Tensor]], buffers: str) -> SampleCollection:
        if not samples:
            raise ValueError("samples must hold at least one set of weights, got none")
        shapes = {name: list(parameter.shape) for name, parameter in parameters_of(model).items()}
        others = {name: list(buffer.shape) for name, buffer in buffers_of(model).items()}
        first_names = _first_names(model)
        model_names = {*shapes, *others, *first_names}
        tensors = {**parameters_of(model), **buffers_of(model)}
        samples = [with_plain_names(sample, model_names) for sample in samples]
        statistics = normalisation_buffers(model)
        store = MemoryStore()
        rows: dict[Entry, Tensors] = {}
        for k, sample in enumerate(samples):
            for name, value in sample.items():
                if not isinstance(value, Tensor):
                    raise TypeError(
                        f"samples[{k}][{name!r}] must be a tensor, got {type(value).__name__}: leave out what is "
                        "neither a parameter nor a buffer of the network"
                    )
                if value.is_complex() and name in tensors and not tensors[name].is_complex():
                    raise TypeError(f"samples[{k}][{name!r}] must be real, as the model's is, got {value.dtype}")
            for name, owner in first_names.items():
                if name in sample and owner in sample and not same_values(sample[name], sample[owner].to(sample[name])):
                    raise ValueError(
                        f"samples[{k}]: {name!r} and {owner!r} are one tensor in the model but differ here"
                    )
            entry = Entry(k + 1, 0, k + 1)
            rows[entry] = {name: t.detach().clone() for name, t in sample.items() if name not in first_names}
            expected = {**shapes, **{name: shape for name, shape in others.items() if name in samples[0]}}
            sample_shapes = {name: list(tensor.shape) for name, tensor in rows[entry].items()}
            if sample_shapes != expected:
                names = (*expected, *sample_shapes)
                wrong = next(name for name in names if expected.get(name) != sample_shapes.get(name))
                raise ValueError(
                    f"samples[{k}]: {wrong!r} has shape {sample_shapes.get(wrong)}, the model's is "
                    f"{expected.get(wrong)}"
                )
            require_finite(f"samples[{k}]", rows[entry], shapes)
        missing = [name for name in statistics if name not in samples[0]]
        if missing and buffers != "reestimate":
            raise ValueError(f"samples[0] lacks the running statistics {missing[0]!r} of the model")
        store.commit(list(rows), rows, store.progress)
        left_out = set(samples[0]) | (set(statistics) if buffers == "reestimate" else set())
        store.set_fixed({n: b.detach().clone() for n, b in buffers_of(model).items() if n not in left_out})
        return SampleCollection(model, store, {"shapes": shapes, "buffers": buffers})

    @staticmethod
    def merge(
        collections: Sequence[SampleCollection | str | os.PathLike[str]],
        model: nn.Module | None = None,
        *,
        device: str | torch.device = "cpu",
    ) -> SampleCollection:
        """Several chains over one network as one collection that averages over all of their samples.

        ``chains`` says which chain each sample comes from; :meth:`split` gives the chains back, and `to_arviz` and the
        diagnostics (R̂ over chains, say) take them as chains. Samples stay where they are, in memory or on disk.

        Args:
            collections: collections, or files and folders of them, each of one chain or merged before.
            model: the network to predict with; None for that of the first collection. Needed for files and folders.
            device: where samples from files and folders are read to.

        Warns:
            UserWarning: two of the chains begin with the same sample, as a chain and its copy do.

        Raises:
            TypeError: one collection or path in the place of several, or something else among them.
            ValueError: no collection, or ones of different networks, policies or frozen parameters, by name.
        """
        if isinstance(collections, str | os.PathLike | SampleCollection):
            raise TypeError(f"collections must be a list of them, got one {type(collections).__name__}")
        if not collections:
            raise ValueError("collections must hold at least one collection, got none")
        if model is not None:
            validation.module("model", model)
        chains: list[SampleCollection] = []
        for position, item in enumerate(collections):
            if not isinstance(item, SampleCollection):
                if not isinstance(item, str | os.PathLike):
                    type_name = type(item).__name__
                    raise TypeError(
                        f"collections[{position}] must be a collection, a file or a folder, got {type_name}"
                    )
                if model is None:
                    raise ValueError(f"model must be given to read collections[{position}], {str(item)!r}")
                item = SampleCollection.load(item, model, device=device)
            chains.append(item)
            if not len(item):
                raise ValueError(f"collections[{position}] holds no sample")
            for name in ("shapes", "buffers"):
                compare_settings(
                    {name: chains[0]._settings[name]}, {name: item._settings[name]}, f"collections[{position}]"
                )
        store = merged_view([(f"collections[{k}]", chain._store) for k, chain in enumerate(chains)])
        merged = SampleCollection(model if model is not None else chains[0].model, store, chains[0]._settings)
        validate_network(merged.model, store, merged._settings, "collections")
        reestimated = [chain._reestimated.get((e.chain, e.step)) for chain in chains for e in chain._store.entries]
        for entry, buffers in zip(store.entries, reestimated, strict=True):
            if buffers is not None:
                merged._reestimated[entry.chain, entry.step] = buffers
        warn_of_copies(store)
        return merged

    def split(self) -> list[SampleCollection]:
        """Return a collection for each chain, in order; the opposite of :meth:`merge`."""
        return [
            self._part([k for k, n in enumerate(self.chains) if n == chain]) for chain in dict.fromkeys(self.chains)
        ]

    def _part(self, positions: Sequence[int]) -> SampleCollection:
        """Return the samples at these positions as a collection, which reads them where they are."""
        chosen = [(self._store, position, self._store.entries[position].chain) for position in positions]
        part = SampleCollection(self.model, StoreView(chosen, self._store.fixed, self._store.frozen), self._settings)
        part._reestimated = self._reestimated
        return part

    def to_arviz(
        self,
        *other_chains: SampleCollection,
        parameters: Sequence[str] | None = None,
        max_parameters: int | None = 1000,
        inputs: Any = None,
        log_likelihood: Callable[[Tensor], Tensor] | None = None,
    ) -> Any:
        """The samples for ArviZ, this collection's chains first. See :func:`to_arviz`."""
        return to_arviz(
            [self, *other_chains],
            parameters=parameters,
            max_parameters=max_parameters,
            inputs=inputs,
            log_likelihood=log_likelihood,
        )


def _first_names(model: nn.Module) -> dict[str, str]:
    """Return, for each further name of a tied parameter or buffer, the one that the samples have it under."""
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    plain, first = plain_names([name for name, _ in named]), dict[int, str]()
    pairs = [(plain[name], first.setdefault(id(tensor), plain[name])) for name, tensor in named]
    return {name: owner for name, owner in pairs if name != owner}
