"""Speed of an inner loop, and the shares of its parts: `time_unroll`."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from torch import Tensor

from meta_tasks.inner_loop.unroll import Unroll

__all__ = ["Timing", "time_unroll"]


@dataclass(frozen=True)
class Timing:
    """Speed of an unroll, in processor time of this process.

    Attributes:
        member_steps_per_second: steps, times members, a second.
        shares: of the time, by what takes it: "gradient", "rule", "noise" and "other" (minibatches, bookkeeping).
    """

    member_steps_per_second: float
    shares: dict[str, float]


def time_unroll(unroll: Unroll, weights: Tensor, steps: int) -> Timing:
    """Take ``steps`` steps with meta-parameters (P, n), and measure them."""
    spent = dict.fromkeys(("gradient", "rule", "noise"), 0.0)

    def measured(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            started = time.process_time()
            try:
                return function(*args)
            finally:
                spent[part] += time.process_time() - started

        return timed

    parts = {"gradient": (unroll.task, "loss_and_gradient"), "rule": (unroll.rule, "update")}
    parts["noise"] = unroll, "_draw_noise"
    with ExitStack() as stack:
        for part, (holder, name) in parts.items():
            stack.enter_context(patch.object(holder, name, measured(part, getattr(holder, name))))
        started = time.process_time()
        unroll.advance(weights, steps)
        seconds = time.process_time() - started
    shares = {part: value / seconds for part, value in spent.items()}
    return Timing(steps * len(unroll.parameter) / seconds, {**shares, "other": 1 - sum(shares.values())})
