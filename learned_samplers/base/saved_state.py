"""An optimizer whose state dict also holds a random number generator, so that a random chain continues exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor

from learned_samplers.base import sharding
from learned_samplers.base.guards import broken_off, precision, resumed, shards
from learned_samplers.base.noise import NoisyOptimizer
from learned_samplers.base.operations import as_number
from learned_samplers.base.prior import Prior
from learned_samplers.base.protocol import Chain
from learned_samplers.base.saved_checks import (
    checksum_of,
    dtype_name,
    settings_checksum_of,
    validate_checksum,
    validate_groups,
    validate_noise,
    validate_settings_checksum,
    validate_tensors,
    validate_types,
)
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
    #: Of each parameter group the prior that draws its precision, or None.
    group_priors: list[Prior | None] = []  # noqa: RUF012  (each sampler sets its own)
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
            shards.make_state(cast(Chain, self))
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
            saved["sampler"]["dtypes"] = [dtype_name(p) for p in everything]
            saved["sampler"]["weight_sums"] = resumed.weight_sums(everything)
            saved["sampler"]["checksum"] = checksum_of(saved)
            saved["sampler"]["settings_checksum"] = settings_checksum_of(saved)
            if prior := self._prior_text():
                saved["sampler"]["prior"] = prior
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
        validate_settings_checksum(state_dict)
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
        saved_prior, prior = state_dict["sampler"].get("prior"), self._prior_text() or None
        if self.mesh is None and saved_prior != prior:
            warn(f"the state was saved with the prior {saved_prior}, and this sampler has {prior}: it goes on from it")
        for key in ("num_data", "temperature", *(() if any(self.group_priors) else ("prior_precision",))):
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

    def _prior_text(self) -> str:
        """The priors of the sampler and of its groups, "" where all are numbers."""
        return " and ".join(dict.fromkeys(map(repr, filter(None, (self.prior, *self.group_priors)))))

    def _dtypes_sampled(self) -> list[str]:
        """The dtype of each parameter, "" of those that are not sampled."""
        return [dtype_name(p) if p.requires_grad else "" for group in self.param_groups for p in group["params"]]

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
        if not isinstance(name, str) or name != ours:
            theirs = name if isinstance(name, str) else "another optimizer"
            message = f"state_dict is of {theirs}, this sampler is {ours}"
            if self.mesh is not None and header is None:
                message += (
                    ". The helpers of torch.distributed.checkpoint.state_dict drop the noise: save the sampler itself, "
                    "by dcp.save({'sampler': sampler})"
                )
            raise ValueError(message)
        assert isinstance(header, dict)
        validate_types(header)
        self.validate_header(header)
        mine = self.generator
        device = self.param_groups[0]["params"][0].device if mine is None else mine.device
        validate_noise(saved, own_generator=mine is not None, device=device)
        validate_groups(cast(Chain, self), saved)
        validate_tensors(cast(Chain, self), saved)
        validate_checksum(saved)

    def validate_header(self, header: dict[str, Any]) -> None:
        """Raise ValueError unless what a saved state says of its sampler fits this one; subclasses do."""

    def bookmark(self) -> Callable[[], None]:
        """Return a function that restores what a subclass keeps outside of its groups and its state, as it is now."""
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
