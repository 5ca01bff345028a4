"""Checkpoints of a meta-training run: written whole or not at all, the last few kept, a damaged one passed over."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from learned_samplers.base import validation
from learned_samplers.base.files import FolderLock, sealed, unsealed, write_atomically

__all__ = ["Checkpoints", "check_same"]

_PATTERN = re.compile(r"checkpoint-(\d{8})\.pt")
_FORMAT = "learned-samplers meta-training"
_VERSION = 3


class Checkpoints:
    """The checkpoint files of a run folder.

    Args:
        folder: of the run; made if it is not there.
        keep: how many checkpoints to keep.
    """

    def __init__(self, folder: Path, keep: int = 3) -> None:
        validation.integer("keep", keep)
        self.folder, self.keep = Path(folder), keep
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock: FolderLock | None = None

    def lock(self) -> None:
        """Keep other writers out of the folder until :meth:`release` or the end of the process.

        Raises:
            RuntimeError: another run is writing to it; says which process on which host.
        """
        self._lock = FolderLock(self.folder)

    def release(self) -> None:
        """Let others write to the folder."""
        if self._lock is not None:
            self._lock.release()

    def paths(self) -> list[Path]:
        """The checkpoints there are, oldest first."""
        return sorted(path for path in self.folder.iterdir() if _PATTERN.fullmatch(path.name))

    def save(self, iteration: int, payload: dict[str, Any]) -> Path:
        """Write a checkpoint after ``iteration`` iterations and drop the oldest ones beyond ``keep``.

        The file is complete on the disk before it takes its name, and older ones go only after that: a run killed at
        any moment finds its last checkpoint whole. Files of later iterations, which `load` passed over, are renamed to
        ``*.damaged`` with a warning, lest the next `load` meets them first again.

        Raises:
            RuntimeError: the lock was taken away, so that another may be writing there; nothing was written.
        """
        if self._lock is not None:
            self._lock.require_held()
        buffer = io.BytesIO()
        torch.save({"format": _FORMAT, "version": _VERSION, "iteration": iteration, **_plain(payload)}, buffer)
        path = self.folder / f"checkpoint-{iteration:08d}.pt"
        write_atomically(path, sealed(buffer.getvalue()))
        paths = self.paths()
        place = paths.index(path) + 1
        for old in paths[:place][: -self.keep]:
            old.unlink(missing_ok=True)
        for newer in paths[place:]:
            aside = newer.with_name(f"{newer.name}.damaged")
            newer.replace(aside)
            warnings.warn(f"the run goes on with {path}: {newer.name} renamed to {aside.name}", stacklevel=2)
        return path

    def load(self) -> dict[str, Any] | None:
        """The newest checkpoint that can be read, or None if the folder has none; unpickles nothing but tensors.

        Warns of every checkpoint passed over.

        Raises:
            ValueError: there are checkpoints and none can be read.
        """
        paths = self.paths()
        for path in reversed(paths):
            try:
                return self.read(path)
            except ValueError as error:
                warnings.warn(f"checkpoint passed over: {error}", stacklevel=2)
        if paths:
            raise ValueError(f"none of the {len(paths)} checkpoints in {self.folder} can be read")
        return None

    @staticmethod
    def read(path: Path) -> dict[str, Any]:
        """Read a checkpoint file.

        Raises:
            ValueError: it is damaged, by its checksum, is something else, or has the name of another iteration; names
                the file and the reason.
        """
        if not path.is_file():  # a pipe would be waited for
            raise ValueError(f"{path} cannot be read: it is no regular file")
        try:
            payload = torch.load(io.BytesIO(unsealed(path)), map_location="cpu", weights_only=True)
        except Exception as error:  # torch.load raises many types
            raise ValueError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
        if not isinstance(payload, dict) or payload.get("format") != _FORMAT:
            raise ValueError(f"{path} is not a checkpoint of a meta-training run")
        if payload.get("version") != _VERSION:
            raise ValueError(f"{path} has version {payload.get('version')!r}, this program reads {_VERSION}")
        name = _PATTERN.fullmatch(path.name)
        if name is not None and int(name[1]) != payload.get("iteration"):
            raise ValueError(f"{path} holds iteration {payload.get('iteration')!r}: it has another checkpoint's name")
        return payload


def check_same(saved: Any, expected: Any, folder: str) -> None:
    """Compare a checkpoint's specification with the run's own.

    Raises:
        ValueError: it differs; says where, and what the values are.
    """
    if differences := "; ".join(_differences("", saved, expected)):
        raise ValueError(
            f"the checkpoints in {folder} are of another run: {differences}. "
            "Choose another folder, or the settings they were made with"
        )


def _differences(path: str, saved: Any, expected: Any) -> Iterator[str]:
    if isinstance(saved, dict) and isinstance(expected, dict):
        for key in sorted({*saved, *expected}):
            if key not in saved or key not in expected:
                yield f"{path}{key} is {'here' if key in expected else 'there'} only"
            else:
                yield from _differences(f"{path}{key}.", saved[key], expected[key])
    elif saved != expected:
        yield f"{path.rstrip('.')} is {saved!r} there and {expected!r} here"


def _plain(value: Any) -> Any:
    """Return a payload with Python's numbers in the place of NumPy's, which `CheckpointFolder.read` would not take."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value
