"""Validation of the arguments of metrics, tensors or arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from learned_samplers.posterior.inputs import readable

FLOOR = torch.finfo(torch.float32).tiny
TOLERANCE = 1e-3


def as_tensor(name: str, value: Any) -> Tensor:
    """``value`` as a tensor outside the autograd tape; TypeError, naming the argument, if torch cannot read it."""
    try:
        if hasattr(value, "__array__") and not isinstance(value, Tensor):  # pandas' would be read by its index
            value = readable(np.asarray(value))
            value = value if value.flags.writeable else value.copy()
        return torch.as_tensor(value).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name} must be a tensor or an array, got {type(value).__name__} ({error})") from error


def _of_arviz(name: str, value: Any, ndim: int) -> Any:
    """Predictions of ArviZ's groups: all draws of all chains, or for ``ndim`` 2 their mean; anything else as it is."""
    groups = [group for group in ("predictions", "posterior_predictive") if hasattr(value, group)]
    if groups:
        group = getattr(value, groups[0])
        if len(group.data_vars) != 1:
            raise ValueError(f"{name} must have one variable in {groups[0]}, got {sorted(map(str, group.data_vars))}")
        value = group[next(iter(group.data_vars))]
    dims = getattr(value, "dims", ())
    if not {"chain", "draw"} <= set(dims):
        return value
    draws = value.transpose("chain", "draw", ...).values
    draws = draws.reshape(-1, *draws.shape[2:])
    return draws.mean(0) if ndim == 2 else draws


def probabilities(name: str, value: Any, ndim: int = 2) -> Tensor:
    """``value`` as a float64 tensor of ``ndim`` axes, the last one over classes, checked to hold probabilities.

    One probability for each example, (N,) or (..., 1), is that of class 1 of two, and becomes [1 − p, p]. Of an ArviZ
    ``InferenceData`` or ``DataTree`` it is the variable of ``predictions`` or ``posterior_predictive``, averaged over
    chains and draws where one prediction is wanted; likewise of an xarray variable (chain, draw, N, C).
    """
    probs = as_tensor(name, _of_arviz(name, value, ndim))
    if not probs.is_floating_point():
        raise TypeError(f"{name} must hold floating-point numbers, got {probs.dtype}")
    shape = tuple(probs.shape)
    if ndim == 2 and probs.ndim == 1:
        probs = probs.unsqueeze(1)
    if probs.ndim != ndim or 0 in shape:
        expected = "(N, C), or (N,) for two classes" if ndim == 2 else "(K, N, C), or (K, N, 1) for two classes"
        raise ValueError(f"{name} must have shape {expected}, without an empty axis; got {shape}")
    # Correctly rounded probabilities sum to one to within a quarter of this.
    tolerance = max(TOLERANCE, torch.finfo(probs.dtype).eps)
    probs = probs.double()
    rows = probs.flatten(0, -2)
    for problem, bad in (
        ("is not finite", ~rows.isfinite()),
        ("is negative", rows < 0),
        ("is above one", rows > 1 + tolerance),
    ):
        if bad.any():
            where = tuple(bad.nonzero()[0].tolist())
            raise ValueError(f"{name} must hold probabilities: {rows[where].item()} (row {where[0]}) {problem}")
    if rows.shape[1] == 1:
        if len(shape) == ndim and bool((rows == 1).all()):
            raise ValueError(
                f"{name} must have at least two classes, got ones of shape {shape}: a softmax of one logit, "
                f"or a sigmoid that is 1 everywhere, which is accepted as {shape[:-1]}"
            )
        probs = probs.clamp(max=1)
        return torch.cat([1 - probs, probs], -1)
    off = (rows.sum(1) - 1).abs() > tolerance
    if off.any():
        row = int(off.nonzero()[0])
        raise ValueError(f"{name}: row {row} sums to {rows[row].sum().item():.6g} instead of 1 (are these logits?)")
    return probs


def class_labels(labels: Any, probs: Tensor) -> Tensor:
    values = as_tensor("labels", labels).to(probs.device)
    if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
        raise TypeError(f"labels must be integers, got {values.dtype} (use .long())")
    values = values.long()  # torch does not compare unsigned integers
    examples, classes = probs.shape
    if values.shape != (examples,):
        raise ValueError(f"labels must have shape ({examples},), one for each row of probs; got {tuple(values.shape)}")
    bad = (values < 0) | (values >= classes)
    if bad.any():
        raise ValueError(f"labels must lie in [0, {classes}), got {int(values[bad][0])}")
    return values


def two_predictions(probs: Any, reference: Any) -> tuple[Tensor, Tensor]:
    first, second = probabilities("probs", probs), probabilities("reference", reference)
    if first.shape != second.shape:
        raise ValueError(f"reference must have the shape of probs, {tuple(first.shape)}; got {tuple(second.shape)}")
    return first, second.to(first.device)


def reals(name: str, value: Any, shape: tuple[int, ...] | None = None) -> Tensor:
    """``value`` as a finite float64 tensor, of ``shape`` if that is given.

    Raises:
        TypeError, ValueError: it is not; the message names the argument.
    """
    values = as_tensor(name, value)
    if values.is_complex() or values.dtype == torch.bool:
        raise TypeError(f"{name} must hold real numbers, got {values.dtype}")
    values = values.double()
    if not values.numel():
        raise ValueError(f"{name} must not be empty, got shape {tuple(values.shape)}")
    if not values.isfinite().all():
        raise ValueError(f"{name} must be finite, got {values[~values.isfinite()][0].item()}")
    if shape is not None and values.shape != shape:
        raise ValueError(f"{name} must have shape {tuple(shape)}, got {tuple(values.shape)}")
    return values
