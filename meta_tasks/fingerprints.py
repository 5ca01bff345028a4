"""Fingerprints of data and of code: what tells kept results that they were made of others."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

__all__ = ["code_fingerprint", "data_fingerprint", "fingerprint"]


def data_fingerprint(data: Any, *others: Tensor) -> str:
    """Fingerprint of a data set: inputs and labels of its three parts, and further tensors."""
    parts = (getattr(data, f"{part}_{letter}") for part in ("train", "val", "test") for letter in "xy")
    return fingerprint([*parts, *others])


def fingerprint(tensors: Iterable[Tensor]) -> str:
    """16 hexadecimal digits that change with any number, shape or type in the data."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


@cache
def code_fingerprint(*folders: Path) -> str:
    """16 hexadecimal digits that change with any source file below these folders, as they are at the first call."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(path for path in folder.rglob("*") if path.suffix in (".py", ".cpp", ".cu")):
            digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
