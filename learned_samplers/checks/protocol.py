"""Protocol of a sampler that `check_sampler` and `suggest_lr` can run: its maker, its step, its closure."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

#: Makes a sampler from a list of parameters.
Factory = Callable[[list[Tensor]], torch.optim.Optimizer]


def refuse(sampler: torch.optim.Optimizer, what: str) -> None:
    """ValueError with the reason, for a sampler of which ``what`` cannot say anything."""
    if reason := getattr(sampler, "not_checked", ""):
        raise ValueError(f"{what} cannot check {type(sampler).__name__}: {reason}")


def made_by(factory: Any, argument: str) -> torch.optim.Optimizer:
    """The sampler that a factory makes of one weight; TypeError, naming the argument, if it is none or makes none."""
    what = f"the class {factory.__name__}" if isinstance(factory, type) else f"a {type(factory).__name__}"
    wanted = f"{argument} must make a sampler of parameters, as lambda params: SGHMC(params, 0.1, num_data=100)"
    if not callable(factory):
        raise TypeError(f"{wanted}, got {what}")
    try:
        made = factory([torch.zeros(1, requires_grad=True)])
    except TypeError as error:
        if not isinstance(factory, type):
            raise
        raise TypeError(f"{wanted}, got {what}: {error}") from error
    if not isinstance(made, torch.optim.Optimizer):
        raise TypeError(f"{argument} must return an optimizer, got {type(made).__name__}")
    return made


def unwatched(sampler: torch.optim.Optimizer) -> None:
    """Switch off the watch on outside changes: what a sampler under test does in its own step is measured."""
    if (watch := getattr(sampler, "outside", None)) is not None:
        watch.watching = False


def take_step(sampler: torch.optim.Optimizer, closure: Callable[[], Any]) -> None:
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
