"""Several networks in the parameters of one sampler (`Chains`): each must move as it would alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from learned_samplers.base.protocol import Chain

#: How networks lie in a parameter, and what `Chains` is told for it: all along its leading axis, or one of them.
KINDS = {"stacked": "separate=False", "separate": "separate=True"}


def mark(params: Iterable[Tensor], layout: str, count: int) -> None:
    """Note how so many networks lie in these parameters."""
    for p in params:
        p.side_by_side, p.networks = layout, count  # type: ignore[attr-defined]


def of_one_network(params: Sequence[Tensor]) -> float:
    """Return how many of these parameters one network has."""
    separate = [getattr(p, "side_by_side", None) == "separate" for p in params]
    return sum(1 / getattr(p, "networks", 1) if own else 1.0 for p, own in zip(params, separate, strict=True))


def is_stacked(p: Any) -> bool:
    """Return whether the leading axis of a parameter is that of networks side by side."""
    return getattr(p, "side_by_side", None) == "stacked"


def refuse(sampler: Chain, listed: Sequence[Any]) -> None:
    """Raise TypeError if the sampler would mix the networks of a new group of tensors or (name, tensor) pairs."""
    for i, entry in enumerate(listed):
        name, p = entry if isinstance(entry, tuple) else (f"params[{i}]", entry)
        layout = getattr(p, "side_by_side", None)
        if layout is not None and layout not in sampler.side_by_side:
            instead = [f"take Chains(..., {KINDS[layout_taken]})" for layout_taken in sampler.side_by_side]
            raise TypeError(
                f"{type(sampler).__name__} would mix the chains of Chains(..., {KINDS[layout]}), of which parameter "
                f"{name!r} is: {' or '.join(instead) or 'take another sampler'}"
            )


def refuse_one_loss(params: Iterable[Tensor]) -> None:
    """Raise ValueError if parameters that a single loss is of are those of several networks."""
    for p in params:
        if is_stacked(p) and p.shape[0] > 1:
            raise ValueError(
                f"closure returned one loss for {p.shape[0]} chains, and the step would mix them: return their losses, "
                f"of shape ({p.shape[0]},), after losses.sum().backward()"
            )
