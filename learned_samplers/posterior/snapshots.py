"""Takes samples of a model: copies of what is sampled, and a check that nothing else has changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from learned_samplers.base import sharding
from learned_samplers.base.sharding import gathered, is_sharded, local, summed
from learned_samplers.posterior.network import buffers_of, parameters_of, tensors_of
from learned_samplers.posterior.normalisation import normalisation_layers
from learned_samplers.posterior.store import Store
from learned_samplers.posterior.tensor_files import NotFinite, Tensors, fingerprint


def unwrapped(optimizer: Optimizer) -> Optimizer:
    """The optimizer inside Accelerate's or Lightning's wrapper, whose ``step`` does not call the wrapper's hooks."""
    while type(optimizer).__module__.partition(".")[0] in ("accelerate", "lightning", "pytorch_lightning"):
        inner = getattr(optimizer, "optimizer", None)
        if not isinstance(inner, Optimizer):
            break
        optimizer = inner
    return optimizer


def sampled_parameters(model: nn.Module, sampler: Optimizer) -> dict[str, nn.Parameter]:
    """The parameters of the sampler's groups that require a gradient, by plain name, in the model's order.

    Raises:
        ValueError: a parameter of the sampler is not the model's, or there is none to sample.
    """
    moved = {id(p): (g, k) for g, group in enumerate(sampler.param_groups) for k, p in enumerate(group["params"])}
    named = {name: parameter for name, parameter in parameters_of(model).items() if id(parameter) in moved}
    strangers = set(moved) - {id(parameter) for parameter in named.values()}
    if strangers:
        group, position = min(moved[stranger] for stranger in strangers)
        names = sampler.param_groups[group].get("param_names")
        label = f" ({names[position]!r})" if names else ""
        shape = tuple(sampler.param_groups[group]["params"][position].shape)
        raise ValueError(
            f"sampler: parameter {position} of group {group}{label}, shape {shape}, is not a parameter of model "
            f"({type(model).__name__}); {len(strangers)} such in all"
        )
    sampled = {name: parameter for name, parameter in named.items() if parameter.requires_grad}
    if not sampled:
        raise ValueError("sampler: none of its parameters has requires_grad=True, so there is nothing to sample")
    return sampled


def validate_dtype(dtype: torch.dtype | None) -> torch.dtype | None:
    """``dtype``, if sampled weights can be kept in it; TypeError otherwise."""
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point and dtype.itemsize > 1):
        raise TypeError(f"dtype must be a floating-point torch.dtype of 16 bits at least, or None, got {dtype!r}")
    return dtype


def validate_device(device: str | torch.device) -> torch.device:
    """Return ``device``, if values can be kept there; TypeError or ValueError otherwise."""
    try:
        valid = torch.device(device)
    except TypeError as error:
        raise TypeError(f"device must be a name or a torch.device, got {device!r}") from error
    except RuntimeError as error:
        raise ValueError(f"device={device!r} is none: 'cpu', 'cuda' or 'cuda:1', say") from error
    if valid.type == "meta":
        raise ValueError(f"device={str(device)!r} keeps no values")
    return valid


def mark(tensor: Tensor, *, values: bool = False) -> Any:
    """A cheap mark of a tensor, which changes whenever torch writes to it in place or moves it.

    Changes through ``tensor.data`` in place are the exception, and those by an optimizer with ``fused=True``, which
    raises no version.

    Args:
        values: take the sum and the norm in as well, which these change; without it no value is read.
    """
    try:
        current = tensor._version, tensor.data_ptr(), tensor.dtype
    except RuntimeError:  # an inference tensor has no version
        return object()
    return (*current, *_sums(tensor.detach())) if values else current


def _sums(tensor: Tensor) -> list[float]:
    """Two numbers about the values; of a sharded tensor about all parts, so that every process decides the same."""
    if not tensor.is_floating_point():
        return []
    part = local(tensor)
    both = torch.stack([part.sum(dtype=torch.float64), torch.linalg.vector_norm(part, dtype=torch.float64).square()])
    return (summed(both, tensor) if is_sharded(tensor) else both).tolist()


class Fingerprints:
    """The fingerprints of a model's tensors, each computed again only after its tensor was changed."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._known: dict[str, tuple[Any, str]] = {}

    def of(self, name: str, tensor: Tensor) -> str:
        """The fingerprint of one tensor of the model."""
        current = mark(tensor)
        if name not in self._known or self._known[name][0] != current:
            self._known[name] = current, fingerprint(gathered(tensor))
        return self._known[name][1]

    def validate(self, expected: Mapping[str, str], source: str) -> None:
        """Raise ValueError, naming the first tensor that is not the model's, unless all fingerprints are."""
        tensors = tensors_of(self.model) if expected else {}
        for name, digest in expected.items():
            if name not in tensors:
                raise ValueError(f"{source}: {name!r} does not exist in {type(self.model).__name__}")
            if self.of(name, tensors[name]) != digest:
                raise ValueError(
                    f"{source}: the frozen parameters are not stored there and must come with the model, but {name!r} "
                    f"of this {type(self.model).__name__} has other values than when the samples were collected: load "
                    "the base model's weights into it first"
                )


class Snapshots:
    """Takes samples of one model.

    Args:
        names: plain names of the sampled parameters.
        buffers: the policy for buffers.
        store_frozen: whether parameters without gradient are stored (once) or known by their fingerprints.
        dtype: of the stored parameters.
        device: of storage.
    """

    def __init__(
        self,
        model: nn.Module,
        names: list[str],
        buffers: str,
        *,
        store_frozen: bool,
        dtype: torch.dtype | None,
        device: torch.device,
    ) -> None:
        self.model, self.names, self.buffers = model, list(names), buffers
        self.store_frozen, self.dtype, self.device = store_frozen, dtype, device
        self._fingerprints = Fingerprints(model)
        self._marks: dict[str, Any] = {}

    def forget(self) -> None:
        """Compare what is not sampled in full at the next sample, as a checkpoint may have been loaded."""
        self._marks = {}

    def varying_names(self) -> list[str]:
        """Plain names of what every sample holds."""
        return [*self.names, *(buffers_of(self.model) if self.buffers == "snapshot" else ())]

    def take(self, step: int, replaced: Tensors | None = None) -> Tensors:
        """Copy what is sampled, checked to be finite; ``replaced`` replaces the model's present values."""
        tensors = {**parameters_of(self.model), **buffers_of(self.model), **(replaced or {})}
        # Buffers keep their dtype: a running variance may be beyond the largest number of float16.
        dtypes = dict.fromkeys(self.names, self.dtype)
        sample = {name: self.stored(tensors[name], dtypes.get(name)) for name in self.varying_names()}
        for name in self.names:  # a buffer may hold what is not finite, such as a mask of attention
            tensor = sample[name]
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                raise NotFinite(f"{name!r} is not finite at step {step} (stored as {tensor.dtype}): not collected")
        return sample

    def unsampled(self) -> tuple[Tensors, dict[str, Tensor]]:
        """The model's tensors that are stored once, and those that are known by their fingerprints only."""
        varying = set(self.varying_names())
        if self.buffers == "reestimate":
            # In evaluation mode a layer's statistics are constants of the network whose weights are sampled.
            varying |= {name for layer, names in normalisation_layers(self.model) if layer.training for name in names}
        stored: Tensors = {}
        left_out: dict[str, Tensor] = {}
        for name, parameter in parameters_of(self.model).items():
            if name not in varying:
                (stored if parameter.requires_grad or self.store_frozen else left_out)[name] = parameter
        stored |= {name: buffer for name, buffer in buffers_of(self.model).items() if name not in varying}
        return stored, left_out

    def first_unsampled(self) -> tuple[Tensors, dict[str, str]]:
        """Copies of what is stored once, and the fingerprints of the rest."""
        stored, left_out = self.unsampled()
        self._marks = {name: _parameter_mark(tensor) for name, tensor in {**stored, **left_out}.items()}
        fingerprints = {name: self._fingerprints.of(name, tensor) for name, tensor in left_out.items()}
        return {name: self.stored(tensor, None) for name, tensor in stored.items()}, fingerprints

    def validate_unsampled(self, store: Store, step: int) -> None:
        """Raise ValueError if anything that is not sampled has changed since the first sample.

        Buffers are compared; parameters are compared only if they seem to have changed since the last time.
        """
        fixed = store.fixed or {}
        self._refuse_changed_modes(fixed, step)
        stored, left_out = self.unsampled()
        for name, tensor in {**stored, **left_out}.items():
            current = _parameter_mark(tensor)
            is_parameter = isinstance(tensor, nn.Parameter)
            if is_parameter and self._marks.get(name) == current:
                continue
            if name in fixed:
                same = same_values(fixed[name], sharding.gathered(tensor.detach()).to(self.device))
            else:
                if name not in store.frozen:
                    raise ValueError(
                        f"{name!r} is not sampled, and has no stored value at step {step}: fixed.safetensors of the "
                        "collection's folder is missing, or the network has changed"
                    )
                same = store.frozen[name] == self._fingerprints.of(name, tensor)
            if not same:
                remedy = "give it to the sampler or leave it alone"
                if not is_parameter:
                    remedy = f"choose buffers='snapshot' instead of {self.buffers!r}"
                raise ValueError(f"{name!r} is not sampled but changed since the first sample (step {step}): {remedy}")
            self._marks[name] = current

    def _refuse_changed_modes(self, fixed: Tensors, step: int) -> None:
        if self.buffers != "reestimate":
            return
        modes = ("evaluation", "training")
        for layer, names in normalisation_layers(self.model):
            if layer.training == (names[0] in fixed):
                raise ValueError(
                    f"the layer of {names[0]!r} is in {modes[layer.training]} mode at step {step}, but was in "
                    f"{modes[not layer.training]} mode at the first sample. The mode decides whether its "
                    f"statistics are re-estimated: call .train({not layer.training}) on it to go back, or begin a new "
                    "collection"
                )

    def stored(self, tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
        """A copy on the device of storage, a floating-point tensor in ``dtype`` if that is given."""
        chosen = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
        return sharding.gathered(tensor.detach()).to(self.device, chosen, copy=True)


def _parameter_mark(tensor: Tensor) -> Any:
    # Only what requires a gradient can be moved by another optimizer, whose fused step no version shows.
    return mark(tensor, values=isinstance(tensor, nn.Parameter) and tensor.requires_grad)


def on_device(tensors: Mapping[str, Tensor], device: torch.device) -> Tensors:
    """The same tensors on a device."""
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def same_values(first: Tensor, second: Tensor) -> bool:
    """Return whether two tensors are the same, NaN at the same places included."""
    if torch.equal(first, second):
        return True
    if first.shape != second.shape or not (first.is_floating_point() and second.is_floating_point()):
        return False
    return bool(((first == second) | (first.isnan() & second.isnan())).all())
