"""Samples of an adapter: a collection that predicts and generates with all of them at once, and that peft reads."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from learned_samplers.adapters.folders import attached, read_adapter, read_index, write_adapters
from learned_samplers.adapters.generation import Generated, generate
from learned_samplers.adapters.grouped import GroupedRunner
from learned_samplers.adapters.language import IGNORED, Mixture, TextScores, of_targets
from learned_samplers.adapters.model import adapted, refuse_base_weights, saved_names
from learned_samplers.base import validation
from learned_samplers.posterior.collection import SampleCollection
from learned_samplers.posterior.network import parameters_of
from learned_samplers.posterior.options import Options
from learned_samplers.posterior.snapshots import Snapshots, on_device, validate_device
from learned_samplers.posterior.store import Entry, MemoryStore, Store
from learned_samplers.posterior.tensor_files import fingerprint


class AdapterSamples(SampleCollection):
    """K samples of the adapter of a ``peft`` model, which predict with one forward of the base.

    ``AdapterSamples.of(posterior)`` takes what `PosteriorSamples` collected, ``AdapterSamples.load(folder, model)`` a
    folder of adapters, of :meth:`save_adapters` or of an ensemble trained elsewhere. All predictions of
    `SampleCollection` run ``sample_chunk`` adapters as one: the base's products once, over the rows of all of them, and
    low-rank updates by batched products. Layers for which that gives other numbers (the first run is compared) run
    adapter by adapter; ``vectorize=False`` always does so. The base is in memory once.

    Args:
        model, store, settings: of a collection whose samples hold the active adapter's weights alone.

    Raises:
        TypeError, ValueError: no ``peft`` model, several active adapters, merged or disabled ones, prompts, or
            samples of base weights, by name.
    """

    def __init__(self, model: nn.Module, store: Store, settings: dict[str, Any]) -> None:
        network = adapted(model)
        refuse_base_weights(network, settings["shapes"])
        super().__init__(network, store, settings)
        self._runner = GroupedRunner(network)

    @staticmethod
    def of(samples: SampleCollection) -> AdapterSamples:
        """Return the adapters that a collection of a ``peft`` model's samples holds now.

        Raises:
            RuntimeError: it holds none.
            TypeError, ValueError: its model, or what was sampled, cannot be used, by name.
        """
        if not isinstance(samples, SampleCollection):
            raise TypeError(f"samples must be a collection of samples, got {type(samples).__name__}")
        samples._require_samples("to take")
        part = samples[:]
        return AdapterSamples(part.model, part._store, part._settings)

    def _part(self, positions: Sequence[int]) -> SampleCollection:
        part = super()._part(positions)
        return AdapterSamples(part.model, part._store, part._settings)

    # -- folders --------------------------------------------------------------------------------------------------

    def save_adapters(self, folder: str | os.PathLike[str]) -> None:
        """Write every sample as an adapter folder, ``sample-0000`` and so on, and ``adapters.json``, their index.

        ``PeftModel.from_pretrained(base, folder / "sample-0000")`` reads one without this package. The index has
        steps, chains, checksums, and fingerprints of the base, so that :meth:`load` refuses another base.

        Raises:
            ValueError: the folder exists and is not empty, or a sample is not finite.
            OSError: it could not be written; nothing is there then.
        """
        self._require_samples("to save")
        parameters = parameters_of(self.model)
        model: Any = self.model
        adapters = {name for adapter in model.peft_config for name in saved_names(self.model, adapter).values()}
        stored = {n: fingerprint(t) for n, t in (self._store.fixed or {}).items() if n in parameters}
        frozen = {name: digest for name, digest in {**self._store.frozen, **stored}.items() if name not in adapters}
        content = {"origin": self._settings.get("origin"), "frozen": frozen}
        write_adapters(Path(folder), self.model, list(self), self._store.entries, content)

    @staticmethod
    def load(
        adapters: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        model: nn.Module,
        *,
        device: str | torch.device = "cpu",
    ) -> AdapterSamples:
        """Read a directory of adapter folders, or a list of such folders, as samples of one adapter.

        Args:
            adapters: the folder of :meth:`save_adapters`; any directory whose folders are adapters of ``peft``; or a
                list of these.
            model: the base, which gets the first of the adapters attached (in place, as ``peft`` does), or a
                ``PeftModel`` with an adapter of the same configuration.
            device: where samples are kept.

        Raises:
            FileNotFoundError: no adapter there.
            ValueError: adapters of different ranks, targets or bases, a file that is damaged or holds other weights
                than the model's adapter has, or another base than the index's; by folder and name.
        """
        validation.module("model", model)
        kept_on = validate_device(device)
        if isinstance(adapters, str | os.PathLike):
            places, entries, content = read_index(Path(adapters))
        else:
            wrong = [item for item in adapters if not isinstance(item, str | os.PathLike)]
            if wrong:
                raise TypeError(f"adapters must name folders, got {wrong[0]!r}")
            places, content = [Path(item) for item in adapters], {}
            entries = [Entry(k, 0, k) for k in range(1, len(places) + 1)]
            if not places:
                raise ValueError("adapters must name at least one adapter folder, got none")
        with attached(model, places) as wrapped:
            network = adapted(wrapped)
            names, parameters = saved_names(network), parameters_of(network)
            sampled = set(names.values())
            shapes = {name: list(parameter.shape) for name, parameter in parameters.items() if name in sampled}
            snapshots = Snapshots(network, list(shapes), "refuse", store_frozen=False, dtype=None, device=kept_on)
            fixed, frozen = snapshots.first_unsampled()
            for name, digest in content.get("frozen", {}).items():
                if frozen.get(name) != digest:
                    raise ValueError(
                        f"{adapters}: its samples adapt another base, {name!r} of this model has other values"
                    )
            store = MemoryStore()
            samples = [on_device(read_adapter(place, names, shapes), kept_on) for place in places]
            store.commit(entries, dict(zip(entries, samples, strict=True)), store.progress)
            store.set_fixed(fixed, frozen)
            settings = {"shapes": shapes, "buffers": "refuse", "origin": content.get("origin")}
            return AdapterSamples(network, store, settings)

    # -- language models ------------------------------------------------------------------------------------------

    def score(
        self, inputs: Mapping[str, Tensor], labels: Tensor | None = None, **options: Unpack[Options]
    ) -> TextScores:
        """Log-likelihoods and uncertainties of texts under the mixture of next-token distributions.

        Args:
            inputs: ``input_ids`` (N, T) and what else the causal language model takes.
            labels: the tokens to score, (N, T), −100 for those that are not; None for all with ``attention_mask`` 1.
                The first token has no prediction, nor the first after padding.
            options: as in :meth:`predict`; logits of ``batch_size`` texts and ``sample_chunk`` adapters are in memory.

        Returns:
            `TextScores` of T − 1 tokens.
        """
        _require_ids(inputs)
        ids = inputs["input_ids"]
        targets = ids if labels is None else labels
        if not isinstance(targets, Tensor) or targets.is_floating_point():
            got = getattr(targets, "dtype", type(targets).__name__)
            raise TypeError(f"labels must be a tensor of integers, got {got}")
        if targets.shape != ids.shape:
            raise ValueError(f"labels must have the shape {tuple(ids.shape)} of input_ids, got {tuple(targets.shape)}")
        targets = targets[:, 1:]
        if labels is None and "attention_mask" in inputs:
            # Nor has the first token after padding a prediction.
            read = inputs["attention_mask"] != 0
            targets = targets.masked_fill(~(read[:, 1:] & read[:, :-1]), IGNORED)
        form, complete = self._validated({"batch_size": 8, **options, "class_axis": -1})
        run = self._run_samples(inputs, form, complete, lambda raw: form.log_prediction(raw)[:, :-1])
        mask = targets >= 0
        average, total, aleatoric = (torch.zeros(targets.shape, device=ids.device) for _ in range(3))
        samples = torch.zeros(run.count, len(ids), device=ids.device)
        for group in run.groups():
            mixtures = {rows.start: Mixture() for rows, _ in group}
            for chunk, rows, logs in run.pieces(group):
                mixtures[rows.start].add(logs)
                samples[chunk, rows] = of_targets(logs, targets[rows]).sum(-1)
            for rows, _ in group:
                mixture = mixtures.pop(rows.start)
                average[rows] = of_targets(mixture.log_average, targets[rows])
                total[rows], aleatoric[rows] = mixture.uncertainty()
        return TextScores(average, total.where(mask, 0.0), aleatoric.where(mask, 0.0), samples, mask)

    def generate(self, inputs: Mapping[str, Tensor], *, num_samples: int | None = None, **options: Any) -> Generated:
        """Generate from the mixture (1/K) Σ_k p_k(next token), by the network's own ``generate``.

        The options of transformers' ``generate`` work on the mixture: greedy, ``do_sample`` with ``temperature`` and
        ``top_p``, stopping (by ``stopping_criteria`` or ``stop_strings`` for one text at a time). Beams, assistants and
        guidance are refused. All adapters run as one, with K caches.

        Args:
            inputs: ``input_ids`` (N, T), padded on the left, and ``attention_mask``.
            num_samples: so many evenly spaced samples; None for all.
            options: those of ``generate``, such as ``max_new_tokens``.

        Returns:
            `Generated`: sequences, and `TextScores` of the new tokens.
        """
        _require_ids(inputs, "inputs_embeds")
        _, complete = self._validated({"num_samples": num_samples})
        chosen = [self._store.read(index) for index in self._chosen(complete)]
        fixed, present = self._fixed(), parameters_of(self.model)
        device = next(self.model.parameters()).device
        stacked = {n: torch.stack([sample[n] for sample in chosen]).to(device, present[n].dtype) for n in chosen[0]}
        state = {**on_device(fixed, device), **stacked}
        network = self._runner.network().with_tensors(state)
        return generate(network, len(chosen), {name: t.to(device) for name, t in inputs.items()}, dict(options))


def _require_ids(inputs: Any, *others: str) -> None:
    """Raise TypeError unless these are inputs by name, among them ``input_ids`` or one of the others."""
    if not isinstance(inputs, Mapping) or not any(isinstance(inputs.get(n), Tensor) for n in ("input_ids", *others)):
        raise TypeError(f"inputs must be a dictionary with the tensor 'input_ids', got {type(inputs).__name__}")
