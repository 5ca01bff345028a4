"""An optimizer whose state dict also holds a random number generator, so that a random chain continues exactly."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from learned_samplers.base import prior_mean, sharding, validation
from learned_samplers.base.guards import broken_off, precision, resumed, shards
from learned_samplers.base.noise import NoisyOptimizer
from learned_samplers.base.operations import as_number
from learned_samplers.base.prior import Prior
from learned_samplers.base.warning import warn


class ResumableOptimizer(NoisyOptimizer):
    """A ``torch.optim.Optimizer`` that draws random numbers and continues bit for bit from its ``state_dict``."""

    #: Per-coordinate state tensors, in the order in which the update takes and returns them.
    state_names: ClassVar[tuple[str, ...]] = ()
    #: State tensors of squares and sizes, which are never negative.
    non_negative: ClassVar[tuple[str, ...]] = ()
    #: Keys of the parameter groups that choose the rule or its state: the same in every group, and in a loaded state.
    structural: ClassVar[tuple[str, ...]] = ()
    #: Keys of the parameter groups without which a saved state says nothing about the update.
    hyperparameters: ClassVar[tuple[str, ...]] = ()
    #: Whether this chain is held by several processes (None: not known before the first step).
    replicated: bool | None = None
    #: Whether an update was broken off in the middle, and no state was loaded since.
    broken_off: bool = False
    #: After a state was loaded, until the next step: what the weights saved with it sum up to.
    saved_weights: list[float] | None = None
    #: Whether this process has agreed with the others on the noise of a replicated chain.
    agreed: bool = False
    #: The device mesh that the parameters are sharded over.
    mesh: Any = None
    #: A prior with a precision for each parameter, None where it is one number.
    prior: Prior | None = None
    #: The `CyclicalSchedule` that is attached to this sampler, or None.
    schedule: Any = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self.mesh is None:  # a copy of a sampler of sharded parameters: they know theirs
            sharded = (p for group in self.param_groups for p in group["params"] if sharding.is_sharded(p))
            self.mesh = next((p.device_mesh for p in sharded), None)

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
        which `load_state_dict` sets. Loads with ``torch.load(..., weights_only=True)``. As in torch its tensors are
        those that the next step changes: ``copy.deepcopy`` it to go back to it later. That of sharded parameters
        holds DTensors, for ``torch.distributed.checkpoint``; all processes call it, which before the first step makes
        the state that a checkpoint is read into.

        Raises:
            RuntimeError: a step was broken off in the middle, so that there is no state to save.
        """
        broken_off.refuse(self)
        if self.mesh is not None and not self.state:
            shards.make_state(self)
        saved = super().state_dict()
        # NumPy's numbers, of a grid or a scheduler, would not load with weights_only.
        saved["param_groups"] = [
            {key: value.item() if isinstance(value, np.generic) else value for key, value in group.items()}
            for group in saved["param_groups"]
        ]
        saved["sampler"] = {"name": type(self).__name__, "rng": self.rng_state()}
        if self.mesh is None:  # torch.distributed.checkpoint compares shapes, and cannot read a key that a file lacks
            everything = [p for group in self.param_groups for p in group["params"]]
            saved["sampler"]["shapes"] = [list(p.shape) for p in everything]
            saved["sampler"]["dtypes"] = [_dtype_name(p) for p in everything]
            saved["sampler"]["weight_sums"] = resumed.weight_sums(everything)
            saved["sampler"]["checksum"] = _checksum(saved)
        if self.replicated:
            saved["sampler"]["replicated"] = True
        waiting = [
            index
            for group, p, index in self.indexed(saved)
            if group["step"] and p.requires_grad and not self.state.get(p)
        ]
        if waiting:  # they joined, or were unfrozen, after the last step
            saved["sampler"]["without_state"] = waiting
        return saved

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a saved state: with the parameters loaded too, the chain continues bit for bit.

        Raises:
            ValueError, TypeError: the state is of another sampler, of other shapes, groups or names, lacks a tensor or
                the generator's state, holds numbers that are not finite or hyperparameters that are out of range, or
                was saved with ``generator=`` where this one has none (or the other way round). Nothing has changed
                then.
        """
        self.validate_saved(state_dict)
        noise, state, groups, generator = self.rng_state(), self.state, self.param_groups, self.generator
        # Keys that an older state does not have keep the values of this sampler.
        filled = [
            {**{key: value for key, value in defaults.items() if key in self.defaults}, **group}
            for defaults, group in zip(groups, state_dict["param_groups"], strict=True)
        ]
        try:
            if self.generator is None and "generator" in state_dict["sampler"]["rng"]:
                self.generator = torch.Generator(groups[0]["params"][0].device)  # that of a replicated chain
            self.set_rng_state(state_dict["sampler"]["rng"])
            super().load_state_dict({**state_dict, "param_groups": filled})
            self._own(state_dict)
            for group in self.param_groups:
                self.check_group(group)
        except BaseException:
            self.__setstate__({"state": state, "param_groups": groups})
            self.generator = generator
            self.set_rng_state(noise)
            raise
        self.broken_off = False
        self.saved_weights = state_dict["sampler"].get("weight_sums") if self.mesh is None else None
        self._loaded()
        drawn = self.prior is not None and self.prior.every
        for key in ("num_data", "temperature", *(() if drawn else ("prior_precision",))):
            pairs = ((_target(group, key), _target(saved, key)) for group, saved in zip(groups, filled, strict=True))
            before, now = next((pair for pair in pairs if pair[0] != pair[1]), (None, None))
            if before is not None:
                warn(
                    f"the state was saved with {key}={now:g}, which has taken the place of {before:g}, as all "
                    "hyperparameters of a saved state do: set it in param_groups again if it is to change"
                )
        for saved, now in zip(state_dict["sampler"].get("dtypes", ()), self._dtypes_sampled(), strict=False):
            if now and saved != now:
                warn(
                    f"the state was saved from {saved} parameters, and these are {now}: the chain goes on with other "
                    f"noise, not as it would have. Convert the network to {saved} to resume it exactly"
                )
                break

    def _dtypes_sampled(self) -> list[str]:
        """The dtype of each parameter, "" of those that are not sampled."""
        return [_dtype_name(p) if p.requires_grad else "" for group in self.param_groups for p in group["params"]]

    def _loaded(self) -> None:
        """Called once a saved state has been restored."""

    def check_group(self, group: dict[str, Any]) -> None:
        """Check the settings of a group; subclasses do."""

    def _own(self, saved: dict[str, Any]) -> None:
        """Copy what torch has taken over as it is: two chains that share a momentum would both be wrong.

        The float32 state of half-precision parameters is taken as it was saved; torch has cast it to their dtype.
        """
        for group, p, index in self.indexed(saved):
            for key, value in saved["state"].get(index, {}).items():
                if precision.has_master(group, p):
                    self.state[p][key] = value.to(device=p.device, dtype=torch.float32, copy=True)
                elif self.state[p][key] is value:
                    self.state[p][key] = value.clone()

    def indexed(self, saved: dict[str, Any]) -> list[tuple[dict[str, Any], Tensor, int]]:
        """Every parameter with its group and its index in a saved state."""
        groups = zip(self.param_groups, saved["param_groups"], strict=True)
        return [(group, p, i) for group, kept in groups for p, i in zip(group["params"], kept["params"], strict=True)]

    def saved_names(self, group: dict[str, Any], p: Tensor) -> tuple[str, ...]:
        """Names of the state tensors that a parameter has after a step."""
        master = (precision.MASTER,) if precision.has_master(group, p) else ()
        return (*self.state_names, *master)

    def is_possible_state(self, group: dict[str, Any], name: str, state: Tensor) -> bool:
        """Tell whether a saved state tensor, finite and of the right shape, is one that the update can have left."""
        return name not in self.non_negative or not bool((state < 0).any())

    def validate_saved(self, saved: dict[str, Any]) -> None:
        """Raise ValueError unless ``saved`` is the state of this class of sampler over parameters of these shapes."""
        ours = type(self).__name__
        header = saved.get("sampler") if isinstance(saved, dict) else None
        name = header.get("name") if isinstance(header, dict) else None
        if name != ours:
            message = f"state_dict is of {name or 'another optimizer'}, this sampler is {ours}"
            if self.mesh is not None and header is None:
                message += (
                    ". The helpers of torch.distributed.checkpoint.state_dict drop the noise: save the sampler itself, "
                    "by dcp.save({'sampler': sampler})"
                )
            raise ValueError(message)
        assert isinstance(header, dict)
        _validate_types(header)
        self.validate_header(header)
        mine = self.generator
        device = self.param_groups[0]["params"][0].device if mine is None else mine.device
        _validate_noise(saved, own_generator=mine is not None, device=device)
        _validate_groups(self, saved)
        _validate_tensors(self, saved)
        validate_checksum(saved)

    def validate_header(self, header: dict[str, Any]) -> None:
        """Raise ValueError unless what a saved state says of its sampler fits this one; subclasses do."""

    def bookmark(self) -> Callable[[], None]:
        """What puts back, as it is now, all that a subclass keeps outside of its groups and its state."""
        return lambda: None

    @contextmanager
    def restored_on_error(self) -> Iterator[Callable[[], None]]:
        """Within it, an error puts back the generators, the groups' values and what is in no group (`bookmark`), and
        takes away state made since.

        It gives the function that does so, for an error after it.
        """
        noise, names = (self.rng_state(), self.global_rng_state()), {p: set(state) for p, state in self.state.items()}
        values = [{key: value for key, value in group.items() if key != "params"} for group in self.param_groups]
        others = self.bookmark()

        def restore() -> None:
            others()
            for group, before in zip(self.param_groups, values, strict=True):
                group.update(before)
            for states in noise:
                self.set_rng_state(states)
            for p in list(self.state):
                for name in set(self.state[p]) - names.get(p, set()):
                    del self.state[p][name]
                if p not in names:
                    del self.state[p]

        try:
            yield restore
        except BaseException:
            restore()
            raise


def _target(group: dict[str, Any], key: str) -> Any:
    """The number of data, temperature or prior precision of a group; the temperature is that of sampling phases."""
    kept = group.get("sampling_temperature") if key == "temperature" else None
    return as_number(group.get(key) if kept is None else kept)


# ------------------------------------------------------------------- validation, before anything is loaded


def _validate_groups(sampler: Any, saved: dict[str, Any]) -> None:
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


def _validate_shapes(sampler: Any, shapes: Any) -> None:
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


def _validate_tensors(sampler: Any, saved: dict[str, Any]) -> None:
    """Raise ValueError for a state tensor that is missing, of another name or shape, complex or not finite."""
    sampler_name, groups = type(sampler).__name__, saved["param_groups"]
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


def _dtype_name(p: Tensor) -> str:
    return str(p.dtype).removeprefix("torch.")


def _other_precision(p: Tensor, parameter: str, index: int, dtypes: Any) -> str:
    """Why a state does not fit that was saved of parameters in half precision, or of others than those; "" if not."""
    there = "float32" if p.dtype in precision.HALF else "half-precision"  # of a state that does not say
    if isinstance(dtypes, list) and index < len(dtypes):
        there = dtypes[index]
    if there == _dtype_name(p):
        return ""
    return (
        f"state_dict was saved from {there} parameters, and {parameter} is {_dtype_name(p)}: convert the network to "
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
}


def _validate_types(header: dict[str, Any]) -> None:
    """Raise ValueError unless what a saved state says of its sampler is of the types that are written."""
    for name, expected in _TYPES.items():
        if name in header and not isinstance(header[name], expected):
            raise ValueError(f"state_dict's {name} must be of type {expected.__name__}, got {header[name]!r:.60}")


def _checksum(saved: dict[str, Any]) -> int:
    """CRC-32 of the state tensors and of the states of the generators, in order."""
    crc = 0
    tensors = [x for index in sorted(saved["state"]) for _, x in sorted(saved["state"][index].items())]
    tensors += [state for _, state in sorted(saved["sampler"]["rng"].items())]
    for x in tensors:
        if isinstance(x, Tensor):
            crc = zlib.crc32(x.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data, crc)
    return crc


def validate_checksum(saved: dict[str, Any]) -> None:
    """Raise ValueError unless the tensors are those that the state was saved with; older states have no checksum."""
    header = saved.get("sampler")
    checksum = header.get("checksum") if isinstance(header, dict) else None
    if checksum is not None and checksum != _checksum(saved):
        raise ValueError(
            "state_dict's tensors are not those that were saved: the file is damaged, or the sampler has stepped since "
            "state_dict() (copy.deepcopy it to go back to it). Delete state_dict['sampler']['checksum'] if you have "
            "changed them on purpose"
        )


def _validate_noise(saved: dict[str, Any], *, own_generator: bool, device: torch.device) -> None:
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
