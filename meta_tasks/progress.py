"""Progress bars that also read well in a file: where standard error is no terminal, a line now and then."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterable
from typing import Any

from tqdm import tqdm

#: A line is due so many seconds after the last one, if that share of the work has been done since.
SECONDS, SHARE = 10.0, 0.05
#: After so many seconds a line is due however little has been done.
PATIENCE = 300.0


class Lines(tqdm):
    """A tqdm bar that writes whole lines: at most one in 10 seconds and for 5 % of the work, and one at its end.

    With ``leave=False`` it has no last line, so that short work within longer work leaves nothing.
    """

    _last_time: float | None = None
    _last_n = 0

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Write a line, if one is due; tqdm calls this whenever it would draw the bar."""
        if msg == "":
            return
        now = time.monotonic()
        if self._last_time is None:
            self._last_time = now
        waited, done = now - self._last_time, self.n - self._last_n
        enough = self.total is None or done >= SHARE * self.total
        closing = self.disable  # tqdm closes a bar in this order, and ends the line itself
        if closing or (waited >= SECONDS and enough) or waited >= PATIENCE:
            self._last_time, self._last_n = now, self.n
            self.fp.write(f"{self}" if closing else f"{self}\n")
            self.fp.flush()

    def clear(self, nolock: bool = False) -> None:
        """Do nothing: lines that were written stay."""

    def close(self) -> None:
        """End the bar, with a last line if it is to stay."""
        if self.leave is False and not self.disable:
            self.fp = io.StringIO()  # what tqdm writes to wipe a bar is no line
        super().close()


def progress(iterable: Iterable[Any] | None = None, **options: Any) -> Any:
    """A progress bar, ``tqdm(iterable, **options)``; `Lines` in its place where standard error is no terminal."""
    bar = tqdm if sys.stderr is not None and sys.stderr.isatty() else Lines
    return bar(iterable, **options)
