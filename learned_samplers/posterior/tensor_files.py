"""Safetensors files of samples, with checksums, so that a damaged file is refused and not averaged."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base.files import write_atomically

FORMAT = "learned-samplers posterior samples"
VERSION = 1

Tensors = dict[str, Tensor]


class NotFinite(ValueError):
    """Weights that are to become a sample, or were one, hold a number that is not finite: the chain has diverged."""


def fingerprint(tensor: Tensor) -> str:
    """A digest of a tensor's values, shape and dtype, the same on every device."""
    flat = tensor.detach().cpu().resolve_conj().contiguous().reshape(-1)
    digest = hashlib.blake2b(f"{tensor.dtype} {tuple(tensor.shape)}".encode(), digest_size=12)
    digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def checksum(text: str) -> str:
    """A digest of a text."""
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


@functools.cache
def _has_name(dtype: torch.dtype) -> bool:
    """Return whether safetensors has a name for a dtype; the list grows from version to version."""
    from safetensors.torch import save

    try:
        save({"": torch.empty(0, dtype=dtype)})
    except (KeyError, RuntimeError, ValueError):
        return False
    return True


def require_writable(subject: str, tensor: Tensor) -> None:
    """Raise ValueError if the tensor is of a dtype that :func:`write_tensors` cannot write."""
    if not _has_name(tensor.dtype.to_real() if tensor.is_complex() else tensor.dtype):
        raise ValueError(f"{subject} is of {tensor.dtype}, which no file of samples can hold")


def _as_written(tensors: Mapping[str, Tensor]) -> tuple[Tensors, list[str]]:
    """The tensors as safetensors takes them, and the names of those that became pairs of reals.

    Each is in one piece and in memory of its own, and none is a view of conjugates, which would lose their signs.
    """
    written: Tensors = {}
    pairs, seen = list[str](), set[int]()
    for name, tensor in tensors.items():
        require_writable(repr(name), tensor)
        plain = tensor.detach().resolve_conj().contiguous()
        if plain.is_complex() and not _has_name(plain.dtype):
            plain = torch.view_as_real(plain)
            pairs.append(name)
        address = plain.untyped_storage().data_ptr()
        written[name] = plain.clone() if address in seen else plain
        seen.add(address)
    return written, pairs


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, Any], *, clean: bool = True) -> str:
    """Write tensors, JSON metadata and the checksums of both as one safetensors file, atomically.

    Returns:
        The checksum of all of it, by which :func:`read_tensors` knows this file from another.

    Raises:
        ValueError: a tensor of a dtype that cannot be written; the message names it.
    """
    from safetensors.torch import save

    written, pairs = _as_written(tensors)
    sums = {name: fingerprint(tensor) for name, tensor in written.items()}
    content = json.dumps({**metadata, **({"pairs": pairs} if pairs else {}), "checksums": sums})
    header = {"format": FORMAT, "version": str(VERSION), "content": content, "checksum": checksum(content)}
    # Serialised first and written by Python, so that a full disk is an OSError with its errno.
    write_atomically(path, save(written, metadata=header), clean=clean)
    return header["checksum"]


def read_tensors(path: Path, device: torch.device, expected: str | None = None) -> tuple[Tensors, dict[str, Any]]:
    """Read a file of :func:`write_tensors`.

    Args:
        path: the file.
        device: where its tensors shall be.
        expected: its checksum, if that is known.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is truncated, damaged or not one of ours; the message names it and the reason.
    """
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise FileNotFoundError(f"no such file: {path}")
    try:
        with safe_open(str(path), framework="pt", device="cpu") as file:
            header = file.metadata() or {}
            if header.get("format") != FORMAT:
                raise ValueError(f"{path}: not a file of {FORMAT} (its format is {header.get('format')!r})")
            if header.get("version") != str(VERSION):
                raise ValueError(f"{path}: version {header.get('version')!r} cannot be read, only {VERSION}")
            metadata = json.loads(header["content"])
            if not isinstance(metadata, dict):
                raise ValueError(f"{path}: its metadata are not a JSON object")
            if header["checksum"] != checksum(header["content"]):
                raise ValueError(f"{path}: its metadata have changed since they were written (damaged file?)")
            if expected not in (None, header["checksum"]):
                raise ValueError(f"{path}: is the file of another run, or of another time, than the index names")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, KeyError, json.JSONDecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: truncated or not a safetensors file ({error})") from error
    _compare(path, tensors, metadata.pop("checksums", None))
    for name in metadata.pop("pairs", ()):
        tensors[name] = torch.view_as_complex(tensors[name])
    return {name: tensor.to(device) for name, tensor in tensors.items()}, metadata


def require_finite(source: Path | str, tensors: Mapping[str, Tensor], names: Iterable[str]) -> None:
    """Raise NotFinite if one of these tensors of a file or a sample, all sampled, holds a number that is not finite.

    Buffers may: a mask of attention holds −∞.
    """
    for name in names:
        tensor = tensors.get(name)
        if tensor is not None and tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise NotFinite(f"{source}: {name!r} holds numbers that are not finite")


def _compare(path: Path, tensors: Tensors, sums: Any) -> None:
    if not isinstance(sums, dict) or (set(sums) ^ set(tensors)):
        other = sorted(set(sums) ^ set(tensors)) if isinstance(sums, dict) else sums
        raise ValueError(f"{path}: not a file of posterior samples as written (tensors and checksums differ: {other})")
    for name, tensor in tensors.items():
        if sums[name] != fingerprint(tensor):
            raise ValueError(f"{path}: {name!r} has changed since it was written (damaged file?)")


def common_unsampled(
    collections: Sequence[tuple[str, Tensors, Mapping[str, str]]],
) -> tuple[Tensors, dict[str, str]]:
    """Return what several collections (name, tensors, fingerprints) have beside their samples, the same in all.

    Returns:
        Tensors, and the fingerprints of those that none of the collections holds.

    Raises:
        ValueError: they differ; the message names the tensor.
    """
    tensors: Tensors = {}
    known: dict[str, str] = {}
    origin = collections[0][0]
    for position, (name, fixed, frozen) in enumerate(collections):
        digests = {**frozen, **{key: fingerprint(tensor) for key, tensor in fixed.items()}}
        for key in (*known, *digests) if position else ():
            if known.get(key) != digests.get(key):
                raise ValueError(f"{key!r}, which is not sampled, differs between {origin} and {name}")
        known, tensors = digests, {**fixed, **tensors}
    return tensors, {key: digest for key, digest in known.items() if key not in tensors}
