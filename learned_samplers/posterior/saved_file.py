"""A collection of samples as one file, and whether a network fits what was stored."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from learned_samplers.posterior.network import parameters_of, tensors_of
from learned_samplers.posterior.normalisation import normalisation_buffers
from learned_samplers.posterior.on_disk import FolderStore
from learned_samplers.posterior.snapshots import Fingerprints
from learned_samplers.posterior.store import Entry, MemoryStore, Store, validate_counts
from learned_samplers.posterior.tensor_files import Tensors, fingerprint, read_tensors, require_finite, write_tensors

Reestimated = dict[tuple[int, int], Tensors]


def save_collection(
    path: Path,
    model: nn.Module,
    store: Store,
    settings: Mapping[str, Any],
    reestimated: Mapping[tuple[int, int], Tensors],
    fingerprints: Fingerprints,
    store_frozen: bool | None,
) -> None:
    """Write a collection to one file; see `SampleCollection.save`."""
    fixed, frozen = dict(store.fixed or {}), dict(store.frozen)
    if store_frozen and frozen:
        fingerprints.validate(frozen, "the samples")
        tensors_now = tensors_of(model)
        fixed |= {name: tensors_now[name].detach().cpu() for name in frozen}
        frozen = {}
    elif store_frozen is False:
        left_out = [name for name in fixed if name in parameters_of(model)]
        frozen |= {name: fingerprint(fixed.pop(name)) for name in left_out}
    samples = [store.read(index) for index in range(len(store.entries))]
    for index, sample in enumerate(samples):  # which the user may have written to
        require_finite(f"sample {index}", sample, settings["shapes"])
    tensors = {f"samples/{name}": torch.stack([sample[name] for sample in samples]) for name in samples[0]}
    tensors |= {f"fixed/{name}": tensor for name, tensor in fixed.items()}
    keys = [(entry.chain, entry.step) for entry in store.entries]
    if all(key in reestimated for key in keys):
        buffers = [reestimated[key] for key in keys]
        tensors |= {f"reestimated/{name}": torch.stack([b[name] for b in buffers]) for name in buffers[0]}
    metadata = {
        "settings": dict(settings),
        **{
            f"{name}s": [getattr(entry, name) for entry in store.entries]
            for name in ("step", "cycle", "chain", "temperature", "kinetic")
        },
        "frozen": frozen,
    }
    write_tensors(path, tensors, metadata)


def read_collection(path: Path, device: torch.device) -> tuple[Store, dict[str, Any], Reestimated]:
    """Samples, settings and re-estimated buffers (by chain and step) of a saved file or of a folder of samples.

    Raises:
        FileNotFoundError: nothing there.
        ValueError: a file that is truncated, damaged or not of this format; the message names it.
    """
    if path.is_dir():
        folder = FolderStore(path, None, device)
        folder.warn_of_unnamed()
        return folder, folder.settings, {}
    tensors, metadata = read_tensors(path, device)
    try:
        settings, steps, cycles, chains = (metadata[name] for name in ("settings", "steps", "cycles", "chains"))
        unknown = [None] * len(steps)  # of before they were recorded
        temperatures, kinetic = metadata.get("temperatures", unknown), metadata.get("kinetics", unknown)
        columns = steps, cycles, range(1, len(steps) + 1), chains, temperatures, kinetic
        entries = [Entry(*row) for row in zip(*columns, strict=True)]
        frozen = {str(name): str(digest) for name, digest in metadata["frozen"].items()}
        validate_counts(str(path), *entries)
        groups = _grouped(tensors)
        require_finite(path, groups["samples"], settings["shapes"])
        for name, tensor in groups["samples"].items():
            shape = settings["shapes"].get(name, tensor.shape[1:])
            if tensor.shape != (len(steps), *shape):
                raise ValueError(f"{path}: {name!r} has shape {tuple(tensor.shape)}, not {(len(steps), *shape)}")
        missing = [name for name in settings["shapes"] if name not in groups["samples"]]
        if missing or settings["buffers"] is None:
            raise KeyError(*missing or ["buffers"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: not a file of posterior samples ({type(error).__name__}: {error})") from error
    except ValueError as error:
        if str(error).startswith(str(path)):
            raise
        raise ValueError(f"{path}: not a file of posterior samples ({error})") from error

    store = MemoryStore()
    rows = {entry: {name: t[k] for name, t in groups["samples"].items()} for k, entry in enumerate(entries)}
    store.commit(entries, rows, store.progress)
    store.set_fixed(groups["fixed"], frozen)
    buffers = {
        (entry.chain, entry.step): {name: t[k] for name, t in groups["reestimated"].items()}
        for k, entry in enumerate(entries)
    }
    return store, settings, buffers if groups["reestimated"] else {}


def _grouped(tensors: Tensors) -> dict[str, Tensors]:
    """Return the tensors of a file by the first part of their names, and then by the rest."""
    groups: dict[str, Tensors] = {"samples": {}, "fixed": {}, "reestimated": {}}
    for key, tensor in tensors.items():
        group, name = key.split("/", 1)
        groups[group][name] = tensor
    return groups


def validate_network(model: nn.Module, store: Store, settings: Mapping[str, Any], source: str) -> None:
    """Raise ValueError unless the samples and the fixed tensors stored with them are those that ``model`` has."""
    if empty := next((name for name, tensor in tensors_of(model).items() if tensor.is_meta), None):
        raise ValueError(f"model: {empty!r} is on the meta device, without values: call model.to_empty(device=…) first")
    model_shapes = {name: list(tensor.shape) for name, tensor in tensors_of(model).items()}
    stored = {name: list(shape) for name, shape in settings["shapes"].items()}
    if store.entries:
        tensors = {**(store.fixed or {}), **store.read(0)}
        stored |= {name: list(tensor.shape) for name, tensor in tensors.items()}
        left_out = set(store.frozen) | set(normalisation_buffers(model) if settings["buffers"] == "reestimate" else ())
        model_shapes = {name: shape for name, shape in model_shapes.items() if name not in left_out or name in stored}
    else:
        model_shapes = {name: shape for name, shape in model_shapes.items() if name in stored}
    for name in (*stored, *model_shapes):
        if model_shapes.get(name) != stored.get(name):
            stored_shape, model_shape = (
                f"has shape {tuple(shapes[name])}" if name in shapes else "does not exist"
                for shapes in (stored, model_shapes)
            )
            raise ValueError(f"{source}: {name!r} {stored_shape} there and {model_shape} in {type(model).__name__}")
