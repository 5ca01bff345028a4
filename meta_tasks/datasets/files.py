"""Data files: where they lie, how missing ones are fetched, and how idx, npz, npy and image files are read."""

from __future__ import annotations

import gzip
import math
import os
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

ENVIRONMENT_VARIABLE = "LEARNED_SAMPLERS_DATA"
DEFAULT_ROOT = Path("~/.cache/learned_samplers")
# A compressed file may unpack to so many bytes, or so many times its size: images come to 30 times at most.
_ALWAYS_FINE, _LARGEST_RATIO = 2**28, 100


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """The data folder: `root`, else the environment variable LEARNED_SAMPLERS_DATA, else ~/.cache/learned_samplers."""
    return Path(root or os.environ.get(ENVIRONMENT_VARIABLE) or DEFAULT_ROOT).expanduser()


def find(candidates: Sequence[Path]) -> Path | None:
    """The first of the paths that is a file, or None."""
    return next((path for path in candidates if path.is_file()), None)


def fetch(name: str, wanted: str, how: str, download: Callable[[], Any] | None) -> None:
    """Run `download`, or say which file is missing and how to get it.

    Args:
        name: the data set.
        wanted: the files looked for, with their folder.
        how: how a person gets them.
        download: downloads the files; None where downloading is switched off or impossible.

    Raises:
        FileNotFoundError: `download` is None or failed.
    """
    if download is None:
        missing(name, wanted, how)
    try:
        download()
    # torchvision and medmnist report a failed download as RuntimeError, urllib and the file system as OSError.
    except (RuntimeError, OSError, zipfile.BadZipFile) as error:
        reason = " ".join(f"downloading failed ({type(error).__name__}: {error})".split())
        missing(name, wanted, how, reason, error)


def missing(
    name: str,
    wanted: str,
    how: str,
    reason: str = "downloading is off or not possible for this data set",
    cause: Exception | None = None,
) -> NoReturn:
    """Raise FileNotFoundError for the files of a data set; see `fetch`."""
    raise FileNotFoundError(
        f"{name}: no {wanted}; {reason}. To get it: {how}. Then name the folder by --data (root=) "
        f"or the environment variable {ENVIRONMENT_VARIABLE}."
    ) from cause


def read_idx(path: Path) -> Tensor:
    """The uint8 array of an idx file, unpacked or .gz, in the shape that its header states.

    Raises:
        ValueError: the file is truncated, is not an idx file of unsigned bytes, or unpacks to far more than it is.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            start = file.read(4)
            if len(start) < 4 or start[:3] != b"\0\0\x08" or start[3] > 8:
                raise ValueError(f"{path} is not an idx file of unsigned bytes: it starts with {start!r}")
            header = file.read(4 * start[3])
            shape = tuple(int.from_bytes(header[i : i + 4]) for i in range(0, 4 * start[3], 4))
            size = math.prod(shape)
            _refuse_bomb(path, size)
            content = file.read(size + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is not a whole gzip file: {error}") from error
    if len(content) != size:
        number = f"more than {size}" if len(content) > size else len(content)
        raise ValueError(f"{path} is truncated or too long: {number} bytes for an array of {shape}")
    return torch.from_numpy(np.frombuffer(content, np.uint8).reshape(shape).copy())


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an npz file; nothing is unpickled.

    Raises:
        ValueError: the file is damaged, is no npz, holds pickled objects, or unpacks to far more than it is.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            _refuse_bomb(path, sum(member.file_size for member in archive.infolist()))
        with np.load(path, allow_pickle=False) as arrays:
            return {name: np.asarray(arrays[name]) for name in arrays.files}
    # What a damaged archive can raise is open-ended: of zip, of zlib, of an unknown compression, of numpy's header.
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        has_path = reason.startswith(str(path))
        raise ValueError(
            reason if has_path else f"{path} cannot be read as an npz of plain arrays: {reason:.300}"
        ) from error


def read_npy(path: Path) -> np.ndarray:
    """The array of an npy file; nothing is unpickled.

    Raises:
        ValueError: the file is damaged, is no npy, or holds pickled objects.
    """
    try:
        return np.load(path, allow_pickle=False)
    except (ValueError, EOFError, MemoryError, RecursionError, OverflowError) as error:
        raise ValueError(f"{path} cannot be read as an npy of numbers: {error!s:.300}") from error


def most_unpacked(path: Path) -> int:
    """Bytes to which a compressed file may unpack; one that has more is damaged, or made to fill the memory."""
    return max(_ALWAYS_FINE, _LARGEST_RATIO * path.stat().st_size)


def _refuse_bomb(path: Path, size: int) -> None:
    """Raise ValueError where a file says that it unpacks to ``size`` bytes and is far too small for that."""
    if size > most_unpacked(path):
        raise ValueError(
            f"{path} says that it unpacks to {size} bytes, which is more than {_LARGEST_RATIO} times what it is "
            f"({path.stat().st_size}): it is damaged, or made to fill the memory"
        )
