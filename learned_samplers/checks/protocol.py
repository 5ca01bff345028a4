"""What `check_sampler` and `suggest_lr` ask of a sampler: a step that takes their closure, and a chain to look at."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def refuse(sampler: Any, what: str) -> None:
    """ValueError with the reason, for a sampler of which ``what`` cannot say anything."""
    if reason := getattr(sampler, "not_checked", ""):
        raise ValueError(f"{what} cannot check {type(sampler).__name__}: {reason}")


def take_step(sampler: Any, closure: Callable[[], Any]) -> None:
    """``sampler.step(closure)``, with errors that say what the closure does."""
    name = type(sampler).__name__
    try:
        sampler.step(closure)
    except TypeError as error:
        try:
            inspect.signature(sampler.step).bind(None)
        except TypeError:
            raise TypeError(
                f"{name}.step must take a closure, as step(self, closure=None), and call it: it sets p.grad"
            ) from error
        raise
    except RuntimeError as error:
        if "does not require grad" not in str(error):
            raise
        raise RuntimeError(
            f"{name}.step calls backward() on what the closure returns; this closure has set p.grad itself and returns "
            "a loss without a graph, as the closures of torch's optimizers do after their own backward()"
        ) from error
