"""Where posterior samples are kept: in memory, or one safetensors file a sample in a folder with a JSON index.

Both stores change in one move: ``commit`` either does all of its work or leaves the store as it was.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base.files import write_atomically

FORMAT = "learned-samplers posterior samples"
VERSION = 1
INDEX = "index.json"
FIXED = "fixed.safetensors"

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Entry:
    """One kept state: the sampler's step and cycle, and its number (from 1) among the states that were due."""

    step: int
    cycle: int
    number: int


@dataclass(frozen=True)
class Progress:
    """How far a collector has come.

    last_step: the last step seen; phase_start: the last step that was not worth keeping; candidates: the number of
    states due so far; stride: every stride-th of those is kept.
    """

    last_step: int = 0
    phase_start: int = 0
    candidates: int = 0
    stride: int = 1


def write_safetensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, Any]) -> None:
    """Write tensors and JSON metadata as one safetensors file, atomically."""
    from safetensors.torch import save

    # Serialised first and written by Python, so that a full disk is an OSError with its errno.
    header = {"format": FORMAT, "version": str(VERSION), "content": json.dumps(metadata)}
    write_atomically(path, save({name: tensor.contiguous() for name, tensor in tensors.items()}, metadata=header))


def read_safetensors(path: Path, device: torch.device) -> tuple[Tensors, dict[str, Any]]:
    """Read what :func:`write_safetensors` wrote.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is truncated or not one of ours; the message names it and the reason.
    """
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise FileNotFoundError(f"no such file: {path}")
    try:
        with safe_open(str(path), framework="pt", device=str(device)) as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise ValueError(f"{path}: not a file of {FORMAT} (its format is {metadata.get('format')!r})")
            if metadata.get("version") != str(VERSION):
                raise ValueError(f"{path}: version {metadata.get('version')!r} cannot be read, only {VERSION}")
            return {name: file.get_tensor(name) for name in file.keys()}, json.loads(metadata["content"])  # noqa: SIM118
    except (SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise ValueError(f"{path}: truncated or not a safetensors file ({error})") from error


class MemoryStore:
    """Samples as tensors in memory."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.progress = Progress()
        self.fixed: Tensors | None = None
        self._samples: dict[int, Tensors] = {}

    def read(self, index: int) -> Tensors:
        return self._samples[self.entries[index].step]

    def set_fixed(self, fixed: Tensors) -> None:
        self.fixed = fixed

    def commit(
        self, entries: Sequence[Entry], added: Mapping[int, Tensors], progress: Progress, *, delete: bool = True
    ) -> None:
        """Make ``entries`` the samples held; ``added`` maps the steps of the new ones to their tensors.

        ``delete`` has a meaning on disk only: whether the files of the samples that are no longer held go too.
        """
        samples = {**self._samples, **added}
        self._samples = {entry.step: samples[entry.step] for entry in entries}
        self.entries, self.progress = list(entries), progress


class FolderStore:
    """Samples as files: ``step-<step>.safetensors`` each, ``index.json``, and ``fixed.safetensors``.

    A file that the index does not name (left by a crash between two writes, or by going back to an earlier
    checkpoint) is ignored, and replaced when its step is reached again.

    Args:
        folder: created when missing; an existing one must be empty or hold an index with the same settings.
        settings: what must agree for the folder to be continued, as JSON values; None to read it only.
        device: where tensors are read to.

    Raises:
        ValueError: a folder with something else in it, a broken index, or an index with other settings.
    """

    def __init__(self, folder: str | os.PathLike[str], settings: dict[str, Any] | None, device: torch.device) -> None:
        self.folder, self.device = Path(folder), device
        self.entries: list[Entry] = []
        self.progress = Progress()
        self.fixed: Tensors | None = None
        if (self.folder / INDEX).is_file():
            self._open(settings)
        elif settings is None:
            raise FileNotFoundError(f"no posterior samples in {self.folder}: {INDEX} is missing")
        elif self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
            raise ValueError(f"path={str(self.folder)!r} is not an empty folder and holds no {INDEX}")
        else:
            self.settings = settings
            self.folder.mkdir(parents=True, exist_ok=True)
            self._write_index([], self.progress)

    def _open(self, settings: dict[str, Any] | None) -> None:
        path = self.folder / INDEX
        try:
            index = json.loads(path.read_text())
            if index["format"] != FORMAT or index["version"] != VERSION:
                raise ValueError(f"{path}: not an index of {FORMAT}, version {VERSION}")
            self.settings = dict(index["settings"])
            self.entries = [Entry(**entry) for entry in index["entries"]]
            self.progress = Progress(**index["progress"])
        except (json.JSONDecodeError, KeyError, TypeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path}: broken index ({type(error).__name__}: {error})") from error
        if settings is not None:
            compare_settings(settings, self.settings, str(self.folder))
        self._require(self.entries)
        # Without samples it is left from a first sample that could not be written.
        if self.entries and (self.folder / FIXED).is_file():
            self.fixed, _ = read_safetensors(self.folder / FIXED, self.device)

    def _file(self, entry: Entry) -> Path:
        return self.folder / f"step-{entry.step:010d}.safetensors"

    def _require(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            if not self._file(entry).is_file():
                raise ValueError(f"{self._file(entry)}: the sample of step {entry.step} is missing")

    def _write_index(self, entries: Sequence[Entry], progress: Progress) -> None:
        index = {
            "format": FORMAT,
            "version": VERSION,
            "settings": self.settings,
            "progress": asdict(progress),
            "entries": [asdict(entry) for entry in entries],
        }
        write_atomically(self.folder / INDEX, json.dumps(index, indent=1).encode())

    def read(self, index: int) -> Tensors:
        return read_safetensors(self._file(self.entries[index]), self.device)[0]

    def set_fixed(self, fixed: Tensors) -> None:
        if fixed:
            write_safetensors(self.folder / FIXED, fixed, {})
        self.fixed = fixed

    def commit(
        self, entries: Sequence[Entry], added: Mapping[int, Tensors], progress: Progress, *, delete: bool = True
    ) -> None:
        """See :meth:`MemoryStore.commit`. Order: new files, then the index, then the files that it dropped."""
        written: list[Path] = []
        try:
            for entry in entries:
                if entry.step in added:
                    written.append(self._file(entry))
                    write_safetensors(written[-1], added[entry.step], asdict(entry))
            self._require(entries)
            self._write_index(entries, progress)
        except BaseException:
            for path in written:
                path.unlink(missing_ok=True)
            raise
        dropped = {entry.step for entry in self.entries} - {entry.step for entry in entries}
        files = [self._file(entry) for entry in self.entries if entry.step in dropped]
        self.entries, self.progress = list(entries), progress
        for path in files if delete else ():
            path.unlink(missing_ok=True)


def compare_settings(ours: Mapping[str, Any], theirs: Mapping[str, Any], source: str) -> None:
    """Raise ValueError naming the first setting in which a stored collection differs from this one."""
    for name, value in ours.items():
        if name not in theirs or theirs[name] != value:
            other = theirs.get(name, "nothing")
            if isinstance(value, dict) and isinstance(other, dict):
                keys = [key for key in {**value, **other} if value.get(key) != other.get(key)]
                name, value, other = f"{name}[{keys[0]!r}]", value.get(keys[0]), other.get(keys[0])
            raise ValueError(f"{name}={value!r} differs from {other!r} in {source}")


def chunks(total: int, size: int) -> Iterator[range]:
    """Consecutive index ranges of at most ``size`` that cover ``range(total)``."""
    for start in range(0, total, size):
        yield range(start, min(start + size, total))
