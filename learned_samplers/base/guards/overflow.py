"""A step from numbers so large that it may overflow is taken with a copy at hand, and undone if it did."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from learned_samplers.base import sharding
from learned_samplers.base.protocol import Chain


@contextmanager
def undone(sampler: Chain, evaluation: Any) -> Iterator[None]:
    """Within it an update is undone if a parameter or a state is not finite after it, or if it fails.

    Raises:
        FloatingPointError: one is not finite; nothing has changed.
    """
    params = [p for inputs in evaluation.groups for p in inputs.params]
    values = [p.clone() for p in params]
    # Also of those that do not move: their mass may be frozen in this step.
    everything = [p for group in sampler.param_groups for p in group["params"] if p in sampler.state]
    states = {p: {name: x.clone() for name, x in sampler.state[p].items()} for p in everything}
    try:
        with sampler.restored_on_error():
            yield
            subject = next(_not_finite(sampler, set(params)), "")
            if sharding.anywhere(subject, sampler.mesh):
                subject = subject or "a part in another process"
                raise FloatingPointError(f"{subject} would not be finite after this step; nothing was changed")
    except BaseException:
        for p, value in zip(params, values, strict=True):
            p.copy_(value)
        for p, state in states.items():
            for name, x in state.items():
                if name in sampler.state[p]:
                    sampler.state[p][name].copy_(x)
                else:  # a new cycle had begun by forgetting it
                    sampler.state[p][name] = x
        if evaluation.restore is not None:
            evaluation.restore()
        evaluation.undone = True
        raise


def _not_finite(sampler: Chain, moved: set[Tensor]) -> Iterator[str]:
    for group in sampler.param_groups:
        for i, p in enumerate(group["params"]):
            if p in moved:
                for name, x in {"": p, **sampler.state.get(p, {})}.items():
                    if not x.isfinite().all():
                        yield f"{name and f'{name} of '}parameter {sampler.name_of(group, i)}"
