"""Where data files lie, how the idx and npz formats are read, and the errors for missing files and libraries."""

from __future__ import annotations

import gzip
import os
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

ENVIRONMENT_VARIABLE = "LEARNED_SAMPLERS_DATA"
DEFAULT_ROOT = Path("~/.cache/learned_samplers")


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """The data folder: `root`, else the environment variable LEARNED_SAMPLERS_DATA, else ~/.cache/learned_samplers."""
    return Path(root or os.environ.get(ENVIRONMENT_VARIABLE) or DEFAULT_ROOT).expanduser()


def find(candidates: Sequence[Path]) -> Path | None:
    """The first of the paths that is a file, or None."""
    return next((path for path in candidates if path.is_file()), None)


def find_idx(folder: Path, stem: str) -> Path | None:
    """`folder`/`stem`, unpacked or with .gz."""
    return find([folder / stem, folder / f"{stem}.gz"])


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
    cause: Exception | None = None
    reason = "downloading is off or not possible for this data set"
    if download is not None:
        try:
            download()
            return
        # torchvision and medmnist report a failed download as RuntimeError, urllib and the file system as OSError.
        except (RuntimeError, OSError, zipfile.BadZipFile) as error:
            cause, reason = error, " ".join(f"downloading failed ({type(error).__name__}: {error})".split())
    raise FileNotFoundError(
        f"{name}: no {wanted}; {reason}. To get it: {how}. Then name the folder by --data (root=) "
        f"or the environment variable {ENVIRONMENT_VARIABLE}."
    ) from cause


def read_idx(path: Path) -> Tensor:
    """The uint8 array of an idx file, unpacked or .gz, in the shape that its header states.

    Raises:
        ValueError: the file is truncated or is not an idx file of unsigned bytes.
    """
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is not a whole gzip file: {error}") from error
    if len(content) < 8 or content[:3] != b"\0\0\x08":
        raise ValueError(f"{path} is not an idx file of unsigned bytes: it starts with {content[:4]!r}")
    dimensions = content[3]
    shape = np.frombuffer(content, ">u4", dimensions, offset=4).astype(int)
    if len(content) != 4 + 4 * dimensions + int(shape.prod()):
        raise ValueError(
            f"{path} is truncated or too long: {len(content)} bytes for an array of {tuple(shape.tolist())}"
        )
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape).copy())


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an npz file; nothing is unpickled.

    Raises:
        ValueError: the file is damaged, is no npz, or holds pickled objects.
    """
    try:
        # numpy leaves the file open when it fails on a damaged one, so it is opened here.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}
    except (ValueError, EOFError, zipfile.BadZipFile, AttributeError) as error:
        raise ValueError(f"{path} cannot be read as an npz of plain arrays: {error}") from error
