"""The finished runs of an experiment on disk, so that an interrupted command continues and repeats none of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

import learned_samplers
import meta_tasks
from learned_samplers.base.files import FolderLock, shared_lock, write_atomically
from learned_samplers.posterior.tensor_files import read_tensors, write_tensors
from meta_tasks.fingerprints import code_fingerprint, data_fingerprint, fingerprint

__all__ = ["RunStore", "data_fingerprint", "fingerprint"]

#: Where the code lies that runs are made by.
SOURCES = (
    *(Path(str(package.__file__)).parent for package in (learned_samplers, meta_tasks)),
    Path(__file__).parents[1],
)


class RunStore:
    """The runs below one folder: ``runs/<name>.json``, and what else a run leaves in folders beside it.

    A file holds the settings that a run depends on, its result, torch's version and the fingerprint of its data. It is
    written whole or not at all, as strict JSON, and read again only where all of these agree. It also says which code
    made the run: one of other code is read, for few changes of code change a run, and that is said in a line, once.
    A checksum tells a damaged file from a run.

    Before the first run is made the folder is locked against other processes, until the last store of this process on
    that folder is gone; reading takes no lock.

    Attributes:
        of_other_code: files that were read back and that other code has made, of a store and those `below` it.
    """

    def __init__(self, folder: Path, data: str | None = None, *, fresh: bool = False, locked: bool = True) -> None:
        self.folder, self.data, self.fresh, self.locked = folder, data, fresh, locked
        self.done: set[Path] = set()
        self.of_other_code: set[Path] = set()
        self._lock: FolderLock | None = None

    def below(self, name: str) -> RunStore:
        """A store of the same data for a folder inside this one."""
        store = RunStore(self.folder / name, self.data, fresh=self.fresh, locked=self.locked)
        store.of_other_code = self.of_other_code
        return store

    def path(self, name: str, folder: str = "runs", suffix: str = ".json") -> Path:
        """A file of the run of that name."""
        return self.folder / folder / f"{name}{suffix}"

    def run(self, name: str, settings: Mapping[str, Any], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The result of that name made with these settings: the one on disk, else that of ``make``, written there.

        A result comes as JSON gives it back, the first time too (tuples as lists).
        """
        result = self.read(name, settings)
        if result is not None:
            return result
        self.take()
        return self._write(name, self._made_of(settings), code_fingerprint(*SOURCES), make())

    def take(self) -> None:
        """Lock the folder; RuntimeError, naming the other process, if it is another's."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.locked:
            self._lock = shared_lock(self.folder)

    def read(self, name: str, settings: Mapping[str, Any]) -> dict[str, Any] | None:
        """The finished run of that name; None if there is none, or one made with another torch."""
        if self.fresh and self.path(name) not in self.done:
            return None
        if (record := self.record(name)) is None:
            return None
        theirs, ours = record["made_of"], self._made_of(settings)
        if theirs != ours and theirs | {"data": self.data} == ours:
            raise ValueError(
                f"{self.path(name)} was made with these settings from other data (fingerprint {theirs.get('data')}, "
                f"these have {self.data}): take another --out, or --fresh to replace it"
            )
        if theirs["settings"] != ours["settings"]:
            differs = _difference(theirs["settings"], ours["settings"])
            raise ValueError(
                f"{self.path(name)} was made with other settings ({differs}): take another --out, or --fresh to "
                "replace it"
            )
        if theirs != ours:
            return None
        if record["code"] != code_fingerprint(*SOURCES):
            if not self.of_other_code:
                tqdm.write(f"{self.folder}: runs that other code has made are read back; --fresh does them again")
            self.of_other_code.add(self.path(name))
        return record["result"]

    def record(self, name: str) -> dict[str, Any] | None:
        """The run of that name as it is on disk, "made_of", "code" and "result", whatever it was made of."""
        path = self.path(name)
        if not path.is_file():
            return None
        try:
            record = json.loads(path.read_text())
            content = {key: record[key] for key in ("made_of", "code", "result")}
            if record != {**content, "checksum": _checksum(content)}:
                raise ValueError("it has changed since it was written, damaged file?")
            return content
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{path} is not the result of a run ({error}); delete it or use --fresh") from error

    def write(self, name: str, settings: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
        """Put a result on disk; the same as JSON gives it back. RuntimeError if the folder is another process's.

        Where the run is there and gets further measures, the code that made it stays the one that is named.
        """
        self.take()
        made_of, code, earlier = self._made_of(settings), code_fingerprint(*SOURCES), self.record(name)
        if earlier is not None and earlier["made_of"] == made_of:
            code = earlier["code"]
        return self._write(name, made_of, code, result)

    def _write(self, name: str, made_of: Mapping[str, Any], code: str, result: Mapping[str, Any]) -> dict[str, Any]:
        record = {"made_of": made_of, "code": code, "result": result}
        record = json.loads(json.dumps(record, allow_nan=False))  # keys that are numbers become text here
        content = json.dumps({**record, "checksum": _checksum(record)}, indent=1)
        self.path(name).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path(name), content.encode())
        self.done.add(self.path(name))
        return record["result"]

    def write_tensors(self, name: str, folder: str, tensors: Mapping[str, Tensor]) -> None:
        """Put tensors of that run into a folder beside it, as a safetensors file with checksums."""
        path = self.path(name, folder, ".safetensors")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(path, {key: tensor.cpu() for key, tensor in tensors.items()}, {})

    def read_tensors(self, name: str, folder: str) -> dict[str, Tensor]:
        """The tensors of a run in that folder."""
        path = self.path(name, folder, ".safetensors")
        try:
            return read_tensors(path, torch.device("cpu"))[0]
        except ValueError as error:
            raise ValueError(f"{error}; delete {self.path(name)} or use --fresh to do the run again") from error

    def begin(self, name: str, *folders: str) -> None:
        """Remove the files of an earlier run of that name, so that they do not mix with those of this one."""
        self.take()
        self.path(name).unlink(missing_ok=True)
        for folder in folders:
            (self.folder / folder).mkdir(parents=True, exist_ok=True)

    def _made_of(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        made_of = {"settings": settings, "data": self.data, "torch": torch.__version__}
        return json.loads(json.dumps(made_of, allow_nan=False))


def _difference(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """The first setting that differs, with both values."""
    for key in dict.fromkeys([*theirs, *ours]):
        before, now = theirs.get(key), ours.get(key)
        if before != now:
            if isinstance(before, dict) and isinstance(now, dict):
                return _difference(before, now)
            return f"{key} {json.dumps(before)} there, {json.dumps(now)} here"
    return "none"


def _checksum(record: Mapping[str, Any]) -> str:
    """A digest of the content of a file, however it is laid out."""
    return hashlib.blake2b(json.dumps(record, sort_keys=True).encode(), digest_size=12).hexdigest()
