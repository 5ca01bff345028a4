"""Posterior samples on disk: a folder that grows by a file and a line of its index a sample, and one file of all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from learned_samplers.base.files import LOCK, FolderLock, append, write_atomically
from learned_samplers.posterior.network import parameters_of, tensors_of
from learned_samplers.posterior.normalisation import normalisation_buffers
from learned_samplers.posterior.snapshots import Fingerprints
from learned_samplers.posterior.store import (
    Entry,
    MemoryStore,
    Progress,
    Store,
    compare_settings,
    validate_counts,
)
from learned_samplers.posterior.tensor_files import (
    FORMAT,
    Tensors,
    checksum,
    fingerprint,
    read_tensors,
    require_finite,
    write_tensors,
)

VERSION = 2
INDEX = "index.jsonl"
FIXED = "fixed.safetensors"


class FolderStore:
    """Samples as files: ``step-<step>.safetensors`` each, ``index.jsonl``, and ``fixed.safetensors``.

    The index begins with a line of settings; every further line adds a sample and says how far the collector has come.
    It is rewritten only when samples are dropped. A last line that is not whole (a crash) does not count, and a file
    that the index does not name (a crash between two writes, or going back to an earlier checkpoint) is ignored, and
    replaced when its step is reached again.

    Args:
        folder: created when missing; an existing one must be empty or hold an index with the same settings. What a
            killed process has left of its writes is removed.
        settings: what must agree for the folder to be continued, as JSON values; None to read it only. Of the shapes
            of what is sampled the folder keeps its own once it holds samples: the caller compares them.
        device: where tensors are read to.

    Raises:
        ValueError: a folder with something else in it, a broken index, or an index with other settings.
        RuntimeError: another collector is writing to the folder (see `FolderLock`).
    """

    def __init__(self, folder: str | os.PathLike[str], settings: dict[str, Any] | None, device: torch.device) -> None:
        self.folder, self.device = Path(folder), device
        self.entries: list[Entry] = []
        self.progress = Progress()
        self.fixed: Tensors | None = None
        self.frozen: dict[str, str] = {}
        self._size = 0
        self._lock: FolderLock | None = None
        if settings is None:
            self._open(None)
            return
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"path={str(self.folder)!r} is not a folder")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._refuse_other_files()
        self._lock = FolderLock(self.folder)
        try:
            for file in self.folder.iterdir():
                if _is_temporary(file.name):
                    file.unlink()
            if (self.folder / INDEX).is_file():
                self._open(settings)
            else:
                self._refuse_other_files()
                self.settings = settings
            if not self._size:
                self._write_index(self.entries, self.progress)
        except BaseException:
            self._lock.release()
            raise

    def _refuse_other_files(self) -> None:
        """Raise ValueError if the folder holds files and no index."""
        names = {file.name for file in self.folder.iterdir() if not _is_temporary(file.name)} - {LOCK}
        if names and INDEX not in names:
            if all(name.startswith("step-") or name == FIXED for name in names):
                raise ValueError(
                    f"path={str(self.folder)!r} holds samples and no {INDEX} that would say what they are: restore it, "
                    "or delete the folder to start again"
                )
            raise ValueError(f"path={str(self.folder)!r} is not an empty folder and holds no {INDEX}")

    def _open(self, settings: dict[str, Any] | None) -> None:
        path = self.folder / INDEX
        if not path.is_file():
            raise FileNotFoundError(f"no posterior samples in {self.folder}: {INDEX} is missing")
        try:
            self._read_index(path, path.read_bytes())
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if str(error).startswith(str(path)):
                raise
            raise ValueError(f"{path}: broken index ({type(error).__name__}: {error})") from error
        validate_counts(str(path), self.progress, *self.entries)
        if settings is not None:
            compare_settings({**settings, "shapes": self.settings["shapes"]}, self.settings, str(self.folder))
            if not self.entries and settings["shapes"] != self.settings["shapes"]:
                self.settings, self._size = settings, 0  # nothing is sampled yet: written anew
        self._require(self.entries)
        # Without samples it is left from a first sample that could not be written.
        if self.entries:
            self.fixed = {}
            if (self.folder / FIXED).is_file():
                self.fixed, metadata = read_tensors(self.folder / FIXED, self.device)
                self.frozen = metadata.get("frozen", {})

    def _read_index(self, path: Path, data: bytes) -> None:
        whole, torn = data[: data.rfind(b"\n") + 1], data[data.rfind(b"\n") + 1 :]
        if _is_whole(torn[:-1]):
            raise ValueError(f"{path}: its last line is damaged (no end of line)")
        header, *lines = whole.decode().splitlines() or [""]
        content = _checked(header)
        if content["format"] != FORMAT or content["version"] != VERSION:
            raise ValueError(f"{path}: not an index of {FORMAT}, version {VERSION}")
        self.settings = dict(content["settings"])
        for number, line in enumerate(lines, 2):
            try:
                record = _checked(line)
            except ValueError as error:
                raise ValueError(f"{path}: line {number} is damaged ({error})") from error
            self.progress = Progress(*record["progress"])
            self.entries += [Entry(*entry) for entry in record["entries"]]
        self._size = len(whole)

    def _file(self, entry: Entry) -> Path:
        return self.folder / f"step-{entry.step:010d}.safetensors"

    def _require(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            if not self._file(entry).is_file():
                raise ValueError(f"{self._file(entry)}: the sample of step {entry.step} is missing")

    def _write_index(self, entries: Sequence[Entry], progress: Progress) -> None:
        header = _with_checksum({"format": FORMAT, "version": VERSION, "settings": self.settings})
        data = header + _record(entries, progress)
        write_atomically(self.folder / INDEX, data, clean=False)
        self._size = len(data)

    def _add_to_index(self, entries: Sequence[Entry], progress: Progress) -> None:
        data = _record(entries, progress)
        append(self.folder / INDEX, self._size, data)
        self._size += len(data)

    def read(self, index: int) -> Tensors:
        entry = self.entries[index]
        tensors, metadata = read_tensors(self._file(entry), self.device)
        if metadata.get("step") != entry.step:
            raise ValueError(f"{self._file(entry)}: belongs to step {metadata.get('step')}, not to step {entry.step}")
        for name, shape in self.settings["shapes"].items():
            found = list(tensors[name].shape) if name in tensors else None
            if found != shape:
                raise ValueError(f"{self._file(entry)}: {name!r} has shape {found}, the index says {shape}")
        require_finite(self._file(entry), tensors, self.settings["shapes"])
        return tensors

    def set_fixed(self, fixed: Tensors, frozen: Mapping[str, str] | None = None) -> None:
        frozen = dict(frozen or {})
        if fixed or frozen:
            self._require_lock()
            write_tensors(self.folder / FIXED, fixed, {"frozen": frozen}, clean=False)
        self.fixed, self.frozen = fixed, frozen

    def _require_lock(self) -> None:
        if self._lock is None:
            raise RuntimeError(f"{self.folder} was opened for reading only")
        self._lock.require_held()

    def commit(
        self, entries: Sequence[Entry], added: Mapping[Entry, Tensors], progress: Progress, *, delete: bool = True
    ) -> None:
        """See `MemoryStore.commit`. Order: new files, then the index, then the files that it dropped."""
        self._require_lock()
        kept = len(self.entries)
        grows = list(entries[:kept]) == self.entries and len(entries) > kept
        fresh = entries[kept:] if grows else entries
        written: list[Path] = []
        try:
            for entry in fresh:
                if entry in added:
                    written.append(self._file(entry))
                    write_tensors(written[-1], added[entry], asdict(entry), clean=False)
            self._require(fresh)
            self._add_to_index(fresh, progress) if grows else self._write_index(entries, progress)
        except BaseException:
            for path in written:
                path.unlink(missing_ok=True)
            raise
        dropped = {entry.step for entry in self.entries} - {entry.step for entry in entries} if not grows else set()
        files = [self._file(entry) for entry in self.entries if entry.step in dropped]
        self.entries, self.progress = list(entries), progress
        for path in files if delete else ():
            path.unlink(missing_ok=True)

    def set_settings(self, settings: Mapping[str, Any]) -> None:
        """Keep these settings instead of those in the index."""
        if self.settings != settings:
            self._require_lock()
            self.settings = dict(settings)
            self._write_index(self.entries, self.progress)

    def clear(self) -> None:
        """Drop all samples, and the files that a crash kept from the index."""
        self.commit([], {}, Progress())
        self.fixed, self.frozen = None, {}
        for path in (*self.folder.glob("step-*.safetensors"), self.folder / FIXED):
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Let another collector write to the folder. What is there can still be read."""
        if self._lock is not None:
            self._lock.release()


class RecordsStore(MemoryStore):
    """The records alone of samples that the first process of a replicated or sharded chain writes to ``folder``.

    It begins with those that are there, where it can see the folder: then all processes refuse another chain together.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        super().__init__()
        self.folder = folder
        if (Path(folder) / INDEX).is_file():
            written = FolderStore(folder, None, torch.device("cpu"))
            self.commit(written.entries, {}, written.progress)

    def read(self, index: int) -> Tensors:
        raise RuntimeError(f"the first process writes the samples of this chain: load them from {self.folder} there")

    def commit(
        self, entries: Sequence[Entry], added: Mapping[Entry, Tensors], progress: Progress, *, delete: bool = True
    ) -> None:
        super().commit(entries, {entry: {} for entry in entries}, progress)


def _is_temporary(name: str) -> bool:
    """Whether a file is an unfinished write of one of the folder's own; the holder of the lock may remove it."""
    ours = (".step-", f".{INDEX}.", f".{FIXED}.", f"{LOCK}.")
    return name.endswith(".tmp") and name.startswith(ours)


def _record(entries: Sequence[Entry], progress: Progress) -> bytes:
    content = {
        "progress": list(asdict(progress).values()),
        "entries": [list(asdict(entry).values()) for entry in entries],
    }
    return _with_checksum(content)


def _with_checksum(content: dict[str, Any]) -> bytes:
    """A line of the index: the checksum and the text of a JSON object."""
    text = json.dumps(content)
    return json.dumps([checksum(text), text]).encode() + b"\n"


def _is_whole(line: bytes) -> bool:
    try:
        return bool(_checked(line.decode()))
    except (ValueError, RecursionError):
        return False


def _checked(line: str) -> dict[str, Any]:
    sealed = json.loads(line)
    if not isinstance(sealed, list) or len(sealed) != 2 or not isinstance(sealed[1], str):
        raise ValueError("not a checksum and a text")
    if checksum(sealed[1]) != sealed[0]:
        raise ValueError("it has changed since it was written")
    content = json.loads(sealed[1])
    if not isinstance(content, dict):
        raise ValueError("not a JSON object")
    return content


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


def read_collection(path: Path, device: torch.device) -> tuple[Store, dict[str, Any], Reestimated]:
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
        settings, steps, cycles, chains = (metadata[name] for name in ("settings", "steps", "cycles", "chains"))
        entries = [Entry(*row) for row in zip(steps, cycles, range(1, len(steps) + 1), chains, strict=True)]
        frozen = {str(name): str(digest) for name, digest in metadata["frozen"].items()}
        validate_counts(str(path), *entries)
        require_finite(path, tensors, [f"samples/{name}" for name in settings["shapes"]])
        for key, tensor in tensors.items():
            group, name = key.split("/", 1)
            groups[group][name] = tensor
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


def validate_network(model: nn.Module, store: Store, settings: Mapping[str, Any], source: str) -> None:
    """Raise ValueError unless the samples and the fixed tensors stored with them are those that ``model`` has."""
    if empty := next((name for name, tensor in tensors_of(model).items() if tensor.is_meta), None):
        raise ValueError(f"model: {empty!r} is on the meta device, without values: call model.to_empty(device=…) first")
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
