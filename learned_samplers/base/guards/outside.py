"""Something beside the sampler moves its weights, or stands between its gradients and its step: warns once.

An optimizer around a sampler (Lookahead, OrthoGrad, SAM) steps it and changes weights or gradients in passing; a loop
may clamp, average or decay the weights by hand. The chain then has another law, or none: Lookahead around SGLD halves
the variance, OrthoGrad multiplies it by a hundred.

For the first hundred steps of a sampler a few numbers of three parameters are kept from the end of a step and compared
at the beginning of the next one; later steps cost nothing. Once or twice they may differ: a saved state was loaded, a
chain begins elsewhere. Weights that are swapped out for an evaluation and put back are equal again, and are no change.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor
from torch.optim import Optimizer

from learned_samplers.base.protocol import Chain
from learned_samplers.base.warning import warn

#: Steps of a sampler that are watched.
WATCHED = 100
#: Changes between steps that are a habit.
HABIT = 3
_NUMBERS = 8
# Frames between a guard and the step of an optimizer that steps the sampler: decorators and hooks of both.
_FRAMES = 12
# Wrappers that scale losses or place tensors, and leave weights and gradients to the optimizer.
_HARMLESS = ("accelerate", "lightning", "pytorch_lightning", "lightning_fabric")


class OutsideChanges:
    """Watch over one sampler, while it is `watching`: called before a step, and `note` when the step has moved it."""

    def __init__(self) -> None:
        self.steps = self.changes = 0
        self.noted: Tensor | None = None
        self.watching = True

    def __call__(self, sampler: Chain) -> None:
        """Compare the weights with those that the last step left, and look in the first steps who takes this one."""
        if self.steps < 2 and (outer := _outer_optimizer(sampler)) is not None:
            name = type(outer).__name__
            self._warn(
                f"{name}.step takes the step of {type(sampler).__name__}, and may change its gradients or weights in "
                "passing: a sampler inside of another optimizer does not sample its law. Step the sampler itself, or "
                f"see by check_sampler(lambda params: {name}(...)) what is left of the law"
            )
        elif self.noted is not None and not _equal(self.noted, _probe(sampler)):
            self.changes += 1
            if self.changes == HABIT:
                self._warn(
                    f"the weights of {type(sampler).__name__} have changed {HABIT} times between two of its "
                    f"{self.steps} steps: something else moves them (Lookahead, a moving average, a clamp, a decay by "
                    "hand), and the chain does not sample its law. Step the sampler alone; a decay towards zero is "
                    "prior_precision="
                )

    def note(self, sampler: Chain) -> None:
        """Keep a few of the weights as a step has left them."""
        self.steps += 1
        self.watching = self.steps < WATCHED and sampler.mesh is None
        self.noted = _probe(sampler) if self.watching else None

    def _warn(self, message: str) -> None:
        self.watching, self.noted = False, None
        warn(message)


def _probe(sampler: Chain) -> Tensor | None:
    """Copy of a few numbers of the first, the middle and the last parameter that is sampled."""
    params = [p for group in sampler.param_groups for p in group["params"] if p.requires_grad and p.numel()]
    chosen = {0, len(params) // 2, len(params) - 1} if params else set()
    rows = [params[i].detach()[(0,) * (params[i].dim() - 1)].reshape(-1)[:_NUMBERS] for i in sorted(chosen)]
    if len({(row.dtype, row.device) for row in rows}) != 1:
        rows = rows[:1]
    return torch.cat(rows) if rows else None


def _equal(first: Tensor, second: Tensor | None) -> bool:
    """True if the numbers are the same, or cannot be compared: other parameters, another precision or device."""
    if second is None or (first.shape, first.dtype, first.device) != (second.shape, second.dtype, second.device):
        return True
    return torch.equal(first, second)


def _outer_optimizer(sampler: Chain) -> Optimizer | None:
    """The optimizer that holds this sampler and whose method is being run, or None."""
    frame = sys._getframe(2)
    for _ in range(_FRAMES):
        if frame is None:
            return None
        if frame.f_code.co_varnames[:1] == ("self",):
            caller = frame.f_locals.get("self")
            if isinstance(caller, Optimizer) and caller is not sampler and _wraps(caller, sampler):
                return caller
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _wraps(caller: Optimizer, sampler: Chain) -> bool:
    """True if ``caller`` has the sampler as an attribute and is none of the harmless wrappers."""
    harmless = type(caller).__module__.partition(".")[0] in _HARMLESS
    return not harmless and any(value is sampler for value in vars(caller).values())
