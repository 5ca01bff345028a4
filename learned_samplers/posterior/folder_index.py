"""The index of a folder of samples: a line of settings, and a line for each change, every one with a checksum."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from learned_samplers.posterior.store import Entry, Progress
from learned_samplers.posterior.tensor_files import FORMAT, checksum

VERSION = 2


@dataclass
class Index:
    """The content of an index.

    settings: those of the collection; entries: the samples; progress: how far the collector has come; checksums: those
    of the files by name; size: bytes of its whole lines.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    progress: Progress = field(default_factory=Progress)
    checksums: dict[str, str] = field(default_factory=dict)
    size: int = 0


def read_index(path: Path) -> Index:
    """Read an index; a last line that is not whole (a crash) does not count.

    Raises:
        ValueError: it is broken; the message names the file and the line.
    """
    try:
        return _parsed(path, path.read_bytes())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if str(error).startswith(str(path)):
            raise
        raise ValueError(f"{path}: broken index ({type(error).__name__}: {error})") from error


def _parsed(path: Path, data: bytes) -> Index:
    end = data.rfind(b"\n") + 1
    if _is_whole(data[end:-1]):
        raise ValueError(f"{path}: its last line is damaged (no end of line)")
    header, *lines = data[:end].decode().splitlines() or [""]
    content = _checked(header)
    if content["format"] != FORMAT or content["version"] != VERSION:
        raise ValueError(f"{path}: not an index of {FORMAT}, version {VERSION}")
    index = Index(settings=dict(content["settings"]), size=end)
    for number, line in enumerate(lines, 2):
        try:
            record = _checked(line)
        except ValueError as error:
            raise ValueError(f"{path}: line {number} is damaged ({error})") from error
        index.progress = Progress(*record["progress"])
        index.entries += [Entry(*entry) for entry in record["entries"]]
        index.checksums |= record["files"]
    return index


def header(settings: Mapping[str, Any]) -> bytes:
    """Return the first line of an index."""
    return _with_checksum({"format": FORMAT, "version": VERSION, "settings": dict(settings)})


def record(entries: Iterable[Entry], progress: Progress, checksums: Mapping[str, str]) -> bytes:
    """Return a further line of an index: samples that were added, and the checksums of files."""
    content = {
        "progress": list(asdict(progress).values()),
        "entries": [list(asdict(entry).values()) for entry in entries],
        "files": dict(checksums),
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
