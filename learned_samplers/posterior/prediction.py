"""Running one network under many sets of weights, without touching the network's own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from learned_samplers.posterior.storage import Tensors, chunks

Inputs = Tensor | tuple[Tensor, ...]
Output = str | Callable[[Tensor], Tensor]


def normalisation_buffers(model: nn.Module) -> list[str]:
    """Names of the buffers that batch (or instance) normalisation updates in training mode."""
    # The base class of every BatchNorm, SyncBatchNorm and InstanceNorm of torch.
    base = nn.modules.batchnorm._NormBase
    names = []
    for prefix, module in model.named_modules():
        if isinstance(module, base) and module.track_running_stats and module.running_mean is not None:
            names += [f"{prefix}.{name}" if prefix else name for name, _ in module.named_buffers(recurse=False)]
    return names


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """The whole model in evaluation mode; afterwards every module is in the mode in which it was found."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def vmap_is_faster(model: nn.Module) -> bool:
    """Whether to stack samples when the caller leaves it open."""
    # vmap turns convolutions into grouped ones, which took 1.5 to 5 times as long as a loop on a CPU.
    convolutions = any(isinstance(module, nn.modules.conv._ConvNd) for module in model.modules())
    return not (convolutions and next(model.parameters()).device.type == "cpu")


def output_transform(output: Output) -> Callable[[Tensor], Tensor]:
    """The map from a network's output to what is averaged: softmax, the output itself, or the caller's own."""
    if output == "classification":
        return _softmax
    if output == "regression":
        return _at_least_float32
    if callable(output):
        return output
    raise ValueError(f"output must be 'classification', 'regression' or a function of a tensor, got {output!r}")


def _at_least_float32(outputs: Tensor) -> Tensor:
    return outputs.to(torch.promote_types(outputs.dtype, torch.float32))


def _softmax(logits: Tensor) -> Tensor:
    if logits.ndim < 2:
        raise ValueError(
            f"output='classification' needs logits of shape (batch, classes, ...), got {tuple(logits.shape)}"
        )
    return _at_least_float32(logits).softmax(dim=1)


def as_inputs(x: Any) -> tuple[Tensor, ...]:
    """A tensor, or a tuple of tensors with one length, as the network's positional arguments."""
    inputs = x if isinstance(x, tuple) else (x,)
    if not inputs or not all(isinstance(item, Tensor) for item in inputs):
        raise TypeError(f"x must be a tensor or a tuple of tensors, got {type(x).__name__}")
    lengths = [len(item) if item.ndim else 0 for item in inputs]
    if lengths[0] == 0 or len(set(lengths)) != 1:
        raise ValueError(f"x must hold at least one example, as many in each tensor; got lengths {lengths}")
    return inputs


def chunk_predictions(
    model: nn.Module,
    read: Callable[[int], Tensors],
    indices: Sequence[int],
    fixed: Mapping[str, Tensor],
    x: Inputs,
    *,
    output: Output,
    batch_size: int,
    sample_chunk: int,
    vectorize: bool,
) -> Generator[Tensor, None, None]:
    """Yield predictions of shape (k, N, ...) for consecutive chunks of at most ``sample_chunk`` samples.

    A chunk of samples is read and stacked once and then run over all batches of ``x``.
    """
    inputs, transform = as_inputs(x), output_transform(output)
    reference = next(model.parameters())
    dtypes = {name: tensor.dtype for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    static = {name: tensor.to(reference.device, dtypes[name]) for name, tensor in fixed.items()}

    def forward(state: Tensors, *batch: Tensor) -> Tensor:
        return transform(functional_call(model, {**static, **state}, batch))

    with evaluation_mode(model), torch.no_grad():
        for part in chunks(len(indices), sample_chunk):
            states = [read(indices[position]) for position in part]
            stacked = {
                name: torch.stack([state[name] for state in states]).to(reference.device, dtypes[name])
                for name in states[0]
            }
            pieces = []
            for rows in chunks(len(inputs[0]), batch_size):
                batch = tuple(item[rows.start : rows.stop].to(reference.device) for item in inputs)
                run = _vectorized if vectorize else _one_by_one
                predictions = run(forward, model, stacked, batch)
                if predictions.ndim < 2 or predictions.shape[1] != len(rows):
                    raise ValueError(
                        f"the network and output={output!r} turned {len(rows)} examples into a tensor of shape "
                        f"{tuple(predictions.shape[1:])}; its first axis must run over the examples"
                    )
                pieces.append(predictions.to(inputs[0].device))
            yield torch.cat(pieces, dim=1)


def _one_by_one(
    forward: Callable[..., Tensor], model: nn.Module, stacked: Tensors, batch: tuple[Tensor, ...]
) -> Tensor:
    count = len(next(iter(stacked.values())))
    return torch.stack([forward({name: tensor[k] for name, tensor in stacked.items()}, *batch) for k in range(count)])


def _vectorized(
    forward: Callable[..., Tensor], model: nn.Module, stacked: Tensors, batch: tuple[Tensor, ...]
) -> Tensor:
    try:
        return vmap(forward, in_dims=(0, *[None] * len(batch)))(stacked, *batch)
    except Exception as error:
        # Whose fault is it? If the network runs plainly on this batch then it is vmap that cannot run it.
        forward({name: tensor[0] for name, tensor in stacked.items()}, *batch)
        raise RuntimeError(
            f"torch.func.vmap cannot run {type(model).__name__} ({type(error).__name__}: {error}); "
            "pass vectorize=False to run the samples one after the other"
        ) from error


def reestimated_buffers(
    model: nn.Module, states: Iterable[Tensors], fixed: Mapping[str, Tensor], data: Any, batch_size: int
) -> Iterator[Tensors]:
    """Yield, for each state, the running statistics of its normalisation layers over ``data``.

    As in ``torch.optim.swa_utils.update_bn`` they are plain averages over the batches; only the normalisation layers
    are in training mode, so dropout adds no noise to them. Works on a copy of the model.
    """
    names = normalisation_buffers(model)
    work = copy.deepcopy(model)
    tensors = dict((*work.named_parameters(), *work.named_buffers()))
    device = next(work.parameters()).device
    work.eval()
    for module in work.modules():
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats:
            module.train()
            module.momentum = None
    if isinstance(data, Tensor | tuple):
        inputs = as_inputs(data)
        rows = chunks(len(inputs[0]), batch_size)
        batches: Iterable[tuple[Tensor, ...]] = [tuple(item[r.start : r.stop] for item in inputs) for r in rows]
    else:
        # A one-shot iterator must last for every state; a loader of (input, target) pairs gives its inputs.
        source = list(data) if isinstance(data, Iterator) else data
        batches = _Batches(source)
    with torch.no_grad():
        for state in states:
            for name, value in {**fixed, **state}.items():
                tensors[name].copy_(value)
            for module in work.modules():
                if isinstance(module, nn.modules.batchnorm._NormBase):
                    module.reset_running_stats()
            seen = 0
            for batch in batches:
                work(*(item.to(device) for item in batch))
                seen += 1
            if not seen:
                raise ValueError("data holds no batch to re-estimate the buffers from")
            yield {name: tensors[name].clone() for name in names}


class _Batches:
    """Iterates again and again over a loader, giving the first element of (input, target) pairs."""

    def __init__(self, source: Iterable[Any]) -> None:
        if not isinstance(source, Iterable):
            raise TypeError(f"data must be a tensor, a tuple of tensors or a loader, got {type(source).__name__}")
        self.source = source

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        for item in self.source:
            first = item[0] if isinstance(item, list | tuple) else item
            yield as_inputs(first)
