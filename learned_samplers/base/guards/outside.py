"""Something beside the sampler moves its weights, or stands between its gradients and its step: warns once.

An optimizer around a sampler (Lookahead, OrthoGrad, SAM) steps it and changes weights or gradients in passing; a loop
may clamp, average or decay the weights by hand. The chain then has another law, or none: Lookahead around SGLD halves
the variance, OrthoGrad multiplies it by a hundred.

For the first hundred steps of a sampler a few numbers of three parameters are kept from the end of a step and compared
at the beginning of the next one; later steps cost nothing. Once or twice they may differ: a saved state was loaded, a
chain begins elsewhere. Weights that are swapped out for an evaluation and put back are equal again, and are no change;
nor are weights that come back rounded from half precision, or tables that an embedding with ``max_norm`` shortens. An
optimizer that holds others beside the sampler steps each in turn, and is no wrapper.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor
from torch.optim import Optimizer

from learned_samplers.base.guards.precision import HALF
from learned_samplers.base.layers import layers_of
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
        #: The ``id`` of each parameter that an embedding shortens to its ``max_norm`` in its forward pass.
        self.shortened = set[int]()

    def __call__(self, sampler: Chain) -> None:
        """Compare the weights with those that the last step left, and look in the first steps who takes this one."""
        if self.steps < 2 and (outer := _outer_optimizer(sampler)) is not None:
            name = type(outer).__name__
            self._warn(
                f"{name}.step takes the step of {type(sampler).__name__}, and may change its gradients or weights in "
                "passing: a sampler inside of another optimizer does not sample its law. Step the sampler itself, or "
                f"see by check_sampler(lambda params: {name}(...)) what is left of the law"
            )
        elif self.noted is not None and self._moved(sampler, self.noted):
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
        self.noted = _probe(_probed(sampler)) if self.watching else None

    def _moved(self, sampler: Chain, before: Tensor) -> bool:
        """Return whether something that takes the law has moved the weights since these numbers were noted."""
        params = _probed(sampler)
        now = _probe(params)
        if now is None or (before.shape, before.dtype, before.device) != (now.shape, now.dtype, now.device):
            return False  # other parameters, another precision or device: not to be compared
        if torch.equal(before, now):
            return False
        sizes = [len(_row(p)) for p in params]
        changes = zip(params, before.split(sizes), now.split(sizes), strict=True)
        moved = [p for p, x, y in changes if id(p) not in self.shortened and not _same(x, y)]
        if moved:  # to look for their layers takes long
            self.shortened |= {
                key
                for key, layers in layers_of(moved).items()
                if any(getattr(layer, "max_norm", None) is not None for layer in layers)
            }
        return any(id(p) not in self.shortened for p in moved)

    def _warn(self, message: str) -> None:
        self.watching, self.noted = False, None
        warn(message)


def _probed(sampler: Chain) -> list[Tensor]:
    """The first, the middle and the last parameter that is sampled; the first alone where they cannot be joined."""
    params = [p for group in sampler.param_groups for p in group["params"] if p.requires_grad and p.numel()]
    chosen = [params[i] for i in sorted({0, len(params) // 2, len(params) - 1})] if params else []
    return chosen if len({(p.dtype, p.device) for p in chosen}) == 1 else chosen[:1]


def _row(p: Tensor) -> Tensor:
    return p.detach()[(0,) * (p.dim() - 1)].reshape(-1)[:_NUMBERS]


def _probe(params: list[Tensor]) -> Tensor | None:
    """Copy of a few numbers of each of these parameters."""
    return torch.cat([_row(p) for p in params]) if params else None


def _same(before: Tensor, now: Tensor) -> bool:
    """True if the numbers are the same, or have been rounded to half precision and back."""
    return any(torch.equal(before.to(half).to(before.dtype), now) for half in (before.dtype, *HALF))


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
    """True if ``caller`` has the sampler as an attribute, no other optimizer, and is none of the harmless wrappers."""
    # `Restarts` says so itself.
    harmless = getattr(type(caller), "only_passes_on", False) or type(caller).__module__.partition(".")[0] in _HARMLESS
    values = list(vars(caller).values())
    if harmless or not any(value is sampler for value in values):
        return False
    for value in vars(caller).values():
        values += value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return not any(isinstance(value, Optimizer) and value is not sampler for value in values)
