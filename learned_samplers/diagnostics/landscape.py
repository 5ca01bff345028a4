"""How different samples are: the angles between them, and the loss on the lines from one to another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from learned_samplers.base import validation
from learned_samplers.diagnostics.class_losses import log_probabilities, mean_loss
from learned_samplers.metrics.arrays import as_tensor
from learned_samplers.posterior.collection import SampleCollection
from learned_samplers.posterior.inputs import as_inputs
from learned_samplers.posterior.normalisation import normalisation_buffers
from learned_samplers.posterior.outputs import Output, Reading
from learned_samplers.posterior.snapshots import same_values

State = Mapping[str, Tensor]


class OwnBuffers(ValueError):
    """Samples have buffers of their own, such as running statistics, none of which fit weights between two samples."""


def cosine_similarity(samples: Iterable[State] | Tensor) -> np.ndarray:
    """Matrix (K, K) of ⟨θ_i, θ_j⟩ / (‖θ_i‖ ‖θ_j‖) between samples, each taken as one vector.

    Args:
        samples: a collection of samples, any sequence of dictionaries of tensors (in any order of their names), or a
            tensor (K, d).

    Raises:
        ValueError: fewer than one sample, different names or shapes, or a sample of norm zero.
    """
    rows = list(samples)
    if not rows:
        raise ValueError("samples must hold at least one sample, got none")
    first = rows[0]
    for k, row in enumerate(rows):
        if not isinstance(row, Tensor) and not isinstance(first, Tensor):
            if row.keys() != first.keys():
                raise ValueError(f"samples[{k}] has other names than samples[0]: {sorted(row.keys() ^ first.keys())}")
            if _shapes(row) != _shapes(first):
                raise ValueError(f"samples[{k}] has other shapes than samples[0]")
    names = () if isinstance(first, Tensor) else tuple(first)
    vectors = [
        row.detach().double().cpu().flatten()
        if isinstance(row, Tensor)
        else torch.cat([row[name].detach().double().cpu().flatten() for name in names or row])
        for row in rows
    ]
    sizes = [len(vector) for vector in vectors]
    if len(set(sizes)) != 1:
        raise ValueError(f"samples must have the same number of parameters, got {sizes}")
    matrix = torch.stack(vectors)
    norms = matrix.norm(dim=1, keepdim=True)
    if (norms == 0).any():
        raise ValueError(f"samples[{int((norms == 0).nonzero()[0, 0])}] is zero everywhere and has no direction")
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
    pairs: str | Sequence[tuple[int, int]] = "consecutive",
    num_points: int = 21,
) -> LossLines:
    """Evaluate a loss on the lines θ(t) = (1−t)·θ + t·θ' between samples (Goodfellow et al., 2015; L2E, Figure 2c).

    Args:
        samples: dictionaries from parameter name to tensor.
        loss: from such a dictionary to a number; :func:`network_loss` makes one.
        pairs: "consecutive", "all", or pairs of indices.
        num_points: T ≥ 3 evenly spaced points a line, its ends among them.

    Raises:
        TypeError, ValueError: an argument that cannot be used, or a loss that is not finite.
    """
    validation.whole("num_points", num_points, least=3)
    count = len(samples)
    if isinstance(pairs, str):
        validation.one_of("pairs", pairs, ("consecutive", "all"))
        chosen = list(combinations(range(count), 2)) if pairs == "all" else [(k, k + 1) for k in range(count - 1)]
    else:
        chosen = [(int(i), int(j)) for i, j in pairs]
        wrong = [pair for pair in chosen if not all(-count <= k < count for k in pair)]
        if wrong:
            raise ValueError(f"pairs must be indices of the {count} samples, got {wrong[0]}")
    if not chosen:
        raise ValueError(f"samples must hold at least two samples to draw a line between, got {count}")
    positions = np.linspace(0, 1, num_points)
    losses = np.empty((len(chosen), num_points))
    for row, (i, j) in enumerate(chosen):
        first, second = samples[i], samples[j]
        if _shapes(first) != _shapes(second):
            raise ValueError(f"samples {i} and {j} have different parameters")
        for column, t in enumerate(positions.tolist()):
            value = float(loss({name: _between(first[name], second[name], t) for name in first}))
            if not np.isfinite(value):
                raise ValueError(f"loss must be finite, got {value} between samples {i} and {j} at t={t:.3f}")
            losses[row, column] = value
    return LossLines(chosen, positions, losses)


def _between(first: Tensor, second: Tensor, t: float) -> Tensor:
    # (1−t)·a + t·b, and not a lerp, is exact at both ends.
    return first.to(_wide(first)) * (1 - t) + second.to(_wide(second)) * t


def _wide(tensor: Tensor) -> torch.dtype:
    """The dtype for points between samples, of which one of storage alone may keep three digits."""
    if tensor.dtype.itemsize == 1:  # types of eight bits, which torch does not promote
        return torch.float32
    return torch.promote_types(tensor.dtype, torch.float32)


def _shapes(state: State) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in state.items()}


@dataclass(frozen=True)
class LossPlane:
    """Losses on the plane through three samples.

    across, down: (T,) and (R,) coordinates along the plane's two axes, in the weights' unit; losses: (R, T);
    corners: (3, 2) coordinates of the samples, the first at the origin and the second on the first axis.
    """

    across: np.ndarray
    down: np.ndarray
    losses: np.ndarray
    corners: np.ndarray


def loss_plane(
    samples: Sequence[State] | SampleCollection,
    loss: Callable[[dict[str, Tensor]], Any],
    *,
    num_points: int = 15,
    margin: float = 0.25,
) -> LossPlane:
    """Evaluate a loss on the plane through three samples (Garipov et al., NeurIPS 2018).

    The axes are orthonormal: θ₂ − θ₁, and what of θ₃ − θ₁ is orthogonal to it. Distances on the plane are those between
    the weights.

    Args:
        samples: three dictionaries from parameter name to tensor.
        loss: from such a dictionary to a number; :func:`network_loss` makes one.
        num_points: T = R ≥ 3 evenly spaced points along each side of a square about the samples.
        margin: how far the square goes beyond them, as a share of their larger extent, ≥ 0.

    Raises:
        TypeError, ValueError: an argument that cannot be used, three samples on one line, or a loss that is not finite.
    """
    validation.whole("num_points", num_points, least=3)
    validation.non_negative("margin", margin)
    states = [dict(samples[k]) for k in range(len(samples))]
    if len(states) != 3:
        raise ValueError(f"samples must be three, got {len(states)}")
    if any(_shapes(state) != _shapes(states[0]) for state in states):
        raise ValueError("samples have different parameters")
    origin, second, third = ({name: tensor.detach().double() for name, tensor in state.items()} for state in states)
    sides = [{name: other[name] - origin[name] for name in origin} for other in (second, third)]
    width, length = (_dot(side, side) ** 0.5 for side in sides)
    if not width > 0:
        raise ValueError("samples must not lie on one line, the first two are the same")
    first_axis = {name: tensor / width for name, tensor in sides[0].items()}
    along = _dot(sides[1], first_axis)
    rest = {name: tensor - along * first_axis[name] for name, tensor in sides[1].items()}
    height = _dot(rest, rest) ** 0.5
    if not height > 1e-6 * length:
        raise ValueError("samples must not lie on one line")
    corners = np.array([[0.0, 0.0], [width, 0.0], [along, height]])
    low, high = corners.min(0), corners.max(0)
    half = (0.5 + margin) * (high - low).max()
    across, down = np.linspace((low + high) / 2 - half, (low + high) / 2 + half, num_points).T
    losses = np.empty((num_points, num_points))
    for row, b in enumerate(down.tolist()):
        for column, a in enumerate(across.tolist()):
            point = {name: origin[name] + a * first_axis[name] + b / height * rest[name] for name in origin}
            value = float(loss({name: tensor.to(_wide(states[0][name])) for name, tensor in point.items()}))
            if not np.isfinite(value):
                raise ValueError(f"loss must be finite, got {value} at ({a:.3g}, {b:.3g}) of the plane")
            losses[row, column] = value
    return LossPlane(across, down, losses, corners)


def _dot(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    return float(sum((first[name] * second[name]).sum() for name in first))


def loss_barrier(
    first: State, second: State, loss: Callable[[dict[str, Tensor]], Any], *, num_points: int = 21
) -> float:
    """Barrier between two sets of weights, as in :attr:`LossLines.barriers`."""
    return float(loss_lines([first, second], loss, num_points=num_points).barriers[0])


def network_loss(
    samples: SampleCollection,
    x: Any,
    labels: Tensor,
    *,
    kind: str = "nll",
    batch_size: int = 256,
    output: Output = "softmax",
    class_axis: int | None = None,
    select: int | str | None = None,
) -> Callable[[dict[str, Tensor]], float]:
    """A loss for :func:`loss_lines`: the mean of the network over (x, labels) as a function of its weights.

    Of a sample's own weights it is that of the sample's prediction. What `SampleCollection.predict` refuses is refused
    here too, when the loss is first computed.

    Args:
        samples: whose network, frozen parameters and buffers are used.
        x: inputs (N, ...), or a tuple of them.
        labels: integers, one for each prediction: (N,), or (N, ...) with ``class_axis``.
        kind: "nll" for the negative log-likelihood in nats, "error" for the share of wrong predictions.
        batch_size: examples run at once.
        output, class_axis, select: how the network's output is read, as in `SampleCollection.predict`. A function gives
            probabilities, (N, C), or (N,) of class 1 of two. "regression" has no classes.

    Raises:
        RuntimeError: there is no sample yet.
        OwnBuffers: a network with running statistics, or samples with different buffers.
        TypeError, ValueError: an argument that cannot be used.
    """
    validation.one_of("kind", kind, ("nll", "error"))
    validation.whole("batch_size", batch_size)
    reading, model = Reading(output, class_axis, select=select), samples.model
    if reading.output == "regression":
        raise ValueError(f"output must say where the classes are for kind={kind!r}, got 'regression', which has none")
    count, given = len(as_inputs(x)[0]), as_tensor("labels", labels)
    if given.shape[:1] != (count,):
        raise ValueError(
            f"labels must be as many as the {count} inputs, got {len(given) if given.ndim else 'one number'}"
        )
    if normalisation_buffers(model):
        raise OwnBuffers(
            f"samples: {type(model).__name__} has running statistics, which do not fit weights between two samples"
        )
    samples._require_samples("whose loss could be computed")
    fixed = {**samples._fixed(), **_shared_buffers(samples)}

    def evaluate(state: dict[str, Tensor]) -> float:
        parts = samples._runner.predictions(
            lambda _: state,
            [0],
            fixed,
            x,
            partial(log_probabilities, reading=reading),
            reading,
            batch_size=batch_size,
            sample_chunk=1,
            vectorize=False,
            targets=None,
        )
        with closing(parts):
            return mean_loss(next(parts)[0], given, kind)

    return evaluate


def _shared_buffers(samples: SampleCollection) -> dict[str, Tensor]:
    """The buffers that every sample holds a copy of, the same in all; OwnBuffers where one differs."""
    first = samples._store.read(0)
    shared = {name: tensor for name, tensor in first.items() if name not in samples.parameter_names}
    for k in range(1, len(samples) if shared else 0):
        other = samples._store.read(k)
        for name, tensor in shared.items():
            if not same_values(tensor, other[name]):
                raise OwnBuffers(
                    f"samples: the buffer {name!r} differs from sample 0 to sample {k}, and no values of it belong to "
                    "the weights between two samples"
                )
    return shared
