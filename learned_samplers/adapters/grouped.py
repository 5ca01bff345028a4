"""K adapters over one batch in one forward: the base's products once, over K times the rows, and K low-rank updates.

The rows are repeated K times, and every module that holds sampled weights treats its rows in K groups. Nothing else
of the network knows that there are several adapters, so that control flow, caches and ``generate`` work as they are.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils._pytree import tree_map

from learned_samplers.base.optional import require
from learned_samplers.posterior.inputs import Batch
from learned_samplers.posterior.replica import ReplicatedNetwork
from learned_samplers.posterior.running import Runner, Transform
from learned_samplers.posterior.tensor_files import Tensors
from learned_samplers.posterior.trial import Call, distance, rounding


class GroupedRunner(Runner):
    """Runs a network with adapters as one over K times the rows, or adapter by adapter where that gives other numbers.

    The first run under several adapters is held against separate runs of the first and the last of them.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._was_compared = False

    def network(self) -> GroupedNetwork:
        """Return what runs the model with other tensors, of one adapter or of several stacked ones."""
        return GroupedNetwork(self.model)

    def together_is_faster(self) -> bool:
        """Return True: one product over all rows is never slower than one for each adapter."""
        return True

    def together(self, call: Call, transform: Transform, states: Tensors, batch: Batch, *, may_loop: bool) -> Tensor:
        """Return the predictions of several samples for one batch, run as one."""
        count = len(next(iter(states.values())))
        output = call(states, repeated(batch, count))
        predictions = torch.stack([transform(group_of(output, k, count, batch.length)) for k in range(count)])
        if not self._was_compared and count > 1:
            for k in (0, count - 1):
                alone = transform(call({name: tensor[k] for name, tensor in states.items()}, batch))
                if distance(predictions[k], alone) > rounding(self.model):
                    raise RuntimeError("rows depend on the rows beside them, or weights are read elsewhere")
            self._was_compared = True
        return predictions


def repeated(batch: Batch, count: int) -> Batch:
    """Return a batch with all of its rows, then all of them again, ``count`` times."""
    if batch.in_one_piece:
        raise ValueError("batch_size=None, whose rows are not told apart, cannot be repeated for several adapters")
    args = tuple(torch.cat([tensor] * count) for tensor in batch.args)
    return Batch(args, {name: torch.cat([t] * count) for name, t in batch.kwargs.items()}, count * batch.length)


def group_of(output: Any, k: int, count: int, rows: int) -> Any:
    """Return the k-th group of rows of a network's output: its tensors that have ``count`` times the rows are cut."""
    if isinstance(output, Tensor):
        return output[k * rows : (k + 1) * rows] if output.shape[:1] == (count * rows,) else output
    if isinstance(output, Mapping):
        part: Any = copy.copy(output)
        for name, value in output.items():
            part[name] = group_of(value, k, count, rows)
        return part
    if isinstance(output, list | tuple):
        values = (group_of(value, k, count, rows) for value in output)
        return type(output)(*values) if hasattr(output, "_fields") else type(output)(values)
    return output


class GroupedNetwork(ReplicatedNetwork):
    """Runs a model with other tensors; where these are stacked along a new first axis, its rows are in K groups."""

    def with_tensors(self, state: Mapping[str, Tensor]) -> nn.Module:
        """Return a copy of the network with these tensors, whose modules treat rows in groups if they are stacked."""
        network = super().with_tensors(state)
        shapes = {name: tensor.shape for table, key, name in self._places if (tensor := table[key]) is not None}
        stacked = {id(t): t for name, t in state.items() if t.ndim and t.shape[1:] == shapes.get(name)}
        if stacked:
            group_rows(network, stacked)
        return network


def group_rows(network: nn.Module, stacked: Mapping[int, Tensor]) -> None:
    """Let every module that holds stacked tensors (K, ...) treat its rows in K groups, in place.

    Args:
        network: a copy that nobody else sees.
        stacked: the tensors by identity.
    """
    tuner_layer = require("peft.tuners.tuners_utils", "adapters").BaseTunerLayer
    count = len(next(iter(stacked.values())))
    inside = set[int]()  # of a layer that is treated as one
    for module in list(network.modules()):  # outer ones first
        tensors = {name: p for name, p in module.named_parameters(remove_duplicate=False) if id(p) in stacked}
        directly = any(id(p) in stacked for p in module._parameters.values())
        if id(module) in inside or not tensors or not (directly or isinstance(module, tuner_layer)):
            continue
        inside |= {id(part) for part in module.modules()}
        module.forward = _grouped_forward(module, tensors, count)


def _grouped_forward(module: Any, tensors: Mapping[str, Tensor], count: int) -> Callable[..., Any]:
    low_rank = _low_rank_of(module, tensors)
    if low_rank is not None:
        return lambda x, *args, **kwargs: _low_rank_update(module.base_layer(x, *args, **kwargs), x, count, *low_rank)
    if type(module) is nn.Linear and len(tensors) == len(module._parameters) - (module.bias is None):
        return lambda x: _linear(x, module.weight, module.bias, count)
    return _by_group(copy.copy(module), tensors, count)


def _low_rank_of(module: nn.Module, tensors: Mapping[str, Tensor]) -> tuple[nn.Module, nn.Module, float] | None:
    """Return the two factors and the scale of a plain LoRA layer of which nothing else is sampled; otherwise None."""
    lora = require("peft.tuners.lora", "adapters")
    if not isinstance(module, lora.LoraLayer) or isinstance(module, lora.Embedding | nn.modules.conv._ConvNd):
        return None
    (adapter,) = module.active_adapters
    if adapter in module.lora_variant or adapter not in module.lora_A:
        return None
    down, up = module.lora_A[adapter], module.lora_B[adapter]
    held = {id(p) for part in (down, up) for p in part.parameters()}
    plain = type(down) is nn.Linear and type(up) is nn.Linear and down.bias is None
    return (down, up, module.scaling[adapter]) if plain and {id(t) for t in tensors.values()} == held else None


def _low_rank_update(result: Tensor, x: Tensor, count: int, down: Any, up: Any, scale: float) -> Tensor:
    rows = x.to(down.weight.dtype).reshape(count, -1, x.shape[-1])
    low = torch.bmm(rows, down.weight.mT) * scale
    base = result.reshape(count, -1, result.shape[-1]).to(low.dtype)
    if up.bias is not None:
        base = base + up.bias[:, None] * scale
    return torch.baddbmm(base, low, up.weight.mT).to(result.dtype).view_as(result)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, count: int) -> Tensor:
    rows = x.reshape(count, -1, x.shape[-1])
    result = rows @ weight.mT if bias is None else torch.baddbmm(bias[:, None], rows, weight.mT)
    return result.view(*x.shape[:-1], -1)


def _by_group(module: nn.Module, tensors: Mapping[str, Tensor], count: int) -> Callable[..., Any]:
    """Return a forward that runs a module for each group with its tensors: by vmap, or group by group if that fails."""
    vmap_fails = False

    def is_grouped(value: Any) -> bool:
        return isinstance(value, Tensor) and value.ndim > 0 and value.shape[0] % count == 0

    def run(weights: dict[str, Tensor], call: Any) -> Any:
        return functional_call(module, weights, *call)

    def forward(*args: Any, **kwargs: Any) -> Any:
        nonlocal vmap_fails
        call = (args, kwargs)
        axes = tree_map(lambda value: 0 if is_grouped(value) else None, call)
        rows = tree_map(lambda value: value.unflatten(0, (count, -1)) if is_grouped(value) else value, call)
        if not vmap_fails:
            try:
                outputs = vmap(run, in_dims=(0, axes))(dict(tensors), rows)
                return tree_map(lambda value: value.flatten(0, 1), outputs)
            except RuntimeError:  # an operation that vmap does not know; any other error is raised again below
                vmap_fails = True
        parts = [
            run(
                {name: tensor[k] for name, tensor in tensors.items()},
                tree_map(lambda value, k=k: value[k] if is_grouped(value) else value, rows),
            )
            for k in range(count)
        ]
        return tree_map(lambda *values: torch.cat(values), *parts)

    return forward
