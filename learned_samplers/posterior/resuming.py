"""Restores a collector's store from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from learned_samplers.posterior.folder import FolderStore
from learned_samplers.posterior.snapshot import on_device
from learned_samplers.posterior.storage import (
    ElsewhereStore,
    Entry,
    MemoryStore,
    Progress,
    compare_settings,
    validate_counts,
)
from learned_samplers.posterior.tensor_files import require_finite


def is_on_disk(store: MemoryStore | FolderStore) -> bool:
    """Whether a checkpoint names the samples of this store without holding them."""
    return isinstance(store, FolderStore | ElsewhereStore)


def another_chain(place: str, seen: int, folder: Path) -> str:
    """The error where a sampler, at ``place``, does not go on from step ``seen`` of the chain that a folder holds."""
    return (
        f"the sampler {place}, but {folder} holds a chain up to step {seen}: to continue it, load the state dicts of "
        "the sampler and of PosteriorSamples from their checkpoint; to begin it again, call restart() on this object, "
        f"or delete {folder}"
    )


def load_state(
    store: MemoryStore | FolderStore, state: Mapping[str, Any], settings: Mapping[str, Any], device: torch.device
) -> Progress:
    """Restore a store from a state dict of `PosteriorSamples`; see `PosteriorSamples.load_state_dict`."""
    try:
        compare_settings(settings, state["settings"], "the state dict")
        progress = Progress(**state["progress"])
        entries = [Entry(**entry) for entry in state["entries"]]
        samples, fixed, frozen = state["samples"], state["fixed"], dict(state.get("frozen", {}))
        if samples is not None and len(samples) != len(entries):
            raise ValueError(f"the state dict lists {len(entries)} samples and holds {len(samples)}")
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a state dict of PosteriorSamples ({type(error).__name__}: {error})") from error
    validate_counts("the state dict", progress, *entries)
    in_folder = is_on_disk(store)
    if (samples is None) != in_folder:
        kinds = ("on disk", "in memory")
        raise ValueError(f"the state dict's samples are {kinds[not in_folder]}, this collection's {kinds[in_folder]}")
    if in_folder:
        stride = max(progress.stride, store.progress.stride)
        progress = replace(progress, stride=stride)
        entries = [entry for entry in entries if entry.number % stride == 0]
    added = {} if samples is None else {entry.step: dict(s) for entry, s in zip(entries, samples, strict=True)}
    for step, sample in added.items():
        shapes = {name: list(sample[name].shape) for name in settings["shapes"] if name in sample}
        compare_settings({"shapes": settings["shapes"]}, {"shapes": shapes}, f"the sample of step {step}")
        require_finite(f"the sample of step {step}", sample, shapes)
        added[step] = on_device(sample, device)
    if fixed is not None:
        fixed = on_device(fixed, device)
        # First, because writing it can fail; alone it changes nothing that is read.
        store.set_fixed(fixed, frozen)
    store.commit(entries, added, progress, delete=False)
    store.fixed, store.frozen = fixed, frozen
    return progress
