"""Fingerprints of parameters that are not sampled, computed again only when a tensor may have changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from learned_samplers.base.sharding import is_sharded, local, summed, whole
from learned_samplers.posterior.names import tensors_of
from learned_samplers.posterior.tensor_files import fingerprint


def mark(tensor: Tensor, *, values: bool = False) -> Any:
    """A cheap mark of a tensor, which changes whenever torch writes to it in place or moves it.

    Changes through ``tensor.data`` in place are the exception, and those by an optimizer with ``fused=True``, which
    raises no version.

    Args:
        values: take the sum and the norm in as well, which these change; without it no value is read.
    """
    try:
        own = tensor._version, tensor.data_ptr(), tensor.dtype
    except RuntimeError:  # an inference tensor has no version
        return object()
    return (*own, *_sums(tensor.detach())) if values else own


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
            self._known[name] = current, fingerprint(whole(tensor))
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
