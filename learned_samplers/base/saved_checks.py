"""Validation of a saved state before anything of it is loaded."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from learned_samplers.base import prior_mean, sharding, validation


def validate_groups(sampler: Any, saved: dict[str, Any]) -> None:
    """Raise ValueError unless the saved groups are those of ``sampler``: number, names, structure, hyperparameters."""
    own_groups, groups = sampler.param_groups, saved.get("param_groups")
    if not isinstance(groups, list) or not all(isinstance(g, dict) and "params" in g for g in groups):
        raise ValueError("state_dict must hold a list of param_groups")
    indices = [i for group in groups for i in group["params"]]
    counts = [len(group["params"]) for group in own_groups]
    if [len(group["params"]) for group in groups] != counts:
        raise ValueError(
            f"state_dict has {len(groups)} groups with {len(indices)} parameters, "
            f"this sampler has {len(own_groups)} with {sum(counts)}"
        )
    _validate_shapes(sampler, saved["sampler"].get("shapes"))
    for number, (own_group, group) in enumerate(zip(own_groups, groups, strict=True)):
        means = f"state_dict's prior_mean of parameter group {number}"
        prior_mean.validate(sampler, means, group.get("prior_mean"), own_group["params"])
        names, own_names = group.get("param_names"), own_group.get("param_names")
        if names and own_names and list(names) != list(own_names):
            there, here = next((a, b) for a, b in zip(names, own_names, strict=True) if a != b)
            raise ValueError(
                f"state_dict has other parameters, or in another order: {there!r} where this one has {here!r}"
            )
        for key in sampler.structural:
            if group.get(key) != own_group[key]:
                raise ValueError(f"state_dict has {key}={group.get(key)!r}, this sampler has {own_group[key]!r}")
        for key in ("lr", "num_data", "temperature", "prior_precision", "step"):
            if key in own_group and key not in group:
                raise ValueError(f"state_dict has no {key} in a parameter group")
        validation.whole("step in the state_dict", group.get("step", 0), least=0)


def _validate_shapes(sampler: Any, shapes: Any) -> None:
    """Raise ValueError unless the saved shapes are those of the parameters; earlier states do not say, and have None.

    A sampler without state tensors has nothing else by which another network's state could be told.
    """
    own = [(sampler.name_of(g, i), tuple(p.shape)) for g in sampler.param_groups for i, p in enumerate(g["params"])]
    if shapes is None:
        return
    if not isinstance(shapes, list) or len(shapes) != len(own):
        raise ValueError(f"state_dict's shapes must be those of {len(own)} parameters, got {shapes!r:.60}")
    for (name, shape), saved in zip(own, shapes, strict=True):
        if tuple(saved) != shape:
            raise ValueError(f"state_dict has the shape {tuple(saved)} for parameter {name}, this sampler has {shape}")


def validate_tensors(sampler: Any, saved: dict[str, Any]) -> None:
    """Raise ValueError for a state tensor that is missing, of another name or shape, complex or not finite."""
    own, groups = type(sampler).__name__, saved["param_groups"]
    entries, waiting = saved.get("state"), saved["sampler"].get("without_state", [])
    if not isinstance(entries, dict):
        raise ValueError("state_dict must hold a dict of states")
    for own_group, group in zip(sampler.param_groups, groups, strict=True):
        for i, (p, index) in enumerate(zip(own_group["params"], group["params"], strict=True)):
            entry, expected = entries.get(index, {}), set(sampler.saved_names({**own_group, **group}, p))
            parameter = f"parameter {sampler.name_of(own_group, i)}"
            may_lack = not p.requires_grad or not group.get("step") or group.get("missing_gradient") == "skip"
            may_lack = may_lack or index in waiting
            if set(entry) != expected and (entry or not may_lack):
                raise ValueError(f"state_dict holds {sorted(entry)} for {parameter}, {own} needs {sorted(expected)}")
            for key, value in entry.items():
                name = f"state_dict's {key} of {parameter}"
                _validate_tensor(name, value, tuple(sampler.state_shape(key, p)))
                if not sharding.same_layout(value, p):
                    raise ValueError(
                        f"{name} is not laid out over processes as the parameter is: load it by "
                        "torch.distributed.checkpoint into the state_dict of this sampler"
                    )


def _validate_tensor(name: str, value: Any, shape: tuple[int, ...]) -> None:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"{name} must be a real floating-point tensor, got {kind}")
    if tuple(value.shape) != shape:
        raise ValueError(f"{name} has shape {tuple(value.shape)}, expected {shape}")
    if not sharding.all_finite(value):
        raise ValueError(f"{name} is not finite")


def validate_noise(saved: dict[str, Any], *, own_generator: bool, device: torch.device) -> None:
    """Raise ValueError unless the state of a random number generator is there and is one.

    Args:
        saved: the state.
        own_generator: whether the sampler has one of its own.
        device: of that, or of the one that it would get.
    """
    states = saved["sampler"].get("rng")
    if not isinstance(states, dict) or not states or not ({"cpu", "generator"} & set(states)):
        raise ValueError("state_dict holds no state of a random number generator: the chain's noise cannot be resumed")
    if "generator" in states and not own_generator and not saved["sampler"].get("replicated"):
        raise ValueError(_MIXED)
    if "generator" not in states and own_generator:
        raise ValueError(_MIXED)
    for name, state in states.items():
        if not isinstance(state, Tensor) or state.dtype != torch.uint8 or not state.numel():
            raise ValueError(f"state_dict's random number generator {name!r} must be bytes, got {state!r:.60}")
    # A generator of the sampler's own may be a GPU's, whose state is no CPU's.
    for name, place in (("cpu", torch.device("cpu")), ("generator", device)):
        if name in states:
            try:
                torch.Generator(place).set_state(states[name].to("cpu"))
            except RuntimeError as error:
                whose = "the CPU's random number generator" if name == "cpu" else f"a generator on {place}"
                raise ValueError(f"state_dict's random state is none of {whose}: {error}") from error


_MIXED = "state_dict and sampler must both have a generator= or both use torch's global one"
