"""The optimizer that takes a particle sampler's direction as its gradient: what makes it, its step, its saved state."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from learned_samplers.base import sharding
from learned_samplers.base.operations import as_number
from learned_samplers.base.protocol import Chain
from learned_samplers.base.saved_state import ResumableOptimizer

#: Makes an optimizer from a list of groups with ``params`` and ``lr``.
BaseOptimizer = Callable[[list[dict[str, Any]]], Optimizer]


def make(maker: BaseOptimizer, groups: list[dict[str, Any]]) -> Optimizer:
    """The base optimizer over a sampler's groups.

    Raises:
        TypeError: ``maker`` makes no optimizer, or one whose step needs a closure, as a line search does: there is no
            loss that has the direction as its gradient; or a sampler, whose noise would come on top.
        ValueError: it has a learning rate or a weight decay of its own, or maximises.
    """
    if isinstance(maker, functools.partial) and "lr" in maker.keywords:
        raise ValueError(f"base_optimizer takes the sampler's lr, got one of its own: {maker.keywords['lr']}")
    optimizer = maker([{"params": list(group["params"]), "lr": group["lr"]} for group in groups])
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"base_optimizer must make a torch.optim.Optimizer, got {optimizer!r}")
    name = type(optimizer).__name__
    if isinstance(optimizer, ResumableOptimizer):
        raise TypeError(f"base_optimizer must make an optimizer without noise of its own, got {name}")
    if any(g.get("maximize") for g in optimizer.param_groups):
        raise ValueError(f"base_optimizer must minimise, got maximize=True of {name}: it would leave the posterior")
    if decay := next((g["weight_decay"] for g in optimizer.param_groups if g.get("weight_decay")), 0.0):
        raise ValueError(
            f"base_optimizer must have no weight_decay beside the sampler's prior_precision, got {decay} of {name}: "
            f"give functools.partial({name}, weight_decay=0)"
        )
    try:
        inspect.signature(optimizer.step).bind()
    except TypeError as error:
        raise TypeError(
            f"base_optimizer must make an optimizer that steps by the gradients alone: {name}.step is {error}"
        ) from None
    return optimizer


def step(optimizer: Optimizer, groups: list[dict[str, Any]], moves: Mapping[Tensor, Tensor]) -> None:
    """Give it −φ/N as the gradients and the groups' lr; gradients that were there stay."""
    before = {p: p.grad for group in groups for p in group["params"]}
    try:
        for group, base in zip(groups, optimizer.param_groups, strict=True):
            if "initial_lr" in base and "initial_lr" not in group:
                raise ValueError("base_optimizer takes the sampler's lr, but has a scheduler: give that the sampler")
            base["lr"] = group["lr"]
            for p in group["params"]:
                p.grad = moves[p].div(-as_number(group["num_data"])) if p in moves else None
        optimizer.step()
    finally:
        for p, grad in before.items():
            p.grad = grad


def state_dict(optimizer: Optimizer) -> dict[str, Any]:
    """Return the optimizer's state and the name of its class."""
    return {"class": type(optimizer).__name__, **optimizer.state_dict()}


def loadable(sampler: Chain, optimizer: Optimizer | None, saved: Any) -> dict[str, Any] | None:
    """Return the state that the base optimizer is to load, from a saved one; None where neither side has any.

    Raises:
        ValueError: one of both has a base optimizer, or theirs is of another class or of other groups, or holds numbers
            that are not finite. Nothing has changed then.
    """
    if optimizer is None or saved is None:
        if (saved is None) != (optimizer is None):
            theirs, ours = ("none" if one is None else "one" for one in (saved, optimizer))
            raise ValueError(f"base_optimizer does not fit: the state has {theirs}, this sampler {ours}")
        return None
    ours = type(optimizer).__name__
    if saved.get("class") != ours:
        raise ValueError(f"the state's base_optimizer is of class {saved.get('class')!r}, this sampler's is {ours!r}")
    saved = {name: value for name, value in saved.items() if name != "class"}
    trial = copy.deepcopy(optimizer)
    trial.load_state_dict(saved)
    for group, tried in zip(sampler.param_groups, trial.param_groups, strict=True):
        for i, p in enumerate(tried["params"]):
            for key, value in trial.state.get(p, {}).items():
                if isinstance(value, Tensor) and not sharding.all_finite(value):
                    parameter = sampler.name_of(group, i)
                    raise ValueError(
                        f"the state's base_optimizer has a {key} of parameter {parameter} that is not finite"
                    )
    return saved
