"""Reading collections of samples that were saved, and checking that they fit a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from learned_samplers.posterior.prediction import normalisation_buffers
from learned_samplers.posterior.storage import Entry, FolderStore, MemoryStore, Tensors, read_safetensors


def read_collection(
    path: Path, device: torch.device
) -> tuple[MemoryStore | FolderStore, dict[str, Any], dict[int, Tensors]]:
    """Samples, settings and re-estimated buffers (by step) of a saved file or of a folder of samples.

    Raises:
        FileNotFoundError: nothing there.
        ValueError: a file that is truncated or not of this format; the message names it.
    """
    if path.is_dir():
        folder = FolderStore(path, None, device)
        return folder, folder.settings, {}
    tensors, metadata = read_safetensors(path, device)
    groups: dict[str, Tensors] = {"samples": {}, "fixed": {}, "reestimated": {}}
    try:
        settings, steps, cycles = metadata["settings"], metadata["steps"], metadata["cycles"]
        entries = [Entry(step, cycle, k + 1) for k, (step, cycle) in enumerate(zip(steps, cycles, strict=True))]
        for key, tensor in tensors.items():
            group, name = key.split("/", 1)
            groups[group][name] = tensor
        for name, shape in settings["shapes"].items():
            if groups["samples"][name].shape != (len(steps), *shape):
                raise ValueError(f"{path}: {name!r} has shape {tuple(groups['samples'][name].shape)}")
        if settings["buffers"] is None:
            raise KeyError("buffers")
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: not a file of posterior samples ({type(error).__name__}: {error})") from error

    def by_step(group: str) -> dict[int, Tensors]:
        return {step: {name: t[k] for name, t in groups[group].items()} for k, step in enumerate(steps)}

    store = MemoryStore()
    store.commit(entries, by_step("samples"), store.progress)
    store.set_fixed(groups["fixed"])
    return store, settings, by_step("reestimated") if groups["reestimated"] else {}


def validate_network(model: nn.Module, store: MemoryStore | FolderStore, settings: dict[str, Any], source: str) -> None:
    """Raise ValueError unless the samples and the fixed tensors stored with them are those that ``model`` has."""
    own = {name: list(tensor.shape) for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    stored = {name: list(shape) for name, shape in settings["shapes"].items()}
    if store.entries:
        tensors = {**(store.fixed or {}), **store.read(0)}
        stored |= {name: list(tensor.shape) for name, tensor in tensors.items()}
        if settings["buffers"] == "reestimate":
            own = {name: shape for name, shape in own.items() if name not in normalisation_buffers(model)}
    else:
        own = {name: shape for name, shape in own.items() if name in stored}
    for name in (*stored, *own):
        if own.get(name) != stored.get(name):
            there, here = (
                f"has shape {tuple(shapes[name])}" if name in shapes else "does not exist" for shapes in (stored, own)
            )
            raise ValueError(f"{source}: {name!r} {there} there and {here} in {type(model).__name__}")
