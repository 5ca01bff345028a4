"""The optimizer that explores for `AdaptedSGHMC`: made of its groups, stepped and saved with it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base.guards.precision import MASTER
from learned_samplers.base.sampler import Sampler
from learned_samplers.base.step import GroupInputs

#: Makes an optimizer of parameter groups.
MakeOptimizer = Callable[..., torch.optim.Optimizer]

# What a sampler that explores is given, unless the caller has; it follows the groups' values at every step.
_SHARED = ("num_data", "temperature", "prior_precision")


class WarmUp:
    """An optimizer of a sampler's groups, which moves them until the sampler does.

    Args:
        make: a class of samplers, a ``functools.partial`` of one, or any callable that makes an optimizer of groups.
        groups: of the sampler.

    Raises:
        TypeError, ValueError: what is made is no optimizer of these groups, or needs more than gradients.
    """

    def __init__(self, make: MakeOptimizer, groups: list[dict[str, Any]]):
        made, own = (make.func, make.keywords) if isinstance(make, functools.partial) else (make, {})
        self._is_sampler = isinstance(made, type) and issubclass(made, Sampler)
        takes = getattr(made, "declared", {})
        self._shared = tuple(name for name in _SHARED if name in takes and name not in own)
        listed = [self._of_group(group) for group in groups]
        self.optimizer = make(listed, **{name: listed[0][name] for name in self._shared})
        _validate(self.optimizer, groups)

    def _of_group(self, group: dict[str, Any]) -> dict[str, Any]:
        names, params = group.get("param_names"), list(group["params"])
        found: dict[str, Any] = {"params": list(zip(names, params, strict=True)) if names else params}
        if self._is_sampler:
            found |= {name: group[name] for name in ("master_weights", "missing_gradient")}
        return found | self._values(group)

    def _values(self, group: dict[str, Any]) -> dict[str, Any]:
        return {name: group[name] for name in self._shared}

    def add(self, group: dict[str, Any]) -> None:
        """Take in a further group of the sampler."""
        self.optimizer.add_param_group(self._of_group(group))

    def step(self, number: int, group: dict[str, Any], inputs: GroupInputs, position: int, generator: Any) -> None:
        """Move the group of that number, after ``position`` steps."""
        theirs = self.optimizer.param_groups[number]
        if isinstance(self.optimizer, Sampler):
            theirs.update(self._values(group), step=position)
            self.optimizer.generator = generator
            self.optimizer.advance(theirs, inputs)
            theirs["step"] += 1
        elif torch.compiler.is_compiling():
            name = type(self.optimizer).__name__
            raise RuntimeError(f"a warm-up by {name} cannot be compiled: compile the step once it is over")
        else:
            _step(self.optimizer, theirs, inputs)

    def state_dict(self) -> dict[str, Any]:
        return {"name": type(self.optimizer).__name__, "state_dict": self.optimizer.state_dict()}

    def load_state_dict(
        self, saved: dict[str, Any], of_sampler: dict[int, dict[str, Any]], device: torch.device
    ) -> None:
        """Go on from a saved state, beside that of the sampler's tensors; the generators may be left elsewhere.

        In single precision where the parameters are half: the copies of a sampler's are those that the other has.

        Raises:
            ValueError: it is of another optimizer.
        """
        theirs, own = saved.get("name"), type(self.optimizer).__name__
        if theirs != own:
            raise ValueError(f"state_dict explores by {theirs}, the warmup of this sampler by {own}")
        saved = saved["state_dict"]
        every = [p for group in self.optimizer.param_groups for p in group["params"]]
        if isinstance(self.optimizer, Sampler):
            if "generator" in saved.get("sampler", {}).get("rng", {}):
                self.optimizer.generator = torch.Generator(device)
            copies = {i: {MASTER: own[MASTER]} for i, own in of_sampler.items() if MASTER in own}
            states = {i: {**own, **copies.get(i, {})} for i, own in saved.get("state", {}).items()}
            self.optimizer.load_state_dict({**saved, "state": states})
            for p in every:
                self.optimizer.state.get(p, {}).pop(MASTER, None)
            return
        self.optimizer.load_state_dict(saved)
        for p, index in zip(every, [i for group in saved["param_groups"] for i in group["params"]], strict=True):
            for name, x in saved["state"].get(index, {}).items():
                if isinstance(x, Tensor):  # which torch has cast to the parameter's dtype
                    self.optimizer.state[p][name] = x.to(self.optimizer.state[p][name].device, copy=True)

    def bookmark(self) -> Callable[[], None]:
        """What puts its state back as it is now."""
        state = self.optimizer.state
        known = {
            p: {name: x.clone() if isinstance(x, Tensor) else x for name, x in own.items()} for p, own in state.items()
        }
        others = self.optimizer.bookmark() if isinstance(self.optimizer, Sampler) else None

        def restore() -> None:
            if others is not None:
                others()
            state.clear()
            state.update(known)

        return restore


def _validate(optimizer: Any, groups: list[dict[str, Any]]) -> None:
    name = type(optimizer).__name__
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"warmup must make a torch.optim.Optimizer, got {name}")
    theirs = [[id(p) for p in group["params"]] for group in optimizer.param_groups]
    if theirs != [[id(p) for p in group["params"]] for group in groups]:
        raise ValueError(f"warmup must make an optimizer of the groups that it is given, got a {name} of others")
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    needs_more = closure is not None and closure.default is inspect.Parameter.empty
    if isinstance(optimizer, Sampler):
        needs_more = optimizer.needs_closure or type(optimizer).evaluate is not Sampler.evaluate
    if needs_more:
        raise ValueError(f"warmup must make an optimizer that needs nothing but gradients, got {name}")


def _step(optimizer: torch.optim.Optimizer, group: dict[str, Any], inputs: GroupInputs) -> None:
    """A step of any optimizer in one of its groups: of the parameters that move, by the gradients that were checked."""
    given, every = [p.grad for p in group["params"]], optimizer.param_groups
    found = {id(p): gradient for p, gradient in zip(inputs.params, inputs.gradients, strict=True)}
    optimizer.param_groups = [group]
    try:
        for p in group["params"]:
            p.grad = found.get(id(p))
        optimizer.step()
    finally:
        optimizer.param_groups = every
        for p, gradient in zip(group["params"], given, strict=True):
            moved = p.data
            if gradient is not None and gradient.dtype != p.dtype:  # in the place of one of half precision is its copy
                p.grad, p.data = None, moved.to(gradient.dtype)
            p.grad, p.data = gradient, moved
