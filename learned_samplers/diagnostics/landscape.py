"""Differences between samples: the angles between them, and the loss on the lines from one to another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from learned_samplers.base import validation
from learned_samplers.posterior import SampleCollection

State = Mapping[str, Tensor]


def cosine_similarity(
    samples: Iterable[State] | Tensor | np.ndarray, origin: State | Tensor | np.ndarray | None = None
) -> np.ndarray:
    """Cosines of the angles between samples as vectors of weights, (K, K): ⟨θ_i, θ_j⟩ / (‖θ_i‖ ‖θ_j‖).

    Args:
        samples: a collection of samples, any sequence of dictionaries of tensors (in any order of their names), or a
            tensor or array (K, d).
        origin: what every sample is measured from, in the form of one of them. Samples of one chain share its initial
            weights, independent networks what their initialisations have in common (ones, and means of biases): with
            these as the origin the cosine says how far they went the same way.

    Raises:
        TypeError: samples, or the origin, are neither dictionaries of tensors nor tensors.
        ValueError: fewer than one sample, different names or shapes, or a sample of norm zero.
    """
    if not isinstance(samples, Iterable):
        raise TypeError(f"samples must be samples or a tensor (K, d), got {type(samples).__name__}")
    states = {f"samples[{k}]": state for k, state in enumerate(samples)}
    count = len(states)
    if not count:
        raise ValueError("samples must hold at least one sample, got none")
    if origin is not None:
        states["origin"] = origin
    first = states["samples[0]"]
    for name, state in states.items():
        if not isinstance(state, Mapping if isinstance(first, Mapping) else Tensor | np.ndarray):
            expected = "a dictionary of tensors" if isinstance(first, Mapping) else "a tensor"
            raise TypeError(f"{name} must be {expected}, got {type(state).__name__}")
        if isinstance(state, Mapping) and state.keys() != first.keys():
            raise ValueError(f"{name} has other names than samples[0]: {sorted(state.keys() ^ first.keys())}")
        if isinstance(state, Mapping) and _shapes(state) != _shapes(first):
            raise ValueError(f"{name} has other shapes than samples[0]")
    names = tuple(first) if isinstance(first, Mapping) else ()
    vectors = [
        torch.cat([_vector(state[name]) for name in names]) if isinstance(state, Mapping) else _vector(state)
        for state in states.values()
    ]
    sizes = [len(vector) for vector in vectors]
    if len(set(sizes)) != 1:
        raise ValueError(f"samples must have the same number of parameters, got {sizes}")
    matrix = torch.stack(vectors[:count])
    if origin is not None:
        matrix = matrix - vectors[-1]
    norms = matrix.norm(dim=1, keepdim=True)
    if (norms == 0).any():
        raise ValueError(f"samples[{int((norms == 0).nonzero()[0, 0])}] is zero everywhere and has no angle to others")
    return ((matrix @ matrix.T) / (norms @ norms.T)).clamp(-1, 1).numpy()


@dataclass(frozen=True)
class LossLines:
    """Losses along straight lines between pairs of samples.

    pairs: the P pairs of indices; positions: (T,) from 0 (first of a pair) to 1 (second); losses: (P, T).
    """

    pairs: list[tuple[int, int]]
    positions: np.ndarray
    losses: np.ndarray

    @property
    def barriers(self) -> np.ndarray:
        """(P,) barriers max_t L((1−t)θ + tθ') − ((1−t)L(θ) + tL(θ')): the rise of the loss above its ends, ≥ 0."""
        chord = (1 - self.positions) * self.losses[:, :1] + self.positions * self.losses[:, -1:]
        return (self.losses - chord).max(axis=1)


def loss_lines(
    samples: Sequence[State] | SampleCollection,
    loss: Callable[[dict[str, Tensor]], Any],
    *,
    pairs: Sequence[tuple[int, int]] | None = None,
    num_points: int = 21,
) -> LossLines:
    """Evaluate a loss on the lines θ(t) = (1−t)·θ + t·θ' between samples (Goodfellow et al., 2015; L2E, Figure 2c).

    Args:
        samples: dictionaries from parameter name to tensor.
        loss: from such a dictionary to a number; :func:`network_loss` makes one.
        pairs: pairs of indices; by default all.
        num_points: T ≥ 3 evenly spaced points a line, its ends among them.

    Raises:
        TypeError, ValueError: an argument that cannot be used, or a loss that is not finite.
    """
    validation.integer("num_points", num_points, least=3)
    if not isinstance(samples, Sequence | SampleCollection):
        raise TypeError(f"samples must be a sequence of samples, got {type(samples).__name__}")
    if not callable(loss):
        raise TypeError(f"loss must be a function of a dictionary of weights, got {type(loss).__name__}")
    count = len(samples)
    try:
        chosen = list(combinations(range(count), 2)) if pairs is None else [(int(i), int(j)) for i, j in pairs]
    except (TypeError, ValueError) as error:
        raise TypeError(f"pairs must be pairs of indices, got {pairs!r}") from error
    if wrong := [pair for pair in chosen if not all(-count <= k < count for k in pair)]:
        raise ValueError(f"pairs must be indices of the {count} samples, got {wrong[0]}")
    if not chosen:
        raise ValueError(f"samples must hold at least two samples to draw a line between, got {count}")
    positions = np.linspace(0, 1, num_points)
    losses = np.empty((len(chosen), num_points))
    ends: dict[int, float] = {}  # a sample's own loss, which many lines share
    for row, (i, j) in enumerate(chosen):
        first, second = samples[i], samples[j]
        if _shapes(first) != _shapes(second):
            raise ValueError(f"samples {i} and {j} have different parameters")
        for column, t in enumerate(positions.tolist()):
            end = {0.0: i, 1.0: j}.get(t)
            value = ends.get(end) if end is not None else None
            if value is None:
                value = float(loss({name: _between(first[name], second[name], t) for name in first}))
            if end is not None:
                ends[end] = value
            if not np.isfinite(value):
                raise ValueError(f"loss must be finite, got {value} between samples {i} and {j} at t={t:.3f}")
            losses[row, column] = value
    return LossLines(chosen, positions, losses)


def _between(first: Tensor, second: Tensor, t: float) -> Tensor:
    # (1−t)·a + t·b, and not a lerp, is exact at both ends.
    return first.to(_wide(first)) * (1 - t) + second.to(_wide(second)) * t


def _wide(tensor: Tensor) -> torch.dtype:
    """The dtype for points between samples, of which one of storage alone may keep three digits."""
    return torch.promote_types(tensor.dtype, torch.float32)


def _vector(values: Tensor | np.ndarray) -> Tensor:
    return torch.as_tensor(values).detach().double().cpu().flatten()


def _shapes(state: State) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in state.items()}
