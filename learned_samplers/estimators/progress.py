"""Lines about a fit that is under way."""

from __future__ import annotations

import time

#: Seconds between two lines.
INTERVAL = 2.0


class Progress:
    """Prints where a fit is and the seconds that are left in its phase, a line every `INTERVAL` seconds.

    Args:
        name: of the estimator.
        verbose: False prints nothing.
    """

    def __init__(self, name: str, verbose: bool) -> None:
        self.name, self.verbose = name, verbose
        self._phase, self._steps = "", 0
        self._begun = self._last = time.monotonic()

    def begin(self, phase: str, steps: int) -> None:
        """Begin a phase of at most ``steps`` steps."""
        self._phase, self._steps, self._begun = phase, steps, time.monotonic()

    def step(self, done: int) -> None:
        """Say so where so many steps of the phase are done and the last line is `INTERVAL` seconds old."""
        now = time.monotonic()
        if not self.verbose or now - self._last < INTERVAL:
            return
        self._last = now
        left = (now - self._begun) * (self._steps / max(1, done) - 1)
        print(f"{self.name}: {self._phase}, step {done} of {self._steps}, {left:.0f} s left of it", flush=True)

    def end(self, text: str) -> None:
        """Print how the fit ended."""
        if self.verbose:
            print(f"{self.name}: {text}", flush=True)


#: One that prints nothing.
SILENT = Progress("", False)
