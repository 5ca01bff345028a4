"""Names of a network's tensors, the same for the plain network and for one that is compiled or wrapped for DDP."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from learned_samplers.base.sharding import is_sharded
from learned_samplers.posterior.attributes import Attributes

T = TypeVar("T")


def network_of(model: nn.Module) -> nn.Module:
    """The network inside ``torch.compile``, ``DistributedDataParallel`` and ``DataParallel``; any other as it is."""
    while True:
        inner = model._modules.get("_orig_mod")
        if inner is None and isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            inner = model.module
        if inner is None:
            return model
        model = inner


def refuse_scripted(model: nn.Module) -> None:
    """Raise TypeError if a part of the model is TorchScript, which takes no other weights than its own."""
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise TypeError(
                f"model{f': its part {name!r}' if name else ''} is a torch.jit.ScriptModule, which cannot run with "
                "the weights of a sample: give the module that it was scripted or traced from (torch.compile is fine)"
            )


def refuse_sharded(model: nn.Module) -> None:
    """Raise ValueError if parameters of the model are sharded."""
    if any(map(is_sharded, model.parameters())):
        raise ValueError(
            "model is sharded over processes and runs with its own weights only: save the samples, and load them with "
            "the plain network"
        )


def plain_names(names: Iterable[str]) -> dict[str, str]:
    """Each name → the name without ``_orig_mod.`` and, if all of them begin with it, ``module.``."""
    plain = {name: ".".join(part for part in name.split(".") if part != "_orig_mod") for name in names}
    while plain and all(name.startswith("module.") for name in plain.values()):
        plain = {name: short.removeprefix("module.") for name, short in plain.items()}
    return plain


def with_plain_names(tensors: Mapping[str, T], known: Iterable[str]) -> dict[str, T]:
    """``tensors`` under plain names, unless its names are all ``known`` as they are."""
    if set(tensors) <= set(known):
        return dict(tensors)
    plain = plain_names(tensors)
    return {plain[name]: tensor for name, tensor in tensors.items()}


def _plain(model: nn.Module) -> dict[str, str]:
    return plain_names([name for name, _ in (*model.named_parameters(), *model.named_buffers())])


def parameters_of(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters by plain name; a tied one counts once."""
    plain = _plain(model)
    return {plain[name]: parameter for name, parameter in model.named_parameters()}


def buffers_of(model: nn.Module) -> dict[str, Tensor]:
    """The buffers by plain name."""
    plain = _plain(model)
    return {plain[name]: buffer for name, buffer in model.named_buffers()}


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by plain name."""
    return {**parameters_of(model), **buffers_of(model)}


def normalisation_layers(model: nn.Module) -> list[tuple[Any, list[str]]]:
    """The batch (or instance) normalisation layers with running statistics, and the plain names of their buffers."""
    # The base class of every BatchNorm, SyncBatchNorm and InstanceNorm of torch.
    base = nn.modules.batchnorm._NormBase
    layers = []
    plain = _plain(model)
    for prefix, module in model.named_modules():
        if isinstance(module, base) and module.track_running_stats and module.running_mean is not None:
            own = [plain[f"{prefix}.{name}" if prefix else name] for name, _ in module.named_buffers(recurse=False)]
            layers.append((module, own))
    return layers


def normalisation_buffers(model: nn.Module) -> list[str]:
    """Plain names of the buffers that batch (or instance) normalisation updates in training mode."""
    return [name for _, names in normalisation_layers(model) for name in names]


class Caller:
    """Runs a model with other tensors in the place of its own, given by plain name; the model's own are not touched.

    What its forward leaves in attributes of the modules is gone after every run.

    Raises:
        ValueError: the model is sharded: its hooks would put its own weights back.
    """

    def __init__(self, model: nn.Module) -> None:
        self.network = network_of(model)
        refuse_sharded(self.network)
        self._actual = {short: name for name, short in _plain(self.network).items()}

    def __call__(self, state: Mapping[str, Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        named = {self._actual[name]: tensor for name, tensor in state.items()}
        before = Attributes(self.network)
        try:
            return functional_call(self.network, named, args, dict(kwargs))
        finally:
            before.restore()
