"""What one call passes: files and functions, for somebody who reads it; and calls and kernels, which take time."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

PACKAGE = Path(__file__).parents[1] / "learned_samplers"


def passed(call: Callable[[], Any]) -> tuple[set[str], set[str]]:
    """The files of the package, and the functions ("file:name"), that are entered while it runs in this thread.

    Lists, dicts and sets that are written as a comprehension are part of their function, as in Python from 3.12 on.
    """
    functions: set[tuple[str, str]] = set()

    def see(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_name not in ("<listcomp>", "<dictcomp>", "<setcomp>"):
            functions.add((code.co_filename, code.co_qualname))

    sys.setprofile(see)
    try:
        call()
    finally:
        sys.setprofile(None)
    named = {(Path(file), name) for file, name in functions if Path(file).is_relative_to(PACKAGE)}
    files = {str(file.relative_to(PACKAGE)) for file, _ in named}
    return files, {f"{file.relative_to(PACKAGE)}:{name}" for file, name in named}


def calls(call: Callable[[], Any]) -> int:
    """Number of Python functions, and of functions built in, that it calls."""
    events: list[str] = []
    sys.setprofile(lambda frame, event, _: events.append(event))
    try:
        call()
    finally:
        sys.setprofile(None)
    return events.count("call") + events.count("c_call") - 1  # the profiler's own end


class Dispatched(TorchDispatchMode):
    """Names of the operations that torch dispatches within it, views among them."""

    def __enter__(self):
        self.names: list[str] = []
        return super().__enter__()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))
