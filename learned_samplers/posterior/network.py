"""The network inside wrappers, the names of its tensors without them, and the networks that are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn

from learned_samplers.base.sharding import is_sharded

T = TypeVar("T")


#: Submodules that hold the network: of ``torch.compile``, Lightning Fabric, FSDP, activation checkpointing.
WRAPPED = ("_orig_mod", "_forward_module", "_original_module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


def network_of(model: nn.Module) -> nn.Module:
    """Return the network inside `WRAPPED`, ``DistributedDataParallel`` or ``DataParallel``; any other as it is."""
    while True:
        wrapped = (model._modules.get(name) for name in WRAPPED)
        inner = next((module for module in wrapped if module is not None), None)
        if inner is None and isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            inner = model.module
        if inner is None:
            return model
        model = inner


def dtype_of(model: nn.Module) -> torch.dtype:
    """Return the dtype of the first parameter that is no integer (as quantised weights are), or that of the first."""
    dtypes = [p.dtype for p in model.parameters()]
    return next((dtype for dtype in dtypes if dtype.is_floating_point or dtype.is_complex), dtypes[0])


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


def refuse_merged(model: nn.Module, sampled: Callable[[], Iterable[str]]) -> None:
    """Raise ValueError if a layer has added a sampled adapter to the weight beside it, as ``eval`` does with loralib's.

    A sample's own adapter would then not be seen at all. ``sampled`` gives the names of the sampled weights.
    """
    merged = {name: module for name, module in model.named_modules() if getattr(module, "merged", False) is True}
    if not merged:
        return
    tensors = tensors_of(model)
    sampled_tensors = {id(tensors[name]) for name in sampled() if name in tensors}
    for name, module in merged.items():
        if any(id(p) in sampled_tensors for p in module.parameters()):
            raise ValueError(
                f"model: its layer {name!r} has merged its adapter into its weight (merged=True), which hides the "
                "samples of the adapter: unmerge it first, by model.train() or as its library does"
            )


def plain_names(names: Iterable[str]) -> dict[str, str]:
    """Return each name → the name without the parts that are `WRAPPED` and, if all begin with it, ``module.``."""
    plain = {name: ".".join(part for part in name.split(".") if part not in WRAPPED) for name in names}
    while plain and all(name.startswith("module.") for name in plain.values()):
        plain = {name: short.removeprefix("module.") for name, short in plain.items()}
    return plain


def with_plain_names(tensors: Mapping[str, T], model_names: Iterable[str]) -> dict[str, T]:
    """``tensors`` under plain names, unless its names are all ``known`` as they are."""
    if set(tensors) <= set(model_names):
        return dict(tensors)
    plain = plain_names(tensors)
    return {plain[name]: tensor for name, tensor in tensors.items()}


def plain_names_of(model: nn.Module) -> dict[str, str]:
    """Plain names of a model's parameters and buffers."""
    return plain_names([name for name, _ in (*model.named_parameters(), *model.named_buffers())])


def parameters_of(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters by plain name; a tied one counts once."""
    plain = plain_names_of(model)
    return {plain[name]: parameter for name, parameter in model.named_parameters()}


def buffers_of(model: nn.Module) -> dict[str, Tensor]:
    """The buffers by plain name."""
    plain = plain_names_of(model)
    return {plain[name]: buffer for name, buffer in model.named_buffers()}


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by plain name."""
    return {**parameters_of(model), **buffers_of(model)}
