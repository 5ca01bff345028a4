"""Files and functions that one call passes: how deep somebody reads who wants to know what it does."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

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
