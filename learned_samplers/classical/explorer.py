"""The optimizer that explores for `AdaptedSGHMC`: made of its groups, stepped and saved with it."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base.guards.precision import MASTER
from learned_samplers.base.operations import as_number
from learned_samplers.base.sampler import Sampler
from learned_samplers.base.saved_checks import validate_checksum
from learned_samplers.base.step import GroupInputs

#: Makes an optimizer of parameter groups.
MakeOptimizer = Callable[..., torch.optim.Optimizer]

# Given to a sampler that explores, unless the caller has; they follow the groups' values at every step.
_TARGET = ("num_data", "temperature", "prior_precision")


class Explorer:
    """An optimizer of a sampler's groups, which moves them until the sampler does.

    Args:
        make: a class of samplers, a ``functools.partial`` of one, or any callable that makes an optimizer of groups.
        groups: of the sampler.

    Raises:
        TypeError, ValueError: the result is no optimizer of these groups, needs more than gradients, or has a setting
            that is not finite.
    """

    def __init__(self, make: MakeOptimizer, groups: list[dict[str, Any]]):
        made, keywords = (make.func, make.keywords) if isinstance(make, functools.partial) else (make, {})
        self._is_sampler = isinstance(made, type) and issubclass(made, Sampler)
        declared = getattr(made, "declared", {})
        self._target = tuple(name for name in _TARGET if name in declared and name not in keywords)
        self._make = make
        self.optimizer = self._of([self._group(group) for group in groups])
        _validate(self.optimizer, groups)

    def _of(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return self._make(groups, **{name: groups[0][name] for name in self._target})

    def _group(self, group: dict[str, Any]) -> dict[str, Any]:
        """The group of the other optimizer with the parameters of one of the sampler's."""
        names, params = group.get("param_names"), list(group["params"])
        settings: dict[str, Any] = {"params": list(zip(names, params, strict=True)) if names else params}
        if self._is_sampler:
            settings |= {name: group[name] for name in ("master_weights", "missing_gradient")}
        return settings | {name: group[name] for name in self._target}

    def add(self, group: dict[str, Any]) -> None:
        """Take in a further group of the sampler."""
        self.optimizer.add_param_group(self._group(group))

    def step(self, number: int, group: dict[str, Any], inputs: GroupInputs, position: int, generator: Any) -> None:
        """Move the group of that number, after ``position`` steps."""
        explorer_group = self.optimizer.param_groups[number]
        if isinstance(self.optimizer, Sampler):
            explorer_group.update({name: group[name] for name in self._target}, step=position)
            self.optimizer.generator = generator
            self.optimizer.advance(explorer_group, inputs)
            explorer_group["step"] += 1
        else:
            _step(self.optimizer, explorer_group, inputs)

    def state_dict(self) -> dict[str, Any]:
        """Name and state of the optimizer."""
        return {"name": type(self.optimizer).__name__, "state_dict": self.optimizer.state_dict()}

    def load_state_dict(self, saved: Any, of_sampler: dict[int, dict[str, Any]], device: torch.device) -> None:
        """Go on from a saved state, beside that of the sampler's tensors; the generators may be left elsewhere.

        In single precision where the parameters are half: the copies of a sampler's are those that the other has.

        Raises:
            ValueError: it is of another optimizer, or lacks what that needs.
        """
        if saved is None:
            raise ValueError("state_dict is of a chain that explores without a warmup, this sampler has one")
        if not isinstance(saved, dict):
            raise ValueError(f"state_dict's warmup must be a dict, got {type(saved).__name__}")
        saved_name, name = saved.get("name"), type(self.optimizer).__name__
        if saved_name != name:
            raise ValueError(f"state_dict explores by {saved_name}, the warmup of this sampler by {name}")
        saved = saved.get("state_dict")
        if not isinstance(saved, dict) or not isinstance(saved.get("state"), dict):
            raise ValueError(f"state_dict's warmup holds no state of {name}")
        params = [p for group in self.optimizer.param_groups for p in group["params"]]
        if isinstance(self.optimizer, Sampler):
            if "generator" in saved.get("sampler", {}).get("rng", {}):
                self.optimizer.generator = torch.Generator(device)
            masters = {i: {MASTER: state[MASTER]} for i, state in of_sampler.items() if MASTER in state}
            states = {i: {**state, **masters.get(i, {})} for i, state in saved["state"].items()}
            validate_checksum(saved)  # of a state without masters
            for group, kept in zip(self.optimizer.param_groups, saved.get("param_groups", ()), strict=False):
                group.update({name: kept[name] for name in self._target if name in kept})  # which follow the sampler's
            header = {name: value for name, value in saved.get("sampler", {}).items() if name != "checksum"}
            self.optimizer.load_state_dict({**saved, "sampler": header, "state": states})
            for p in params:
                self.optimizer.state.get(p, {}).pop(MASTER, None)
            return
        self._validate_tensors(saved["state"], of_sampler)
        self.optimizer.load_state_dict(saved)
        _validate_numbers(self.optimizer)
        for p, index in zip(params, [i for group in saved["param_groups"] for i in group["params"]], strict=True):
            for name, x in saved["state"].get(index, {}).items():
                if isinstance(x, Tensor):  # which torch has cast to the parameter's dtype
                    self.optimizer.state[p][name] = x.to(self.optimizer.state[p][name].device, copy=True)

    def _validate_tensors(self, states: dict[int, Any], of_sampler: dict[int, dict[str, Any]]) -> None:
        """Raise ValueError unless a state of torch's has, of each parameter that has moved, what a step would leave."""
        groups = self.optimizer.param_groups
        copies = [[p.detach().clone().requires_grad_(p.requires_grad) for p in group["params"]] for group in groups]
        twin, params = self._make([{"params": tensors} for tensors in copies]), [p for ps in copies for p in ps]
        if [p for group in twin.param_groups for p in group["params"]] != params:
            return
        for p in params:
            p.grad = torch.zeros_like(p) if p.requires_grad else None
        twin.step()
        name = type(self.optimizer).__name__
        for i, p in enumerate(params):
            needed, state = twin.state.get(p, {}), states.get(i, {})
            if i in of_sampler and (lacking := sorted(needed.keys() - state.keys())):
                raise ValueError(f"state_dict's warmup by {name} lacks {', '.join(lacking)} of parameter number {i}")
            for key, value in state.items():
                _validate_like(f"state_dict's {key} of parameter number {i} in the warmup", value, needed.get(key))

    def bookmark(self) -> Callable[[], None]:
        """Return the function that puts its state back as it is now."""
        states = self.optimizer.state
        copies = {
            p: {name: x.clone() if isinstance(x, Tensor) else x for name, x in state.items()}
            for p, state in states.items()
        }
        restore_sampler = self.optimizer.bookmark() if isinstance(self.optimizer, Sampler) else None

        def restore() -> None:
            if restore_sampler is not None:
                restore_sampler()
            states.clear()
            states.update(copies)

        return restore


def _validate(optimizer: Any, groups: list[dict[str, Any]]) -> None:
    """Raise TypeError or ValueError unless it is an optimizer of these groups that needs nothing but gradients."""
    name = type(optimizer).__name__
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"warmup must make a torch.optim.Optimizer, got {name}")
    ids = [[id(p) for p in group["params"]] for group in optimizer.param_groups]
    if ids != [[id(p) for p in group["params"]] for group in groups]:
        raise ValueError(f"warmup must make an optimizer of the groups that it is given, got a {name} of others")
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    needs_more = closure is not None and closure.default is inspect.Parameter.empty
    if isinstance(optimizer, Sampler):
        needs_more = optimizer.needs_closure or type(optimizer).evaluate is not Sampler.evaluate
    if needs_more:
        raise ValueError(f"warmup must make an optimizer that needs nothing but gradients, got {name}")
    _validate_numbers(optimizer)


def _validate_numbers(optimizer: torch.optim.Optimizer) -> None:
    """Raise ValueError where a setting of the optimizer is not finite."""
    for group in optimizer.param_groups:
        for key, value in group.items():
            number = isinstance(value, float) or (isinstance(value, Tensor) and value.dim() == 0)
            if number and not math.isfinite(as_number(value)):
                raise ValueError(f"warmup must have finite settings, got {key}={value} of {type(optimizer).__name__}")


def _validate_like(name: str, value: Any, example: Any) -> None:
    """Raise ValueError unless a saved value is finite and of the kind and shape of the example, if there is one."""
    if isinstance(example, Tensor) and not isinstance(value, Tensor | int | float):
        raise ValueError(f"{name} must be a tensor, got {type(value).__name__}")
    if isinstance(example, Tensor) and isinstance(value, Tensor) and value.shape != example.shape:
        raise ValueError(f"{name} has shape {tuple(value.shape)}, expected {tuple(example.shape)}")
    if isinstance(value, Tensor) and value.is_floating_point() and not value.isfinite().all():
        raise ValueError(f"{name} is not finite")


def _step(optimizer: torch.optim.Optimizer, group: dict[str, Any], inputs: GroupInputs) -> None:
    """Take a step of any optimizer in one of its groups: of the parameters that move, by the checked gradients.

    Raises:
        FloatingPointError: it has written a parameter that is not finite.
    """
    gradients_before, all_groups = [p.grad for p in group["params"]], optimizer.param_groups
    gradients = {id(p): gradient for p, gradient in zip(inputs.params, inputs.gradients, strict=True)}
    optimizer.param_groups = [group]
    try:
        for p in group["params"]:
            p.grad = gradients.get(id(p))
        optimizer.step()
        largest = [p.detach().abs().amax() for p in inputs.params if p.numel()]
        if largest and not torch.stack([x.double().to(largest[0].device) for x in largest]).isfinite().all():
            raise FloatingPointError(f"the warm-up by {type(optimizer).__name__} has made a parameter not finite")
    finally:
        optimizer.param_groups = all_groups
        for p, gradient in zip(group["params"], gradients_before, strict=True):
            moved = p.data
            if gradient is not None and gradient.dtype != p.dtype:  # in the place of one of half precision is its copy
                p.grad, p.data = None, moved.to(gradient.dtype)
            p.grad, p.data = gradient, moved
