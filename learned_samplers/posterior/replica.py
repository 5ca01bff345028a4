"""Runs a network with other tensors in the place of its own, on a copy of its modules that nobody else sees.

``torch.func.functional_call`` puts the tensors into the shared modules for as long as the call lasts: another thread
that predicts or trains meanwhile meets them there. A replica is made anew for each call instead. Its modules share the
network's tensors and whatever else they hold, but none of the places that a forward can write to.
"""

from __future__ import annotations

import copy
import functools
from collections import OrderedDict
from collections.abc import Mapping
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from learned_samplers.posterior.network import network_of, plain_names_of, refuse_sharded

#: Types of attributes that no copy is needed of.
SHARED = frozenset({bool, int, float, str, type(None), type, torch.dtype, torch.device})


class ReplicatedNetwork:
    """Runs a model in evaluation mode with other tensors, given by plain name; the model itself is not touched.

    Raises:
        ValueError: the model is sharded: its hooks would put its own weights back.
        RuntimeError: from a call within ``parametrize.cached()``, where all samples have the first's weights.
    """

    def __init__(self, model: nn.Module) -> None:
        self.network = network_of(model)
        refuse_sharded(self.network)
        plain = plain_names_of(self.network)
        named = [*self.network.named_parameters(), *self.network.named_buffers()]
        names = {id(tensor): plain[name] for name, tensor in named}
        tables = [table for m in self.network.modules() for table in (m._parameters, m._buffers)]
        self._places = [(table, key, names[id(t)]) for table in tables for key, t in table.items() if t is not None]

    def __call__(self, state: Mapping[str, Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return self.with_tensors(state)(*args, **kwargs)

    def with_tensors(self, state: Mapping[str, Tensor]) -> nn.Module:
        """Return a copy of the network with these tensors in the place of its own."""
        if parametrize._cache_enabled:
            raise RuntimeError(
                "torch.nn.utils.parametrize.cached() keeps the weights that were computed first: predict outside of it"
            )
        tensors = {}
        for table, key, name in self._places:
            tensor = table[key]  # as it is now: another thread may load a state with ``assign=True``
            if tensor is not None:
                value = state.get(name)
                if value is None:  # a frozen one as it is: that of a quantised layer may hold more than its numbers
                    value = tensor.detach() if tensor.requires_grad else tensor
                tensors[id(tensor)] = value
        return replica(self.network, tensors)


def replica(network: nn.Module, tensors: Mapping[int, Tensor]) -> nn.Module:
    """Return a copy of the network's modules, in evaluation mode, with other tensors.

    ``training`` is set without calling ``eval``, in which some modules change weights, as LoRA layers do that merge
    their adapters. Lists and dictionaries are copied, and so are bound methods, partial functions and closures that
    refer to the network's modules or tensors, such as a ``forward`` that was replaced. Every other object is shared.
    Compiled modules are copied as they were before.

    Args:
        network: the network.
        tensors: from the identity of each tensor to the one that takes its place, wherever the modules hold it.
    """
    return _Copier(network, tensors).copied(network)


class _Copier:
    def __init__(self, network: nn.Module, tensors: Mapping[int, Tensor]) -> None:
        self._copies: dict[int, Any] = dict(tensors)
        self._parts = {id(module) for module in network.modules()}
        self._closures: list[tuple[CellType, CellType]] = []

    def copied(self, network: nn.Module) -> nn.Module:
        result: nn.Module = self._copy(network)
        # At the end, when it is known which containers belong to modules.
        for fresh, cell in self._closures:
            try:
                content = cell.cell_contents
            except ValueError:  # a name that was not bound yet
                continue
            is_shared = isinstance(content, list | dict | tuple) and id(content) not in self._copies
            fresh.cell_contents = content if is_shared else self._copy(content)
        return result

    def _copy(self, value: Any) -> Any:
        if type(value) in SHARED:  # most of what modules hold: first, as this is most of the time of a replica
            return value
        if id(value) in self._copies:
            return self._copies[id(value)]
        result: Any = value
        if isinstance(value, nn.Module):
            result = self._module(value)
        elif isinstance(value, dict):
            result = self._copies[id(value)] = value.copy() if type(value) in (dict, OrderedDict) else copy.copy(value)
            for key, item in value.copy().items() if value else ():
                result[key] = self._copy(item)
        elif isinstance(value, list):
            result = self._copies[id(value)] = copy.copy(value)
            result[:] = [self._copy(item) for item in value]
        elif type(value) is tuple:
            result = tuple(self._copy(item) for item in value)
        elif isinstance(value, MethodType):
            result = MethodType(value.__func__, self._copy(value.__self__))
        elif type(value) is functools.partial:
            result = functools.partial(self._copy(value.func), *self._copy(value.args), **self._copy(value.keywords))
        elif isinstance(value, FunctionType):
            result = self._function(value)
        return result

    def _module(self, module: nn.Module) -> nn.Module:
        compiled = module._modules.get("_orig_mod")
        if compiled is not None:
            result: nn.Module = self._copy(compiled)
            self._copies[id(module)] = result
            return result
        result = self._copies[id(module)] = object.__new__(type(module))
        attributes = result.__dict__
        attributes.update(vars(module))
        for name, value in list(attributes.items()):
            if type(value) not in SHARED:
                empty = not value if type(value) in (dict, OrderedDict) else False
                attributes[name] = type(value)() if empty else self._copy(value)
        attributes["_compiled_call_impl"] = None
        if id(module) in self._parts:
            attributes["training"] = False
        return result

    def _function(self, function: FunctionType) -> Any:
        before_compiling = getattr(function, "_torchdynamo_orig_callable", None)
        if before_compiling is not None:
            return self._copy(before_compiling)
        defaults = function.__defaults__, function.__kwdefaults__
        if function.__closure__ is None and defaults == (None, None):
            return function
        cells = tuple(CellType() for _ in function.__closure__ or ())
        result = FunctionType(function.__code__, function.__globals__, function.__name__, None, cells)
        self._copies[id(function)] = result
        self._closures += zip(cells, function.__closure__ or (), strict=True)
        result.__defaults__, result.__kwdefaults__ = (self._copy(values) for values in defaults)
        result.__dict__.update(vars(function))
        return result


def reads_of(network: nn.Module, state: Mapping[str, Tensor]) -> Reads:
    """Return a context that lists which of the network's own tensors are read though ``state`` has them."""
    plain = plain_names_of(network)
    named = {plain[name]: tensor for name, tensor in (*network.named_parameters(), *network.named_buffers())}
    return Reads({name: named[name] for name in state if named[name].data_ptr() != state[name].data_ptr()})


class Reads(TorchDispatchMode):
    """Lists the names of tensors whose memory an operation reads; it sees this thread alone.

    Args:
        tensors: those to watch, by name.

    Attributes:
        names: those that were read, in order.
        watches: whether there is a tensor to watch.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.names: list[str] = []
        self._names = {tensor.data_ptr(): name for name, tensor in tensors.items() if tensor.numel()}
        self.watches = bool(self._names)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: torch would import its compiler for that, two seconds of a process's first prediction."""
        return False

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for value in tree_leaves((args, kwargs)):
            if type(value) in (Tensor, nn.Parameter) and value.layout is torch.strided and not value.is_meta:
                name = self._names.get(value.data_ptr())
                if name is not None and name not in self.names:
                    self.names.append(name)
        return operation(*args, **(kwargs or {}))
