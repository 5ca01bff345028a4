"""What a sampler's state dict holds beyond torch's: whose it is, and the state of its random number generator."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from learned_samplers.base.sampler import Sampler


def check_saved(sampler: Sampler, saved: dict[str, Any]) -> None:
    """Raise ValueError if ``saved`` is not the state of such a sampler over such parameters."""
    own = type(sampler).__name__
    name = saved.get("sampler", {}).get("name") if isinstance(saved, dict) else None
    if name != own:
        raise ValueError(f"state_dict is of {name or 'another optimizer'}, this sampler is {own}")
    if ("generator" in saved["sampler"]["rng"]) != (sampler.generator is not None):
        raise ValueError("state_dict and sampler must both have a generator= or both use torch's global one")
    params = [(group, i) for group in sampler.param_groups for i in range(len(group["params"]))]
    indices = [i for group in saved["param_groups"] for i in group["params"]]
    if len(params) != len(indices) or len(sampler.param_groups) != len(saved["param_groups"]):
        raise ValueError(
            f"state_dict has {len(saved['param_groups'])} groups with {len(indices)} parameters, "
            f"this sampler has {len(sampler.param_groups)} with {len(params)}"
        )
    for own_group, group in zip(sampler.param_groups, saved["param_groups"], strict=True):
        for key in sampler.structural:
            if group.get(key) != own_group[key]:
                raise ValueError(f"state_dict has {key}={group.get(key)!r}, this sampler has {own_group[key]!r}")
    for (group, i), index in zip(params, indices, strict=True):
        entry = saved["state"].get(index, {})
        parameter = f"parameter {sampler._name(group, i)}"
        if entry and set(entry) != set(sampler.state_names):
            raise ValueError(
                f"state_dict holds {sorted(entry)} for {parameter}, {own} needs {sorted(sampler.state_names)}"
            )
        for key, value in entry.items():
            expected = sampler._state_shape(key, group["params"][i])
            if tuple(value.shape) != tuple(expected):
                raise ValueError(
                    f"state_dict's {key} of {parameter} has shape {tuple(value.shape)}, expected {tuple(expected)}"
                )


def rng_state(sampler: Sampler) -> dict[str, Tensor]:
    """State of the sampler's own generator, or of the global ones of the devices that it draws on."""
    if sampler.generator is not None:
        return {"generator": sampler.generator.get_state()}
    return global_rng_state(sampler)


def global_rng_state(sampler: Sampler) -> dict[str, Tensor]:
    """State of torch's global generators, of the CPU and of every GPU that holds parameters."""
    devices = {p.device for group in sampler.param_groups for p in group["params"] if p.device.type == "cuda"}
    return {"cpu": torch.get_rng_state(), **{str(d): torch.cuda.get_rng_state(d) for d in devices}}


def set_rng_state(sampler: Sampler, states: dict[str, Tensor]) -> None:
    """Put back what `rng_state` or `global_rng_state` saved; warns where the GPU of a saved state is not there."""
    for name, state in states.items():
        state = state.to("cpu", torch.uint8)
        if name == "generator":
            assert sampler.generator is not None
            sampler.generator.set_state(state)
        elif name == "cpu":
            torch.set_rng_state(state)
        elif torch.cuda.is_available():
            torch.cuda.set_rng_state(state, name)
        else:
            warnings.warn(f"the noise of {name} cannot be resumed: there is no GPU here", stacklevel=3)
