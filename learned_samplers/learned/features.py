"""What a network sees of each weight of a chain: the named sets of features, running averages, and how both are made.

Everything lies in flat buffers with any leading axes, feature by feature, (..., F, d): a tensor's mean square is a
reduction along the last axis, a layer of the network one batched product W·X without a transpose.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base.operations import scalar_log10
from learned_samplers.base.segments import Segments, constant

#: d of the running averages m ← d·m + (1−d)·g that the network sees (Appendix I.1 of the paper).
AVERAGE_DECAYS = (0.1, 0.5, 0.9, 0.99, 0.999, 0.9999)
#: d of the running averages v ← d·v + (1−d)·g² of an adaptive set.
_SECOND_MOMENT_DECAYS = (0.99, 0.999)
#: d of the averages whose ratios to √v̂ an adaptive set has; the first one is also what the matrix direction is made of.
_RATIO_DECAYS = (0.9, 0.99)

#: d of the averages whose length beside the gradient's is in the context: the gradient-to-noise ratio.
COHERENCE_DECAYS = (0.9, 0.99, 0.999)


@dataclass(frozen=True)
class FeatureSet:
    """A named choice of features; weights are bound to the name, so a name's meaning never changes.

    The rows are: g, θ, r, the running averages of g, each divided by its root mean square over the tensor; the matrix
    direction; those that are made coordinate by coordinate, ratios of gradient and averages to √v̂ and logarithms of √v̂;
    then ``context``, one value a tensor.
    """

    name: str
    #: Whether second moments are kept, adaptive rows made of them, and there is a context.
    adaptive: bool = False
    #: Whether there is the matrix direction, the momentum of each matrix whitened and
    #: made orthogonal, and whether the context tells the run's progress and what is a matrix.
    matrix: bool = False
    #: τ of the features t/(t + τ) of the context.
    times: tuple[int, ...] = ()

    context: tuple[str, ...] = field(init=False)
    average_decays: tuple[float, ...] = field(init=False, default=AVERAGE_DECAYS)
    #: d of v, kept after the averages of g.
    second_moment_decays: tuple[float, ...] = field(init=False)
    ratio_decays: tuple[float, ...] = field(init=False, default=_RATIO_DECAYS)
    #: Running averages that the rule keeps for each coordinate.
    num_averages: int = field(init=False)
    #: A name for each feature, in order.
    names: tuple[str, ...] = field(init=False)
    #: F, the number of features.
    size: int = field(init=False)
    #: Whether the network is told how much of the run is over, where that is known.
    sees_progress: bool = field(init=False)

    def __post_init__(self) -> None:
        seconds = _SECOND_MOMENT_DECAYS if self.adaptive else ()
        raw = ("gradient", "parameter", "momentum", *(f"average_{d:g}" for d in AVERAGE_DECAYS))
        ratios = ("gradient_to_rms", *(f"average_{d:g}_to_rms" for d in _RATIO_DECAYS)) if self.adaptive else ()
        logs, matrix = tuple(f"log_rms_{d:g}" for d in seconds), ("matrix_direction",) * self.matrix
        context: tuple[str, ...] = ()
        if self.adaptive:
            context = ("log_kick", "log_parameter", "log_momentum", "log_displacement")
            context += (*(f"log_coherence_{d:g}" for d in COHERENCE_DECAYS), "log_size")
            context += (*(f"time_{time}" for time in self.times), "log_data")
            context += ("progress", "has_total", "is_matrix") if self.matrix else ()
        names = (*raw, *matrix, *ratios, *logs, *context)
        own = {
            "context": context,
            "second_moment_decays": seconds,
            "num_averages": len(AVERAGE_DECAYS) + len(seconds),
            "names": names,
            "size": len(names),
            "sees_progress": self.matrix,
        }
        for name, value in own.items():
            object.__setattr__(self, name, value)


FEATURE_SETS: dict[str, FeatureSet] = {
    each.name: each
    for each in (
        FeatureSet("paper"),
        FeatureSet("adaptive", adaptive=True, times=(10, 100, 1000)),
        FeatureSet("matrix", adaptive=True, matrix=True, times=(10, 100, 1000, 10000)),
    )
}


def feature_set_named(name: str | FeatureSet) -> FeatureSet:
    """The feature set of that name.

    Raises:
        ValueError: there is none.
    """
    if isinstance(name, FeatureSet):
        return name
    if name not in FEATURE_SETS:
        raise ValueError(f"feature_set must be one of {', '.join(map(repr, FEATURE_SETS))}, got {name!r}")
    return FEATURE_SETS[name]


#: What is divided by its root mean square is multiplied by rsqrt(FLOOR + mean square).
FLOOR = 1e-5
_RATIO_BOUND = 8.0
_LOG_RATIO_FLOOR = 1e-10

#: Averages or covariances of a chain: one flat buffer with leading axes, or in place a tensor for each parameter.
Kept = Tensor | Sequence[Tensor]


def features(
    parameter: Tensor,
    momentum: Tensor,
    gradient: Tensor,
    averages: Tensor,
    segments: Segments,
    feature_set: str | FeatureSet = "paper",
    *,
    lr: Any = None,
    num_data: Any = None,
    step: Any = 0,
    total_steps: int | None = None,
    direction: Tensor | None = None,
) -> Tensor:
    """The features of every coordinate, (..., F, d).

    "paper": g, θ, r and six running averages of g, each x·rsqrt(1e-5 + mean x²) with the mean over the tensor (the
    paper says "l2 norm 1"; the published code does this). The magnitudes are lost. The richer sets give them back
    (t = step + 1, ε = √(lr/N), ‖·‖ root mean square over the tensor):

    - "adaptive": also, with v̂ the bias-corrected average of g² at d = 0.99: g/√v̂, m_.9/√v̂ and m_.99/√v̂ (bias-corrected,
      held to ±8), and ¼·log(√v̂/‖√v̂‖) at d = 0.99 and 0.999, coordinate by coordinate. Constant over a tensor: ¼ of
      log‖ε·N·g‖ (the kick, in units of the momentum), of log‖θ‖, log‖r‖ and log(ε‖r‖/‖θ‖), and of the coherence
      log(‖m_d‖/((1−dᵗ)·‖g‖)) at d = 0.9, 0.99, 0.999 (½·log((1−d)/(1+d)) is pure noise: the gradient-to-noise ratio);
      log₁₀(size)/3 − 1; t/(t+τ) at τ = 10, 100, 1000; log₁₀(N)/3 − 1.
    - "matrix": also the matrix direction, the momentum of each matrix whitened and made orthogonal
      (`learned_samplers.base.matrices.directions`), before the adaptive rows; and constant over a tensor t/(t+τ) at
      τ = 10,000; (t − 1)/``total_steps`` held to 1 ("progress", the share of the run that is over) and 1 ("has_total"),
      or 0 and 0 where the length of the run is not known; 1 where it is a matrix ("is_matrix").

    Args:
        parameter, momentum, gradient: (..., d), θ less the prior's mean, the gradient of the mean minibatch loss.
        averages: (..., K, d), already updated with ``gradient`` (`update_averages`).
        segments: the tensors in the flat axis; for "matrix" with their shapes.
        feature_set: a set, or its name.
        lr, num_data, step: learning rate, N, and updates done before this one; the paper's set uses none of them.
        total_steps: length of the run, or None where it is not known.
        direction: (..., d), of "matrix".

    Raises:
        ValueError: there is no feature set of that name.
    """
    run = dict(lr=lr, num_data=num_data, step=step, total_steps=total_steps, direction=direction)
    scales = Scales(parameter, gradient, averages, segments, feature_set_named(feature_set), **run)
    return scales.with_momentum(momentum).window(0, segments.total)


# ------------------------------------------------------------------------------------------- running averages


def update_averages(
    averages: Tensor,
    gradient: Tensor,
    feature_set: str | FeatureSet = "paper",
    *,
    in_place: bool = False,
    step: Any = 0,
    segments: Segments | None = None,
) -> Tensor:
    """m_d ← d·m_d + (1−d)·g, and v_d ← d·v_d + (1−d)·g² where the set keeps any; no bias correction.

    ``averages`` is (..., K, d) with the m first, ``gradient`` (..., d). New averages, or with ``in_place`` the same.
    Averages in bfloat16 stay so, and are rounded by step and tensor as `_rounded` says.

    Raises:
        ValueError: averages in bfloat16 and a gradient that is differentiated, which rounding does not allow.
    """
    named = feature_set_named(feature_set)
    k = len(named.average_decays)
    decays = named.average_decays + named.second_moment_decays
    if averages.dtype == torch.bfloat16 != gradient.dtype:
        if torch.is_grad_enabled() and (averages.requires_grad or gradient.requires_grad):
            raise ValueError("averages in bfloat16 cannot be differentiated through: keep them in float32")
        averages = averages if in_place else averages.clone()
        whole = segments or Segments((gradient.shape[-1],))
        for i, (row, decay) in enumerate(zip(averages.unbind(-2), decays, strict=True)):
            _update_rounded_(row, gradient, 1 - decay, square=i >= k, number=i, step=step, segments=whole)
        return averages
    if in_place:
        # Average by average, for the gradient as many times as there are averages is as large as they are.
        shares = (1 - torch.tensor(decays, dtype=gradient.dtype)).tolist()
        for row, share in zip(averages[..., :k, :].unbind(-2), shares[:k], strict=True):
            row.lerp_(gradient, share)
        for row, share in zip(averages[..., k:, :].unbind(-2), shares[k:], strict=True):
            row.mul_(1 - share).addcmul_(gradient, gradient, value=share)
        return averages
    weights = 1 - constant(decays, gradient).unsqueeze(-1)
    gradient = gradient.unsqueeze(-2)
    first = torch.lerp(averages[..., :k, :], gradient, weights[:k])
    if not named.second_moment_decays:
        return first
    return torch.cat([first, torch.lerp(averages[..., k:, :], gradient.square(), weights[k:])], -2)


def update_each_(
    averages: Sequence[Tensor], gradient: Tensor, feature_set: str | FeatureSet, *, step: Any, segments: Segments
) -> Tensor:
    """`update_averages` in place of averages (K, *shape) for each tensor; gives them as one buffer (K, d)."""
    rows = [x.reshape(len(x), -1) for x in averages]
    flat = rows[0] if len(rows) == 1 else torch.cat(rows, -1)  # of a huge tensor no copy
    fresh = not torch.compiler.is_compiling()  # which does not follow a change in place
    flat = update_averages(flat, gradient, feature_set, in_place=fresh, step=step, segments=segments)
    if torch.compiler.is_compiling() or flat.data_ptr() != averages[0].data_ptr():
        pieces = flat.split([x[0].numel() for x in averages], -1)
        torch._foreach_copy_(
            list(averages), [piece.reshape(x.shape) for x, piece in zip(averages, pieces, strict=True)]
        )
    return flat


def begin_late_(averages: Tensor, mean_square: Tensor, feature_set: str | FeatureSet, step: int) -> None:
    """Let the second moments of a tensor that joins after ``step`` updates begin as if all had had this gradient.

    v_d ← (1 − dᵗ)·mean(g²): the correction by 1/(1 − dᵗ) is the chain's, and from zeros the tensor would be taken for
    one of tiny gradients, and move too far. Means of gradients may begin at zero.

    Args:
        averages: of the tensor, (K, *shape), all zero.
        mean_square: of its first gradient, one number.
    """
    named = feature_set_named(feature_set)
    for row, decay in zip(averages[len(named.average_decays) :], named.second_moment_decays, strict=True):
        row.add_(mean_square, alpha=1 - decay**step)


# Odd numbers far from any ratio of small ones, for coordinates, averages and steps; coordinates rounded at a time.
_COORDINATE, _AVERAGE, _STEP, _ROUNDED_AT_ONCE = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 1 << 16


def _update_rounded_(
    row: Tensor, gradient: Tensor, share: float, *, square: bool, number: int, step: Any, segments: Segments
) -> None:
    """row ← row + share·(g − row), or of g², rounded to bfloat16, in place; ``row`` is the average of that number."""
    for start, stop in pairwise(segments.edges):
        for first in range(0, stop - start, _ROUNDED_AT_ONCE):
            part = slice(start + first, min(start + first + _ROUNDED_AT_ONCE, stop))
            g = gradient[..., part]
            new = torch.lerp(row[..., part].to(g.dtype), g * g if square else g, share)
            row[..., part] = _rounded(new.float(), first, number, step)


def _rounded(x: Tensor, first: int, number: int, step: Any) -> Tensor:
    """Float32 to bfloat16, for coordinates from ``first`` on of a tensor, so that roundings add up to nothing.

    A slow average moves by less than bfloat16 resolves: rounding to the nearest number would stop it. What is rounded
    away is compared with a number that takes all values in turn as the steps go by: up as often as the remainder is
    large, and right in the mean.
    """
    at = torch.arange(first, first + x.shape[-1], device=x.device) * _COORDINATE
    threshold = ((at + (number * _AVERAGE + step * _STEP % (1 << 32))) % (1 << 32)) >> 16
    bits = x.contiguous().view(torch.int32) + threshold.to(torch.int32)
    return (bits & -65536).view(torch.float32).to(torch.bfloat16)


# ------------------------------------------------------------------------------------------- the features


class Scales:
    """Statistics of whole tensors that the features of their coordinates need; computes the features window by window.

    Args:
        direction: (..., d), the matrix direction of a set that has one.
        others: see `features`.
    """

    def __init__(
        self,
        parameter: Tensor,
        gradient: Tensor,
        averages: Any,
        segments: Segments,
        named: FeatureSet,
        *,
        lr: Any,
        num_data: Any,
        step: Any,
        total_steps: int | None = None,
        direction: Tensor | None = None,
    ):
        self.parameter, self.gradient, self.averages = parameter, gradient, averages
        self.segments, self.named, self.direction = segments, named, direction
        self.time = step + 1
        self.lr, self.num_data, self.total_steps = lr, num_data, total_steps
        k = len(named.average_decays)
        squares = [segments.mean_square(x).unsqueeze(-2) for x in (gradient, parameter)]
        self.mean_squares = torch.cat([*squares, segments.mean_square(averages[..., :k, :], gradient.dtype)], -2)
        if named.adaptive:  # what second moments are multiplied by before their logarithm
            self.log_factors = 1 / (segments.mean(averages[..., k:, :], gradient.dtype) + TINY)

    def with_momentum(self, momentum: Tensor) -> Scales:
        """These with another momentum (each of the two passes has its own)."""
        self.momentum = momentum
        square = self.segments.mean_square(momentum).unsqueeze(-2)
        gradient_parameter, averages = self.mean_squares[..., :2, :], self.mean_squares[..., 2:, :]
        self.factors = torch.rsqrt(torch.cat([gradient_parameter, square, averages], -2) + FLOOR)
        if self.named.context:
            self.context = self._context(square)
        return self

    def held(self, parameter: Tensor, momentum: Tensor) -> Scales:
        """The features of another θ and r with these statistics held fixed, for derivatives by coordinate."""
        other = copy.copy(self)
        other.parameter, other.momentum = parameter, momentum
        return other

    def window(self, start: int, stop: int) -> Tensor:
        """The features of the coordinates from ``start`` to ``stop``, (..., F, stop − start)."""
        part, k = slice(start, stop), len(self.named.average_decays)
        three = [x[..., part].unsqueeze(-2) for x in (self.gradient, self.parameter, self.momentum)]
        averages = self.averages[..., part].to(self.gradient.dtype)
        rows = [torch.cat([*three, averages[..., :k, :]], -2) * self._spread(self.factors, start, stop)]
        if self.direction is not None:
            rows.append(self.direction[..., part].unsqueeze(-2))
        if self.named.adaptive:
            rows += self._adaptive(averages, start, stop)
        if self.named.context:
            context = self._spread(self.context, start, stop)
            rows.append(context.expand(*context.shape[:-1], stop - start))
        return torch.cat(rows, -2) if len(rows) > 1 else rows[0]

    def _spread(self, x: Tensor, start: int, stop: int) -> Tensor:
        return self.segments.expand(x, start, stop) if stop > start else x[..., :1]

    def _adaptive(self, averages: Tensor, start: int, stop: int) -> list[Tensor]:
        """The rows of an adaptive set that are made coordinate by coordinate."""
        decays, t = self.named.average_decays, self.time
        seconds = averages[..., len(decays) :, :]
        inverse = torch.rsqrt(seconds[..., 0, :] / (1 - self.named.second_moment_decays[0] ** t) + TINY)
        ratios = [self.gradient[..., start:stop] * inverse]
        for d in self.named.ratio_decays:
            ratios.append(averages[..., decays.index(d), :] * (inverse / (1 - d**t)))
        # The bias correction drops out of a ratio of two averages at one d.
        relative = seconds * self._spread(self.log_factors, start, stop)
        logs = 0.5 * LOG_SCALE * torch.log(relative + _LOG_RATIO_FLOOR)
        return [torch.stack(ratios, -2).clamp(-_RATIO_BOUND, _RATIO_BOUND), logs]

    def _context(self, momentum: Tensor) -> Tensor:
        """The rows of the context of every tensor, (..., E, S); ``momentum`` is its mean square (..., 1, S)."""
        like, run = self.mean_squares, dict(num_data=self.num_data, time=self.time, total_steps=self.total_steps)
        squares, constants = context_of(self.named, like, momentum, lr=self.lr, **run)
        logs = torch.log(torch.cat(squares, -2))
        rows = [torch.log10(constant(self.segments.lengths, like)) / 3 - 1]
        rows += [torch.zeros_like(rows[0]) + x for x in constants]
        if self.named.matrix:
            rows.append(constant(tuple(float(min(sides) > 1) for sides in self.segments.matrices), like))
        rest = torch.stack(rows).expand(*like.shape[:-2], -1, -1)
        return torch.cat([0.5 * LOG_SCALE * logs, rest], -2)


# ------------------------------------------------------------------------------------------- the context

# Logarithms are flat below these mean squares, so that a dead tensor gives a finite feature: of gradients, whose scale
# is unknown, and of dimensionless quantities and parameters.
TINY, SMALL = 1e-16, 1e-8
#: Brings natural logarithms of magnitudes to the scale of the other features.
LOG_SCALE = 0.25


def context_of(
    named: FeatureSet, squares: Any, momentum: Any, *, lr: Any, num_data: Any, time: Any, total_steps: int | None
) -> tuple[list[Any], list[Any]]:
    """What the context is made of, of tensors or of arrays.

    Args:
        squares: means over each tensor of the squares of g, θ and the averages of g, (..., 2 + K, S).
        momentum: that of r, (..., 1, S).
        time: updates done, with this one.

    Returns:
        Squares whose logarithm, times ½·`LOG_SCALE`, is in the context, (..., 1, S) each; and the features that are the
        same for all tensors, between those of a tensor's size and its shape.
    """
    gradient, parameter = squares[..., :1, :], squares[..., 1:2, :]
    logarithms = [
        gradient * (lr * num_data) + SMALL,
        parameter + SMALL,
        momentum + SMALL,
        (momentum * (lr / num_data) + SMALL**2) / (parameter + SMALL),
    ]
    for d in COHERENCE_DECAYS:
        i = 2 + named.average_decays.index(d)
        logarithms.append((squares[..., i : i + 1, :] / (1 - d**time) ** 2 + TINY) / (gradient + TINY))
    # The last is 0 at a thousand training points, 1 at a million.
    constants = [*[time / (time + each) for each in named.times], scalar_log10(num_data) / 3 - 1]
    if named.matrix:  # the share of the run that is over before its ``time``-th step, and whether it has an end
        share = 0.0 if total_steps is None else min((time - 1) / total_steps, 1.0)
        constants += [share, float(total_steps is not None)]
    return logarithms, constants
