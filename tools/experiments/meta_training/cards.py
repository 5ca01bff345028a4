"""The origin of weights, as their card has it, and the command that repeats a training."""

from __future__ import annotations

import math
import shlex
import subprocess
from pathlib import Path
from typing import Any


def without_infinities(value: Any) -> Any:
    """Plain values with None in the place of NaN and infinities, which JSON has not; a sampler that fails has them."""
    if isinstance(value, dict):
        return {key: without_infinities(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_infinities(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def commit() -> str | None:
    """The commit that these tools are at, None outside a repository."""
    answer = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    return answer.stdout.strip() or None


def reproducing(command: str, iterations: int) -> str:
    """The command that gives a meta-training's weights again, from the one that ended it and the iterations it did.

    The limit on the time is left out, because another machine would stop after another number of iterations. Where no
    iteration was done the command has a limit of zero minutes.
    """
    kept, words = [], iter(shlex.split(command))
    for word in words:
        name, _, value = word.partition("=")
        if name not in ("--minutes", "--iterations"):
            kept.append(word)
        elif not value:
            next(words)
    ended = ["--iterations", str(iterations)] if iterations else ["--minutes", "0"]
    return shlex.join([*kept, *ended])
