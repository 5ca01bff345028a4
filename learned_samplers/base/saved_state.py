"""An optimizer whose state dict also holds a random number generator, so that a random chain continues exactly."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

import torch
from torch import Tensor


class ResumableOptimizer(torch.optim.Optimizer):
    """A ``torch.optim.Optimizer`` that draws random numbers and continues bit for bit from its ``state_dict``."""

    #: Per-coordinate state tensors, in the order in which the update takes and returns them.
    state_names: ClassVar[tuple[str, ...]] = ()
    #: Keys of the parameter groups that choose the rule or its state: the same in every group, and in a loaded state.
    structural: ClassVar[tuple[str, ...]] = ()
    #: Where the noise comes from; None is torch's global generator.
    generator: torch.Generator | None = None

    def name_of(self, group: dict[str, Any], index: int) -> str:
        """The name of a parameter for messages: its own, or its number and shape."""
        if "param_names" in group:
            return repr(group["param_names"][index])
        return f"number {index} of shape {tuple(group['params'][index].shape)}"

    def state_shape(self, name: str, p: Tensor) -> tuple[int, ...]:
        """Shape of the state tensor ``name`` of a parameter; the parameter's own unless a sampler says otherwise."""
        return tuple(p.shape)

    def state_dict(self) -> dict[str, Any]:
        """As in `torch.optim.Optimizer`, with the sampler's name and the state of its random number generator.

        Without ``generator=`` that is torch's global generator (of the CPU and of every GPU that holds parameters),
        which `load_state_dict` sets. Loads with ``torch.load(..., weights_only=True)``.
        """
        saved = super().state_dict()
        saved["sampler"] = {"name": type(self).__name__, "rng": self.rng_state()}
        return saved

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a saved state: with the parameters loaded too, the chain continues bit for bit.

        Raises:
            ValueError: the state is of another sampler, of other shapes or groups, or was saved with ``generator=``
                where this one has none (or the other way round). Nothing has changed then.
        """
        self.validate_saved(state_dict)
        before = self.rng_state()
        try:
            self.set_rng_state(state_dict["sampler"]["rng"])
            super().load_state_dict(state_dict)
        except BaseException:
            self.set_rng_state(before)
            raise

    def validate_saved(self, saved: dict[str, Any]) -> None:
        """Raise ValueError unless ``saved`` is the state of this class of sampler over parameters of these shapes."""
        own = type(self).__name__
        name = saved.get("sampler", {}).get("name") if isinstance(saved, dict) else None
        if name != own:
            raise ValueError(f"state_dict is of {name or 'another optimizer'}, this sampler is {own}")
        if ("generator" in saved["sampler"]["rng"]) != (self.generator is not None):
            raise ValueError("state_dict and sampler must both have a generator= or both use torch's global one")
        params = [(group, i) for group in self.param_groups for i in range(len(group["params"]))]
        indices = [i for group in saved["param_groups"] for i in group["params"]]
        if len(params) != len(indices) or len(self.param_groups) != len(saved["param_groups"]):
            raise ValueError(
                f"state_dict has {len(saved['param_groups'])} groups with {len(indices)} parameters, "
                f"this sampler has {len(self.param_groups)} with {len(params)}"
            )
        for own_group, group in zip(self.param_groups, saved["param_groups"], strict=True):
            for key in self.structural:
                if group.get(key) != own_group[key]:
                    raise ValueError(f"state_dict has {key}={group.get(key)!r}, this sampler has {own_group[key]!r}")
        for (group, i), index in zip(params, indices, strict=True):
            entry = saved["state"].get(index, {})
            parameter = f"parameter {self.name_of(group, i)}"
            if entry and set(entry) != set(self.state_names):
                raise ValueError(
                    f"state_dict holds {sorted(entry)} for {parameter}, {own} needs {sorted(self.state_names)}"
                )
            for key, value in entry.items():
                expected = self.state_shape(key, group["params"][i])
                if tuple(value.shape) != tuple(expected):
                    raise ValueError(
                        f"state_dict's {key} of {parameter} has shape {tuple(value.shape)}, expected {tuple(expected)}"
                    )

    def rng_state(self) -> dict[str, Tensor]:
        """State of the sampler's own generator, or of the global ones of the devices that it draws on."""
        if self.generator is not None:
            return {"generator": self.generator.get_state()}
        return self.global_rng_state()

    def global_rng_state(self) -> dict[str, Tensor]:
        """State of torch's global generators, of the CPU and of every GPU that holds parameters."""
        devices = {p.device for group in self.param_groups for p in group["params"] if p.device.type == "cuda"}
        return {"cpu": torch.get_rng_state(), **{str(d): torch.cuda.get_rng_state(d) for d in devices}}

    def set_rng_state(self, states: dict[str, Tensor]) -> None:
        """Restore what `rng_state` or `global_rng_state` gave; warns if the GPU of a saved state is missing."""
        for name, state in states.items():
            state = state.to("cpu", torch.uint8)
            if name == "generator":
                assert self.generator is not None
                self.generator.set_state(state)
            elif name == "cpu":
                torch.set_rng_state(state)
            elif torch.cuda.is_available():
                torch.cuda.set_rng_state(state, name)
            else:
                warnings.warn(f"the noise of {name} cannot be resumed: there is no GPU here", stacklevel=3)
