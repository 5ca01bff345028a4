"""Collections of given weights, or of draws from an approximate posterior: their store and settings."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from learned_samplers.base import validation
from learned_samplers.posterior.names import (
    buffers_of,
    normalisation_buffers,
    parameters_of,
    plain_names,
    with_plain_names,
)
from learned_samplers.posterior.snapshot import same_values
from learned_samplers.posterior.storage import Entry, MemoryStore
from learned_samplers.posterior.tensor_files import Tensors, require_finite, require_writable

POLICIES = ("refuse", "snapshot", "reestimate")


def validate_policy(model: nn.Module, buffers: str) -> str:
    """``buffers``, if it is a policy that suits the model's buffers; ValueError otherwise."""
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
    if statistics and buffers == "refuse":
        raise ValueError(
            f"the model has running statistics ({statistics[0]!r} and {len(statistics) - 1} more buffers) that belong "
            "to the weights they were computed with: choose buffers='snapshot' to keep them with each sample, or "
            "buffers='reestimate' to compute them from data before predicting; got buffers='refuse'"
        )
    if buffers == "reestimate" and not statistics:
        raise ValueError("buffers='reestimate', but the model has no normalisation layer with running statistics")
    return buffers


def given_samples(
    model: nn.Module, samples: Sequence[Mapping[str, Tensor]], buffers: str
) -> tuple[MemoryStore, dict[str, Any]]:
    """The store and the settings of a collection of these weights; see `SampleCollection.from_samples`."""
    if not samples:
        raise ValueError("samples must hold at least one set of weights, got none")
    shapes = {name: list(parameter.shape) for name, parameter in parameters_of(model).items()}
    others = {name: list(buffer.shape) for name, buffer in buffers_of(model).items()}
    owners = _owners(model)
    known = {*shapes, *others, *owners}
    samples = [with_plain_names(_without_count(sample, known), known) for sample in samples]
    statistics = normalisation_buffers(model)
    store = MemoryStore()
    rows: dict[int, Tensors] = {}
    for k, sample in enumerate(samples):
        for name, value in sample.items():
            if not isinstance(value, Tensor):
                raise TypeError(
                    f"samples[{k}]: {name!r} is a {type(value).__name__} and no tensor: leave it out, for a sample is "
                    "the network's parameters and buffers"
                )
        for name, owner in owners.items():
            if name in sample and owner in sample and not same_values(sample[name], sample[owner].to(sample[name])):
                raise ValueError(f"samples[{k}]: {name!r} and {owner!r} are one tensor in the model, and differ here")
        rows[k + 1] = {name: t.detach().clone() for name, t in sample.items() if name not in owners}
        expected = {**shapes, **{name: shape for name, shape in others.items() if name in samples[0]}}
        found = {name: list(tensor.shape) for name, tensor in rows[k + 1].items()}
        if found != expected:
            wrong = next(name for name in (*expected, *found) if expected.get(name) != found.get(name))
            raise ValueError(
                f"samples[{k}]: {wrong!r} has shape {found.get(wrong)}, the model's is {expected.get(wrong)}"
            )
        require_finite(f"samples[{k}]", rows[k + 1], shapes)
    missing = [name for name in statistics if name not in samples[0]]
    if missing and buffers != "reestimate":
        raise ValueError(f"samples[0] lacks the running statistics {missing[0]!r} of the model")
    store.commit([Entry(step, 0, step) for step in rows], rows, store.progress)
    left_out = set(samples[0]) | (set(statistics) if buffers == "reestimate" else set())
    store.set_fixed({n: b.detach().clone() for n, b in buffers_of(model).items() if n not in left_out})
    return store, {"shapes": shapes, "buffers": buffers}


def _owners(model: nn.Module) -> dict[str, str]:
    """Of each further name of a tied parameter or buffer the one that the samples have it under."""
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    plain, first = plain_names([name for name, _ in named]), dict[int, str]()
    pairs = [(plain[name], first.setdefault(id(tensor), plain[name])) for name, tensor in named]
    return {name: owner for name, owner in pairs if name != owner}


def _without_count(sample: Mapping[str, Tensor], known: set[str]) -> dict[str, Tensor]:
    """A state dict without the count of weights that torch's ``AveragedModel`` has beside its network, ``module``."""
    counts = {"n_averaged"} - known
    others = {name: tensor for name, tensor in sample.items() if name not in counts}
    return others if all(name.startswith("module.") for name in others) else dict(sample)


def drawn_samples(
    model: nn.Module, sampled_params: Callable[[], AbstractContextManager[Any]], count: int, buffers: str
) -> tuple[MemoryStore, dict[str, Any]]:
    """The store and the settings of a collection of draws; see `SampleCollection.from_draws`."""
    validation.whole("count", count)
    if not callable(sampled_params):
        raise TypeError(f"sampled_params must be a function that gives a context, got {type(sampled_params).__name__}")
    validate_policy(model, buffers)
    statistics = normalisation_buffers(model)
    if statistics and buffers == "snapshot":
        warnings.warn(
            f"buffers='snapshot' gives every draw the running statistics ({statistics[0]!r}, ...) that the network has "
            "now: right if its normalisation layers were in evaluation mode throughout training; else choose "
            "buffers='reestimate' and call reestimate_buffers(data)",
            stacklevel=3,
        )
    samples = []
    for _ in range(count):
        with torch.no_grad(), sampled_params():
            tensors: Tensors = dict(parameters_of(model))
            if buffers == "snapshot":
                tensors |= buffers_of(model)
            samples.append({name: tensor.detach().clone() for name, tensor in tensors.items()})
    return given_samples(model, samples, buffers)
