"""Collecting samples from a compiled step: an operator that passes the sampler's new weights to a collector.

``torch.compile(sampler.step, fullgraph=True)`` traces the step's hooks too, and a hook that keeps copies and writes
files cannot be traced. The operator is opaque to the compiler, which calls it once a step with the tensors as they are
after the update. It is said to change ``token``, so that it is neither dropped nor moved, and so that no CUDA graph
records it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any
from weakref import WeakMethod

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from learned_samplers.posterior.network import parameters_of, tensors_of
from learned_samplers.posterior.snapshots import Snapshots
from learned_samplers.posterior.tensor_files import Tensors

Collect = Callable[[int, bool, int, list[Tensor]], None]

_methods: dict[int, WeakMethod[Any]] = {}
_keys = count()


def register(method: Collect) -> int:
    """Register a bound method, taking (step, is sampling, cycle, tensors); returns its key for :func:`collect`."""
    key = next(_keys)
    _methods[key] = WeakMethod(method, lambda _: _methods.pop(key, None))
    return key


# Written out: older torch cannot read it off annotations that are not evaluated.
_SCHEMA = "(Tensor(a!) token, Tensor[] tensors, SymInt key, SymInt step, bool sampling, SymInt cycle) -> ()"


@torch.library.custom_op("learned_samplers::collect", mutates_args=("token",), schema=_SCHEMA)
def collect(token: Tensor, tensors: list[Tensor], key: int, step: int, sampling: bool, cycle: int) -> None:
    """Call the method registered under ``key``."""
    method = _methods[key]() if key in _methods else None
    if method is not None:
        method(step, sampling, cycle, tensors)


@collect.register_fake
def _(token: Tensor, tensors: list[Tensor], key: int, step: int, sampling: bool, cycle: int) -> None:
    return None


class HookedSteps:
    """The part of a collector that a sampler's step calls, compiled or not."""

    model: nn.Module
    _sampler: Optimizer | None
    _snapshots: Snapshots
    _counts: bool

    def _after_step(self, step: int, sampling: bool, cycle: int, tensors: Tensors | None = None) -> None:
        """Take note of a step, and keep its state if it is due."""
        raise NotImplementedError

    def _hook(self, sampler: Optimizer) -> None:
        self._trainable: dict[str, bool] = {}
        self._remember_varying()
        self._token, self._key = torch.zeros(1), register(self._after_compiled_step)
        self._handle = sampler.register_step_post_hook(self._on_step)

    def _on_step(self, sampler: Optimizer, args: Any = None, kwargs: Any = None) -> None:
        step = int(getattr(sampler, "step_count", -1))
        sampling, cycle = bool(getattr(sampler, "is_sampling", True)), int(getattr(sampler, "cycle", 0))
        if torch.compiler.is_compiling():
            tensors = [tensor.detach() for tensor in self._varying.values()]
            torch.ops.learned_samplers.collect(self._token, tensors, self._key, step, sampling, cycle)
        else:
            self._after_step(step, sampling, cycle)

    def _after_compiled_step(self, step: int, sampling: bool, cycle: int, tensors: list[Tensor]) -> None:
        if hasattr(self._sampler, "sampled_params"):
            raise RuntimeError(
                f"a draw of {type(self._sampler).__name__} cannot be collected inside torch.compile: compile the model "
                "instead of the step"
            )
        self._refuse_unseen()
        present = tensors_of(self.model)
        replaced = [name for name, tensor in self._varying.items() if present[name] is not tensor]
        if replaced:
            raise RuntimeError(
                f"{replaced[0]!r} was replaced since PosteriorSamples was made: make it after model.to()"
            )
        self._after_step(step, sampling, cycle, dict(zip(self._varying, tensors, strict=True)))

    def _refuse_unseen(self) -> None:
        """Raise RuntimeError where ``requires_grad`` has changed in a way that a compiled step does not see.

        Without a gradient it is compiled again; with one it goes on as it was.
        """
        parameters, before = parameters_of(self.model), self._trainable
        self._trainable = {name: p.requires_grad for name, p in parameters.items()}
        for name, now in self._trainable.items():
            if now != before.get(name, now) and parameters[name].grad is not None:
                raise RuntimeError(
                    f"a compiled step does not see that {name!r} was {'unfrozen' if now else 'frozen'}: call "
                    "torch.compiler.reset() and make a new PosteriorSamples after that"
                )

    def _remember_varying(self) -> None:
        tensors = tensors_of(self.model)
        self._varying = {name: tensors[name] for name in self._snapshots.varying_names()}
