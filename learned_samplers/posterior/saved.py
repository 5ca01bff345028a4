"""Collections of samples as one file: writing it, reading it, and checking that it fits a network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from learned_samplers.posterior.folder import FolderStore
from learned_samplers.posterior.frozen import Fingerprints
from learned_samplers.posterior.names import (
    normalisation_buffers,
    parameters_of,
    plain_names,
    tensors_of,
)
from learned_samplers.posterior.storage import Entry, MemoryStore, MergedStore, Store, validate_counts
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
        own = tensors_of(model)
        fixed |= {name: own[name].detach().cpu() for name in frozen}
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
        **{f"{name}s": [getattr(entry, name) for entry in store.entries] for name in ("step", "cycle", "chain")},
        "frozen": frozen,
    }
    write_tensors(path, tensors, metadata)


def read_collection(path: Path, model: nn.Module, device: torch.device) -> tuple[Store, dict[str, Any], Reestimated]:
    """Samples, settings and re-estimated buffers (by chain and step) of a saved file or of a folder of samples.

    Raises:
        FileNotFoundError: nothing there.
        ValueError: a file that is truncated, damaged or not of this format; the message names it.
    """
    if path.is_dir():
        folder = FolderStore(path, None, device)
        return folder, folder.settings, {}
    tensors, metadata = read_tensors(path, device)
    groups: dict[str, Tensors] = {"samples": {}, "fixed": {}, "reestimated": {}}
    try:
        settings, steps, cycles = metadata["settings"], metadata["steps"], metadata["cycles"]
        chains = metadata.get("chains", [0] * len(steps))
        entries = [Entry(*row) for row in zip(steps, cycles, range(1, len(steps) + 1), chains, strict=True)]
        frozen = {str(name): str(digest) for name, digest in metadata.get("frozen", {}).items()}
        validate_counts(str(path), *entries)
        require_finite(path, tensors, [f"samples/{name}" for name in settings["shapes"]])
        for key, tensor in tensors.items():
            group, name = key.split("/", 1)
            groups[group][name] = tensor
        _rename(groups, settings, model)
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

    stores = []
    for chain in dict.fromkeys(chains):
        chosen = [k for k, entry in enumerate(entries) if entry.chain == chain]
        store = MemoryStore()
        rows = {steps[k]: {name: t[k] for name, t in groups["samples"].items()} for k in chosen}
        store.commit([entries[k] for k in chosen], rows, store.progress)
        store.set_fixed(groups["fixed"], frozen)
        stores.append((f"chain {chain} of {path}", store))
    whole: Store = stores[0][1] if len(stores) == 1 else MergedStore(stores)
    buffers = {
        (entry.chain, entry.step): {name: t[k] for name, t in groups["reestimated"].items()}
        for k, entry in enumerate(entries)
    }
    return whole, settings, buffers if groups["reestimated"] else {}


def _rename(groups: dict[str, Tensors], settings: dict[str, Any], model: nn.Module) -> None:
    """Give the tensors of a file plain names, if it was written under those of a wrapped or compiled network."""
    names = {name for group in groups.values() for name in group}
    if names <= set(tensors_of(model)):
        return
    plain = plain_names(names)
    for group, tensors in groups.items():
        groups[group] = {plain[name]: tensor for name, tensor in tensors.items()}
    settings["shapes"] = {plain.get(name, name): shape for name, shape in settings["shapes"].items()}


def validate_network(model: nn.Module, store: Store, settings: Mapping[str, Any], source: str) -> None:
    """Raise ValueError unless the samples and the fixed tensors stored with them are those that ``model`` has."""
    own = {name: list(tensor.shape) for name, tensor in tensors_of(model).items()}
    stored = {name: list(shape) for name, shape in settings["shapes"].items()}
    if store.entries:
        tensors = {**(store.fixed or {}), **store.read(0)}
        stored |= {name: list(tensor.shape) for name, tensor in tensors.items()}
        left_out = set(store.frozen) | set(normalisation_buffers(model) if settings["buffers"] == "reestimate" else ())
        own = {name: shape for name, shape in own.items() if name not in left_out or name in stored}
    else:
        own = {name: shape for name, shape in own.items() if name in stored}
    for name in (*stored, *own):
        if own.get(name) != stored.get(name):
            there, here = (
                f"has shape {tuple(shapes[name])}" if name in shapes else "does not exist" for shapes in (stored, own)
            )
            raise ValueError(f"{source}: {name!r} {there} there and {here} in {type(model).__name__}")
