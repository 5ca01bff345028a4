"""Notices that torch's generator is set back again and again, so that a chain's noise repeats."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor


class ReseedingWatch:
    """Sees the state of torch's generator where a step begins to draw; warns once where a state returns.

    A function that calls ``torch.manual_seed`` once an epoch, for its validation or its batches, harms no optimizer. A
    sampler that draws from the same generator repeats its noise then: noise that comes back adds up, and the chain
    drifts far out of its law. States are kept at steps 1, 2, 4, 8, … of those seen, of which one lies in the part that
    repeats.
    """

    def __init__(self) -> None:
        self.kept: set[int] = set()
        self.count = 0
        self.step: int | None = None
        self.warned = False

    def drawn(self, draw: Callable[[Tensor], Tensor], like: Tensor, step: int) -> Tensor:
        """``draw(like)``; the generator's state before the first draw of each step counts."""
        if step == self.step or self.warned or (before := _state(like.device)) is None:
            return draw(like)
        self.step, state = step, hash(before)
        self.count += 1
        noise = draw(like)
        # A draw that leaves the state where it was was none: `check_sampler` gives numbers of its own.
        if state in self.kept and _state(like.device) != before:
            self.warned = True
            warnings.warn(
                "torch's random generator is in a state that it had at an earlier step: something sets it back "
                "(torch.manual_seed in a function that validates or makes batches?), and the chain's noise repeats. A "
                "chain with such noise does not sample its law. Give the sampler a generator of its own: "
                "generator=torch.Generator().manual_seed(0)",
                stacklevel=3,
            )
        elif self.count & (self.count - 1) == 0:
            self.kept.add(state)
        return noise


def _state(device: torch.device) -> bytes | None:
    """The state of the default generator of a device; None where it cannot be had for nothing."""
    if device.type == "cpu":
        return torch.default_generator.get_state().numpy().tobytes()
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        return torch.cuda.default_generators[index].get_state().numpy().tobytes()
    return None
