"""Buffers beside sampled weights: the policies, and running statistics computed anew from data for every sample."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from learned_samplers.posterior.inputs import RepeatedBatches, second_input
from learned_samplers.posterior.network import (
    buffers_of,
    dtype_of,
    network_of,
    plain_names_of,
    refuse_merged,
    tensors_of,
)
from learned_samplers.posterior.replica import replica
from learned_samplers.posterior.tensor_files import Tensors, require_writable

POLICIES = ("refuse", "snapshot", "reestimate")


class OwnBuffers(ValueError):
    """Samples have buffers of their own, such as running statistics, none of which fit weights between two samples."""


def normalisation_layers(model: nn.Module) -> list[tuple[Any, list[str]]]:
    """The batch (or instance) normalisation layers with running statistics, and the plain names of their buffers."""
    # The base class of every BatchNorm, SyncBatchNorm and InstanceNorm of torch.
    base = nn.modules.batchnorm._NormBase
    layers = []
    plain = plain_names_of(model)
    for prefix, module in model.named_modules():
        if isinstance(module, base) and module.track_running_stats and module.running_mean is not None:
            buffers = [plain[f"{prefix}.{name}" if prefix else name] for name, _ in module.named_buffers(recurse=False)]
            layers.append((module, buffers))
    return layers


def normalisation_buffers(model: nn.Module) -> list[str]:
    """Plain names of the buffers that batch (or instance) normalisation updates in training mode."""
    return [name for _, names in normalisation_layers(model) for name in names]


def validate_policy(model: nn.Module, buffers: str) -> str:
    """Return ``buffers``, if it is a policy that suits the model's buffers; ValueError otherwise."""
    if buffers not in POLICIES:
        raise ValueError(f"buffers must be one of {POLICIES}, got {buffers!r}")
    for name, buffer in buffers_of(model).items():
        if buffer.layout != torch.strided:
            raise ValueError(
                f"model: its buffer {name!r} is sparse ({buffer.layout}) and cannot be kept with the samples: make it "
                "dense, or an attribute of the module that is no buffer"
            )
        require_writable(f"model: its buffer {name!r}", buffer)
    statistics = normalisation_buffers(model)
    # In evaluation mode they are constants, as of a frozen backbone, and that they stay so is checked at each sample.
    moves = any(layer.training for layer, _ in normalisation_layers(model))
    if moves and buffers == "refuse":
        raise ValueError(
            f"the model has running statistics ({statistics[0]!r} and {len(statistics) - 1} more buffers) that belong "
            "to the weights they were computed with: choose buffers='snapshot' to keep them with each sample, or "
            "buffers='reestimate' to compute them from data before predicting; got buffers='refuse'"
        )
    if buffers == "reestimate" and not statistics:
        raise ValueError("buffers='reestimate', but the model has no normalisation layer with running statistics")
    return buffers


def statistics_to_compute(model: nn.Module, fixed: Mapping[str, Tensor]) -> list[str]:
    """Names of the running statistics that each sample needs: of all layers but those that keep fixed ones."""
    return [name for name in normalisation_buffers(model) if name not in fixed]


def reestimated_buffers(
    model: nn.Module,
    states: Iterable[Tensors],
    fixed: Mapping[str, Tensor],
    data: Any,
    batch_size: int | None,
    targets: bool | None = None,
) -> Iterator[Tensors]:
    """Yield, for each state, the running statistics of its normalisation layers over ``data``.

    As in ``torch.optim.swa_utils.update_bn`` they are plain averages, over the calls of each layer; only the
    normalisation layers are in training mode, so dropout adds no noise to them. Those whose statistics are among what
    is ``fixed`` keep these. Works on a copy of the model.
    """
    network = network_of(model)
    work = replica(network, {id(t): t.detach().clone() for t in (*network.parameters(), *network.buffers())})
    names = statistics_to_compute(work, fixed)
    tensors = tensors_of(work)
    device = next(work.parameters()).device
    layers = [layer for layer, buffers in normalisation_layers(work) if buffers[0] in names]
    for layer in layers:
        layer.training = True
        layer.register_forward_pre_hook(_count_call)
    dtype = dtype_of(work)
    batches = RepeatedBatches(data, batch_size, dtype, targets=targets, second=second_input(work))
    with torch.no_grad():
        for state in states:
            refuse_merged(work, state.keys)
            for name, value in {**fixed, **state}.items():
                tensors[name].copy_(value)
            for layer in layers:
                layer.reset_running_stats()
                layer.momentum = None
            seen = 0
            for batch in batches:
                moved = batch.to(device)
                try:
                    work(*moved.args, **moved.kwargs)
                except ValueError as error:
                    if "more than 1 value per channel" not in str(error):
                        raise
                    raise ValueError(
                        f"data has a batch of {batch.length} example, for which batch norm has no variance: take "
                        "another batch size, or drop_last=True"
                    ) from error
                seen += 1
            if not seen:
                raise ValueError("data must hold a batch to re-estimate the buffers from, got none")
            yield {name: tensors[name].clone() for name in names}


def _count_call(layer: Any, inputs: Any) -> None:
    """Give the next call of a layer its share in a plain average; ``momentum=None`` does so in batch norm alone."""
    layer.momentum = 1.0 if layer.momentum is None else layer.momentum / (1 + layer.momentum)
