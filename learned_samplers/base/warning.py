"""Warnings that point at the user's line, however deep in the library they are given."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

_PACKAGE = str(Path(__file__).parents[1])


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """``warnings.warn``, attributed to the nearest caller that lies neither in this package nor in torch."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and _is_inner(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


class Once:
    """Says True the first time that it is called, and False from then on, however many threads call it at once."""

    def __init__(self) -> None:
        self._left = [None]

    def __call__(self) -> bool:
        try:
            self._left.pop()  # of two threads one gets it
        except IndexError:
            return False
        return True

    @property
    def is_over(self) -> bool:
        """True once it has said True."""
        return not self._left


def _is_inner(filename: str) -> bool:
    return filename.startswith(_PACKAGE) or "/torch/" in filename or filename.endswith("contextlib.py")
