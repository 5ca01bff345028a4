"""Fingerprints of data: what tells kept results that they were made of others."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

__all__ = ["data_fingerprint", "fingerprint"]


def data_fingerprint(data: Any, *others: Tensor) -> str:
    """That of a data set: inputs and labels of its three parts, and further tensors."""
    parts = (getattr(data, f"{part}_{kind}") for part in ("train", "val", "test") for kind in "xy")
    return fingerprint([*parts, *others])


def fingerprint(tensors: Iterable[Tensor]) -> str:
    """16 hexadecimal digits that change with any number, shape or type in the data."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]
