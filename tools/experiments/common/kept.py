"""Runs of an experiment that are kept on disk, so that an interrupted command goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from learned_samplers.base.files import write_atomically


def kept(path: Path, settings: Mapping[str, Any], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result at ``path`` if it was made with these settings and this torch, else that of ``make``, written there.

    Args:
        settings: all that the result depends on; numbers, strings and lists.
        make: does the run; its dictionary must survive JSON.

    Raises:
        ValueError: the file is there and is not the result of a run.
    """
    wanted = json.loads(json.dumps({**settings, "torch": torch.__version__}))
    if path.is_file():
        try:
            found = json.loads(path.read_text())
            same, result = found["settings"] == wanted, found["result"]
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is not the result of a run ({error}); delete it") from error
        if same:
            return result
    result = make()
    content = json.dumps({"settings": wanted, "result": result}, allow_nan=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content.encode())
    return json.loads(content)["result"]
