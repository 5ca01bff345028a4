"""Posterior samples in a folder, which grows by a file and a line of its index with each sample."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from learned_samplers.base.files import LOCK, FolderLock, append, write_atomically
from learned_samplers.posterior.folder_index import Index, header, read_index, record
from learned_samplers.posterior.store import Entry, MemoryStore, Progress, compare_settings, validate_counts
from learned_samplers.posterior.tensor_files import Tensors, read_tensors, require_finite, write_tensors

INDEX = "index.jsonl"
FIXED = "fixed.safetensors"


class FolderStore:
    """Samples as files: ``step-<step>.safetensors`` each, ``index.jsonl``, and ``fixed.safetensors``.

    The index begins with a line of settings; every further line adds a sample and says how far the collector has come.
    It is rewritten only when samples are dropped, and has the checksums of the files, so that those of another run are
    refused. A last line that is not whole (a crash) does not count, and a file
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
        self._checksums: dict[str, str] = {}
        self._fixed_checksum: str | None = None
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
                self._write_index(self.entries, self.progress, self._checksums)
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
        index = read_index(path)
        self.settings = index.settings
        self._adopt(index)
        validate_counts(str(path), self.progress, *self.entries)
        if settings is not None:
            compare_settings({**settings, "shapes": self.settings["shapes"]}, self.settings, str(self.folder))
            if not self.entries and settings["shapes"] != self.settings["shapes"]:
                self.settings, self._size = settings, 0  # nothing is sampled yet: written anew
        self.require(self.entries)
        # Without samples it is left from a first sample that could not be written.
        if self.entries:
            self.fixed = {}
            if (self.folder / FIXED).is_file():
                tensors, metadata = self._read(self.folder / FIXED)
                self.fixed, self.frozen = tensors, dict(metadata.get("frozen", {}))

    def _read(self, path: Path) -> tuple[Tensors, dict[str, Any]]:
        return read_tensors(path, self.device, self._checksums.get(path.name))

    def warn_of_unnamed(self) -> None:
        """Warn where the folder holds more files of samples that the index does not name than a crash leaves."""
        named = {self._file(entry).name for entry in self.entries}
        unnamed = sorted({path.name for path in self.folder.glob("step-*.safetensors")} - named)
        if len(unnamed) > 1:
            warnings.warn(
                f"{self.folder} holds {len(unnamed)} files of samples ({unnamed[0]}, ...) beside the {len(named)} that "
                f"{INDEX} names: they are not read. Its end may be lost, or the run went back to an earlier checkpoint",
                stacklevel=4,
            )

    def _file(self, entry: Entry) -> Path:
        return self.folder / f"step-{entry.step:010d}.safetensors"

    def require(self, entries: Sequence[Entry]) -> None:
        """Raise ValueError if the file of one of them is missing."""
        for entry in entries:
            if not self._file(entry).is_file():
                raise ValueError(f"{self._file(entry)}: the sample of step {entry.step} is missing")

    def _write_index(self, entries: Sequence[Entry], progress: Progress, checksums: Mapping[str, str]) -> None:
        names = {self._file(entry).name for entry in entries} | ({FIXED} if entries else set())
        kept = {name: digest for name, digest in checksums.items() if name in names}
        data = header(self.settings) + record(entries, progress, kept)
        write_atomically(self.folder / INDEX, data, clean=False)
        self._checksums, self._size = kept, len(data)

    def _add_to_index(self, entries: Sequence[Entry], progress: Progress, checksums: dict[str, str]) -> None:
        data = record(entries, progress, {k: v for k, v in checksums.items() if self._checksums.get(k) != v})
        append(self.folder / INDEX, self._size, data)
        self._checksums, self._size = checksums, self._size + len(data)

    def read(self, index: int) -> Tensors:
        entry = self.entries[index]
        tensors, metadata = self._read(self._file(entry))
        if metadata.get("step") != entry.step:
            raise ValueError(f"{self._file(entry)}: belongs to step {metadata.get('step')}, not to step {entry.step}")
        for name, shape in self.settings["shapes"].items():
            stored = list(tensors[name].shape) if name in tensors else None
            if stored != shape:
                raise ValueError(f"{self._file(entry)}: {name!r} has shape {stored}, the index says {shape}")
        require_finite(self._file(entry), tensors, self.settings["shapes"])
        return tensors

    def set_fixed(self, fixed: Tensors, frozen: Mapping[str, str] | None = None) -> None:
        frozen = dict(frozen or {})
        if fixed or frozen:
            self._require_lock()
            self._fixed_checksum = write_tensors(self.folder / FIXED, fixed, {"frozen": frozen}, clean=False)
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
        checksums = dict(self._checksums)
        if self._fixed_checksum is not None:
            checksums[FIXED] = self._fixed_checksum
        before, written = [self._file(entry) for entry in self.entries], list[Path]()
        try:
            for entry in fresh:
                if entry in added:
                    path = self._file(entry)
                    written.append(path)
                    checksums[path.name] = write_tensors(path, added[entry], asdict(entry), clean=False)
            self.require(fresh)
            if grows:
                self._add_to_index(fresh, progress, checksums)
            else:
                self._write_index(entries, progress, checksums)
        except BaseException:
            # A signal may come while the folder is synced, when the new index is in its place: what it names counts.
            self._adopt(read_index(self.folder / INDEX))
            self._remove([*written, *(before if delete and not grows else ())])
            raise
        self.entries, self.progress = list(entries), progress
        self._remove(before if delete and not grows else ())

    def _adopt(self, index: Index) -> None:
        self.entries, self.progress = index.entries, index.progress
        self._checksums, self._size = index.checksums, index.size

    def _remove(self, files: Sequence[Path]) -> None:
        """Remove those of some files of samples that are no longer held."""
        held = {self._file(entry) for entry in self.entries}
        for path in files:
            if path not in held:
                path.unlink(missing_ok=True)

    def set_settings(self, settings: Mapping[str, Any]) -> None:
        """Keep these settings instead of those in the index."""
        if self.settings != settings:
            self._require_lock()
            self.settings = dict(settings)
            self._write_index(self.entries, self.progress, self._checksums)

    def clear(self) -> None:
        """Drop all samples, and the files that a crash kept from the index."""
        self.commit([], {}, Progress())
        self._fixed_checksum = None
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
    """Return whether a file is an unfinished write of the folder's, which the holder of the lock may remove."""
    ours = (".step-", f".{INDEX}.", f".{FIXED}.", f"{LOCK}.")
    return name.endswith(".tmp") and name.startswith(ours)
