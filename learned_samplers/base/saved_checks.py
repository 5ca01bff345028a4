"""Checks of a saved state before anything of it is loaded: its sampler, groups, tensors, checksum and noise."""

from __future__ import annotations

import zlib
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base import prior, prior_mean, sharding, validation
from learned_samplers.base.guards import precision
from learned_samplers.base.protocol import Chain


def validate_groups(sampler: Chain, saved: dict[str, Any]) -> None:
    """Raise ValueError unless the saved groups are those of ``sampler``: number, names, structure, hyperparameters."""
    own_groups, groups = sampler.param_groups, saved.get("param_groups")
    if not isinstance(groups, list) or not all(isinstance(g, dict) and "params" in g for g in groups):
        raise ValueError("state_dict must hold a list of param_groups")
    if not all(isinstance(g["params"], list) and all(isinstance(i, int) for i in g["params"]) for g in groups):
        raise ValueError("state_dict must hold a list of integers as the params of each of its param_groups")
    indices = [i for group in groups for i in group["params"]]
    counts = [len(group["params"]) for group in own_groups]
    if [len(group["params"]) for group in groups] != counts:
        raise ValueError(
            f"state_dict has {len(groups)} groups with {len(indices)} parameters, "
            f"this sampler has {len(own_groups)} with {sum(counts)}"
        )
    _validate_shapes(sampler, saved["sampler"].get("shapes"))
    for number, (own_group, group) in enumerate(zip(own_groups, groups, strict=True)):
        prior.check_by_input(group)
        means = f"state_dict's prior_mean of parameter group {number}"
        prior_mean.validate(sampler, means, group.get("prior_mean"), own_group["params"])
        names, own_names = group.get("param_names"), own_group.get("param_names")
        if names and own_names and list(names) != list(own_names):
            theirs, ours = next((a, b) for a, b in zip(names, own_names, strict=True) if a != b)
            raise ValueError(
                f"state_dict has other parameters, or in another order: {theirs!r} where this one has {ours!r}"
            )
        for key in sampler.structural:
            if group.get(key) != own_group[key]:
                raise ValueError(f"state_dict has {key}={group.get(key)!r}, this sampler has {own_group[key]!r}")
        for key in ("lr", "num_data", "temperature", "prior_precision", "step"):
            if key in own_group and key not in group:
                raise ValueError(f"state_dict has no {key} in a parameter group")
        validation.integer("step in the state_dict", group.get("step", 0), least=0)
        sampler.check_settings({**own_group, **group})


def _validate_shapes(sampler: Chain, shapes: Any) -> None:
    """Raise ValueError unless the saved shapes are those of the parameters; None where the state does not say.

    A sampler without state tensors has nothing else by which another network's state could be told.
    """
    groups = sampler.param_groups
    parameters = [(sampler.name_of(g, i), tuple(p.shape)) for g in groups for i, p in enumerate(g["params"])]
    if shapes is None:
        return
    if not isinstance(shapes, list) or len(shapes) != len(parameters):
        raise ValueError(f"state_dict's shapes must be those of {len(parameters)} parameters, got {shapes!r:.60}")
    for (name, shape), saved in zip(parameters, shapes, strict=True):
        if tuple(saved) != shape:
            raise ValueError(f"state_dict has the shape {tuple(saved)} for parameter {name}, this sampler has {shape}")


def validate_tensors(sampler: Chain, saved: dict[str, Any]) -> None:
    """Raise ValueError for a state tensor that is missing, of another name or shape, complex or not finite."""
    sampler_name, groups = type(sampler).__name__, saved["param_groups"]
    entries, waiting = saved.get("state"), saved["sampler"].get("without_state", [])
    if not isinstance(entries, dict):
        raise ValueError("state_dict must hold a dict of states")
    numbers = {index for group in groups for index in group["params"]}
    for index, entry in entries.items():
        if not isinstance(entry, dict) or index not in numbers:
            got = f"{type(entry).__name__} as the state of parameter {index!r}"
            raise ValueError(f"state_dict must hold a dict for each of this sampler's parameters, got {got}")
    for own_group, group in zip(sampler.param_groups, groups, strict=True):
        for i, (p, index) in enumerate(zip(own_group["params"], group["params"], strict=True)):
            entry, expected = entries.get(index, {}), set(sampler.saved_names({**own_group, **group}, p))
            parameter = f"parameter {sampler.name_of(own_group, i)}"
            may_lack = not p.requires_grad or not group.get("step") or group.get("missing_gradient") == "skip"
            may_lack = may_lack or index in waiting
            if set(entry) != expected and (entry or not may_lack):
                reason = _other_precision(p, parameter, index, saved["sampler"].get("dtypes"))
                if reason and set(entry) ^ expected == {precision.MASTER}:
                    raise ValueError(reason)
                raise ValueError(
                    f"state_dict holds {sorted(entry)} for {parameter}, {sampler_name} needs {sorted(expected)}"
                )
            for key, value in entry.items():
                name = f"state_dict's {key} of {parameter}"
                _validate_tensor(name, value, tuple(sampler.state_shape(key, p)))
                if not sharding.same_layout(value, p):
                    raise ValueError(
                        f"{name} is not laid out over processes as the parameter is: load it by "
                        "torch.distributed.checkpoint into the state_dict of this sampler"
                    )
                possible = sampler.is_possible_state({**own_group, **group}, key, sharding.local(value))
                if sharding.anywhere(not possible, sampler.mesh):
                    raise ValueError(
                        f"{name} holds numbers that {sampler_name} never has there (negative, or too large)"
                    )


def dtype_name(p: Tensor) -> str:
    return str(p.dtype).removeprefix("torch.")


def _other_precision(p: Tensor, parameter: str, index: int, dtypes: Any) -> str:
    """Why a state does not fit that was saved of parameters in half precision, or of others than those; "" if not."""
    there = "float32" if p.dtype in precision.HALF else "half-precision"  # of a state that does not say
    if isinstance(dtypes, list) and index < len(dtypes):
        there = dtypes[index]
    if there == dtype_name(p):
        return ""
    return (
        f"state_dict was saved from {there} parameters, and {parameter} is {dtype_name(p)}: convert the network to "
        f"{there} before loading (forward passes in half precision are torch.autocast's), or begin a new chain"
    )


def _validate_tensor(name: str, value: Any, shape: tuple[int, ...]) -> None:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        got = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"{name} must be a real floating-point tensor, got {got}")
    if tuple(value.shape) != shape:
        raise ValueError(f"{name} has shape {tuple(value.shape)}, expected {shape}")
    if not sharding.all_finite(value):
        raise ValueError(f"{name} is not finite")


#: What a saved state says of its sampler, beside the sampler's name and the generators, where it does.
_TYPES: dict[str, type] = {
    "shapes": list,
    "dtypes": list,
    "weight_sums": list,
    "without_state": list,
    "replicated": bool,
    "checksum": int,
    "settings_checksum": int,
    "prior": str,
}


def validate_types(header: dict[str, Any]) -> None:
    """Raise ValueError unless what a saved state says of its sampler is of the types that are written."""
    for name, expected in _TYPES.items():
        if name in header and not isinstance(header[name], expected):
            raise ValueError(f"state_dict's {name} must be of type {expected.__name__}, got {header[name]!r:.60}")


def checksum_of(saved: dict[str, Any]) -> int:
    """CRC-32 of the state tensors and of the states of the generators, in order."""
    crc = 0
    tensors = [x for index in sorted(saved["state"]) for _, x in sorted(saved["state"][index].items())]
    tensors += [state for _, state in sorted(saved["sampler"]["rng"].items())]
    for x in tensors:
        if isinstance(x, Tensor):
            crc = zlib.crc32(x.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data, crc)
    return crc


def settings_checksum_of(saved: dict[str, Any]) -> int:
    """CRC-32 of the values in the parameter groups; of an object that is no number, word or tensor, its type."""
    return zlib.crc32(repr(_plain(saved["param_groups"])).encode())


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        data = sharding.local(value).detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data
        return str(value.dtype), tuple(value.shape), zlib.crc32(data)
    if isinstance(value, dict):
        return sorted((str(key), _plain(one)) for key, one in value.items())
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value if value is None or isinstance(value, int | float | str) else type(value).__name__


def validate_settings_checksum(saved: dict[str, Any]) -> None:
    """Raise ValueError unless the groups' values are those that were saved; older states have no checksum of them."""
    checksum = saved["sampler"].get("settings_checksum")
    if checksum is not None and checksum != settings_checksum_of(saved):
        raise ValueError(
            "state_dict's param_groups (lr, step, ...) are not those that were saved: the file is damaged, they were "
            "edited, or the sampler has stepped since state_dict(). Change settings in sampler.param_groups after "
            "loading, or delete state_dict['sampler']['settings_checksum'] if you have changed them on purpose"
        )


def validate_checksum(saved: dict[str, Any]) -> None:
    """Raise ValueError unless the tensors are those that the state was saved with; older states have no checksum."""
    header = saved.get("sampler")
    checksum = header.get("checksum") if isinstance(header, dict) else None
    if checksum is not None and checksum != checksum_of(saved):
        raise ValueError(
            "state_dict's tensors are not those that were saved: the file is damaged, or the sampler has stepped since "
            "state_dict() (copy.deepcopy it to go back to it). Delete state_dict['sampler']['checksum'] if you have "
            "changed them on purpose"
        )


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
