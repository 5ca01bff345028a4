"""Fingerprints of parameters that are not sampled, computed again only when a tensor may have changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from learned_samplers.base.sharding import whole
from learned_samplers.posterior.names import tensors_of
from learned_samplers.posterior.tensor_files import fingerprint


def mark(tensor: Tensor) -> Any:
    """A cheap mark of a tensor, which changes whenever torch writes to it in place or moves it; no value is read.

    (Changes through ``tensor.data`` in place are the exception.)
    """
    try:
        return tensor._version, tensor.data_ptr(), tensor.dtype
    except RuntimeError:  # an inference tensor has no version
        return object()


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
