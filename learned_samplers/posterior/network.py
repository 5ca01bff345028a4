"""A network under other weights than its own, whose names are the same when it is compiled or wrapped for DDP."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parametrize

from learned_samplers.base.sharding import is_sharded

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


def refuse_merged(model: nn.Module, sampled: Callable[[], Iterable[str]]) -> None:
    """Raise ValueError if a layer has added a sampled adapter to the weight beside it, as ``eval`` does with loralib's.

    A sample's own adapter would then not be seen at all. ``sampled`` gives the names of the sampled weights.
    """
    merged = {name: each for name, each in model.named_modules() if getattr(each, "merged", False) is True}
    tensors = tensors_of(model) if merged else {}
    own = {id(tensors[name]) for name in sampled() if name in tensors} if merged else set()
    for name, module in merged.items():
        if any(id(p) in own for p in module.parameters()):
            raise ValueError(
                f"model: its layer {name!r} has merged its adapter into its weight (merged=True), which hides the "
                "samples of the adapter: unmerge it first, by model.train() or as its library does"
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


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """The whole model in evaluation mode; afterwards every module is in the mode in which it was found.

    A module's own ``train`` is not called: some change weights in it, as LoRA layers do that merge their adapters.
    """
    modes = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for module, training in modes:
            module.training = training


#: Tables of hooks and the like, which no forward writes into.
_OF_TORCH = set(vars(nn.Module())) - {"_parameters", "_buffers", "_modules"}


@contextmanager
def attributes_kept(network: nn.Module) -> Iterator[None]:
    """Within it a forward may write into attributes of the network's modules; afterwards they are as before.

    Such as attention weights for a figure, a cache, or the weight that the hooks of ``weight_norm`` and ``prune``
    compute: those of a run under vmap cannot be used after it, and those of one sample are wrong for the next. Lists
    and dictionaries are remembered one level deep; values of tensors are not.
    """
    held: list[tuple[Any, Any]] = []
    for module in network.modules():
        own = vars(module)
        inner = [v for k, v in own.items() if isinstance(v, list) or (isinstance(v, dict) and k not in _OF_TORCH)]
        held += [(each, dict(each) if isinstance(each, dict) else list(each)) for each in (own, *inner)]
    try:
        yield
    finally:
        for now, before in held:
            if isinstance(now, dict):
                if now.keys() != before.keys() or any(now[key] is not value for key, value in before.items()):
                    now.clear()
                    now.update(before)
            elif len(now) != len(before) or any(a is not b for a, b in zip(now, before, strict=True)):
                now[:] = before


class FunctionalNetwork:
    """Runs a model with other tensors in the place of its own, given by plain name; the model's own are not touched.

    Raises:
        ValueError: the model is sharded: its hooks would put its own weights back.
        RuntimeError: from a call within ``parametrize.cached()``, where all samples have the first's weights.
    """

    def __init__(self, model: nn.Module) -> None:
        self.network = network_of(model)
        refuse_sharded(self.network)
        self._actual = {short: name for name, short in plain_names_of(self.network).items()}

    def __call__(self, state: Mapping[str, Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if parametrize._cache_enabled:
            raise RuntimeError(
                "torch.nn.utils.parametrize.cached() keeps the weights that were computed first: predict outside of it"
            )
        named = {self._actual[name]: tensor for name, tensor in state.items()}
        with attributes_kept(self.network):
            return functional_call(self.network, named, args, dict(kwargs))
