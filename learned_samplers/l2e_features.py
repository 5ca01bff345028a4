"""What L2E's network sees of each coordinate: named feature sets over flat buffers with any leading batch axes.

Feature-major layout, (..., F, d): a tensor's mean square is a reduction along the last axis, and a layer of the network
is one batched product W·X without a transpose.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

#: d of the running averages m ← d·m + (1−d)·g that the network sees (Appendix I.1 of the paper).
AVERAGE_DECAYS = (0.1, 0.5, 0.9, 0.99, 0.999, 0.9999)

# Logarithms are flat below these mean squares, so that a dead tensor gives a finite feature: of gradients, whose scale
# nobody knows, and of dimensionless quantities and parameters.
_TINY, _SMALL = 1e-20, 1e-8
# Brings natural logarithms of magnitudes to the scale of the other features.
_LOG_SCALE = 0.25
_RATIO_BOUND = 8.0
_LOG_RATIO_FLOOR = 1e-10


@dataclass(frozen=True)
class Segments:
    """The tensors of a model laid end to end in one flat axis.

    Args:
        lengths: number of coordinates of each tensor, in order.

    Raises:
        ValueError: there is no tensor, or one is empty.
    """

    lengths: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "lengths", tuple(int(n) for n in self.lengths))
        if not self.lengths or min(self.lengths) < 1:
            raise ValueError(f"lengths of Segments must be positive, at least one, got {self.lengths}")

    @cached_property
    def total(self) -> int:
        """d, the length of the flat axis."""
        return sum(self.lengths)

    def mean(self, x: Tensor) -> Tensor:
        """Mean over each tensor, (..., d) → (..., S)."""
        return torch.stack([piece.mean(-1) for piece in x.split(self.lengths, -1)], -1)

    def expand(self, x: Tensor) -> Tensor:
        """Each tensor's value at all of its coordinates, (..., S) → (..., d)."""
        pieces = [x[..., i : i + 1].expand(*x.shape[:-1], n) for i, n in enumerate(self.lengths)]
        return torch.cat(pieces, -1)

    def scale(self, x: Tensor, factor: Tensor) -> Tensor:
        """x (..., d) times its tensor's factor (..., S)."""
        pieces = [piece * factor[..., i : i + 1] for i, piece in enumerate(x.split(self.lengths, -1))]
        return torch.cat(pieces, -1)


@dataclass(frozen=True)
class FeatureSet:
    """A named choice of features; weights are bound to the name, so a name's meaning never changes.

    The rows are: g, θ, r, the six running averages of g, each divided by its root mean square over the tensor; then
    ``more``; then ``momentum_context`` (those that change with r, and are computed anew in the second pass).
    """

    name: str
    more: tuple[str, ...] = ()
    momentum_context: tuple[str, ...] = ()
    #: d of the running averages v ← d·v + (1−d)·g², kept after the six averages of g.
    second_moment_decays: tuple[float, ...] = ()

    @property
    def size(self) -> int:
        """F, the number of features."""
        return 3 + len(AVERAGE_DECAYS) + len(self.more) + len(self.momentum_context)

    @property
    def num_averages(self) -> int:
        """Running averages that the rule keeps for each coordinate."""
        return len(AVERAGE_DECAYS) + len(self.second_moment_decays)

    @property
    def names(self) -> tuple[str, ...]:
        """A name for each feature, in order."""
        averages = (f"average_{decay:g}" for decay in AVERAGE_DECAYS)
        return ("gradient", "parameter", "momentum", *averages, *self.more, *self.momentum_context)


_COHERENCE_DECAYS = (0.9, 0.99, 0.999)
_TIME_SCALES = (10, 100, 1000)
_CONTEXT = (
    "log_kick", "log_parameter", *(f"coherence_{d:g}" for d in _COHERENCE_DECAYS), "log_size",
    *(f"time_{tau}" for tau in _TIME_SCALES),
)  # fmt: skip
_MOMENTUM_CONTEXT = ("log_momentum", "log_displacement")
_ADAPTIVE = ("gradient_to_rms", "average_0.9_to_rms", "average_0.99_to_rms", "log_rms_0.99", "log_rms_0.999")

FEATURE_SETS: dict[str, FeatureSet] = {
    each.name: each
    for each in (
        FeatureSet("paper"),
        FeatureSet("scaled", _CONTEXT, _MOMENTUM_CONTEXT),
        FeatureSet("adaptive", (*_ADAPTIVE, *_CONTEXT), _MOMENTUM_CONTEXT, (0.99, 0.999)),
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
) -> Tensor:
    """The features of every coordinate, (..., F, d).

    "paper": g, θ, r and six running averages of g, each x·rsqrt(1e-5 + mean x²) with the mean over the tensor (the
    paper says "l2 norm 1"; the published code does this). The magnitudes are lost. The richer sets give them back as
    logarithms, constant over a tensor (t = step + 1, ε = √(lr/N), ‖·‖ root mean square over the tensor):

    - "scaled": the nine, and ¼ of log‖ε·N·g‖ (the kick, in units of the momentum), of log‖θ‖, and of the coherence
      log(‖m_d‖/((1−dᵗ)·‖g‖)) at d = .9, .99, .999 (½·log((1−d)/(1+d)) means pure noise: the gradient-to-noise ratio);
      log₁₀(size)/3 − 1; t/(t+τ) at τ = 10, 100, 1000; ¼ of log‖r‖ and of log(ε‖r‖/‖θ‖).
    - "adaptive": also, with v̂ the bias-corrected average of g² at d = .99: g/√v̂, m_.9/√v̂ and m_.99/√v̂ (bias-corrected,
      held to ±8), and ¼·log(√v̂/‖√v̂‖) at d = .99 and .999, coordinate by coordinate.

    Args:
        parameter, momentum, gradient: (..., d), the gradient of the mean minibatch loss.
        averages: (..., K, d), already updated with ``gradient`` (`update_averages`).
        segments: the tensors in the flat axis.
        feature_set: a set, or its name.
        lr, num_data, step: learning rate, N, and updates done before this one; the paper's set uses none of them.

    Raises:
        ValueError: there is no feature set of that name.
    """
    named = feature_set_named(feature_set)
    fixed = rows_without_momentum(parameter, gradient, averages, segments, named, lr=lr, num_data=num_data, step=step)
    return assemble(fixed, rows_of_momentum(momentum, parameter, segments, named, lr=lr, num_data=num_data))


def update_averages(averages: Tensor, gradient: Tensor, feature_set: str | FeatureSet = "paper") -> Tensor:
    """m_d ← d·m_d + (1−d)·g, and v_d ← d·v_d + (1−d)·g² where the set keeps any; no bias correction.

    ``averages`` is (..., K, d) with the six m first, ``gradient`` (..., d).
    """
    named, k = feature_set_named(feature_set), len(AVERAGE_DECAYS)
    first = torch.lerp(averages[..., :k, :], gradient.unsqueeze(-2), _complement(AVERAGE_DECAYS, gradient))
    if not named.second_moment_decays:
        return first
    weight = _complement(named.second_moment_decays, gradient)
    return torch.cat([first, torch.lerp(averages[..., k:, :], gradient.square().unsqueeze(-2), weight)], -2)


# A constant that is made once a device: copying it to the device at every step would break the capture of CUDA graphs.
_constants: dict[Any, Tensor] = {}


def _complement(decays: tuple[float, ...], like: Tensor) -> Tensor:
    key = (decays, like.dtype, like.device)
    if key not in _constants:
        _constants[key] = torch.tensor([1 - d for d in decays], dtype=like.dtype, device=like.device).unsqueeze(-1)
    return _constants[key]


def rows_without_momentum(
    parameter: Tensor,
    gradient: Tensor,
    averages: Tensor,
    segments: Segments,
    named: FeatureSet,
    *,
    lr: Any,
    num_data: Any,
    step: Any,
) -> tuple[Tensor, Tensor]:
    """The rows that both passes share: (g, θ) before the momentum's row and everything else after it."""
    k = len(AVERAGE_DECAYS)
    raw = torch.cat([gradient.unsqueeze(-2), parameter.unsqueeze(-2), averages[..., :k, :]], -2)
    mean_squares = segments.mean(raw.square())
    rows = segments.scale(raw, torch.rsqrt(mean_squares + 1e-5))
    before, after = rows[..., :2, :], [rows[..., 2:, :]]
    if named.second_moment_decays:
        after.append(_adaptive_rows(gradient, averages, segments, step))
    if named.more:
        after.append(segments.expand(_context(mean_squares, segments, lr=lr, num_data=num_data, step=step)))
    return before, after[0] if len(after) == 1 else torch.cat(after, -2)


def rows_of_momentum(
    momentum: Tensor, parameter: Tensor, segments: Segments, named: FeatureSet, *, lr: Any, num_data: Any
) -> tuple[Tensor, Tensor | None]:
    """The rows that differ between the two passes: the normalised momentum, and what else depends on r."""
    mean_square = segments.mean(momentum.square())
    row = segments.scale(momentum, torch.rsqrt(mean_square + 1e-5)).unsqueeze(-2)
    if not named.momentum_context:
        return row, None
    weight = segments.mean(parameter.square())
    context = [
        0.5 * torch.log(mean_square + _SMALL),
        0.5 * torch.log((mean_square * (lr / num_data) + _SMALL**2) / (weight + _SMALL)),
    ]
    return row, segments.expand(_LOG_SCALE * torch.stack(context, -2))


def assemble(fixed: tuple[Tensor, Tensor], moving: tuple[Tensor, Tensor | None]) -> Tensor:
    """The rows of `rows_without_momentum` and `rows_of_momentum` in the order of `FeatureSet.names`."""
    (before, after), (row, context) = fixed, moving
    return torch.cat([before, row, after] if context is None else [before, row, after, context], -2)


def _adaptive_rows(gradient: Tensor, averages: Tensor, segments: Segments, step: Any) -> Tensor:
    t, k = step + 1, len(AVERAGE_DECAYS)
    square = averages[..., k, :]
    inverse = torch.rsqrt(square / (1 - 0.99**t) + _TINY)
    ratios = [gradient * inverse]
    ratios += [averages[..., AVERAGE_DECAYS.index(d), :] * inverse / (1 - d**t) for d in (0.9, 0.99)]
    # The bias correction drops out of a ratio of two averages at one d.
    squares = averages[..., k:, :]
    relative = segments.scale(squares, 1 / (segments.mean(squares) + _TINY))
    logs = 0.5 * _LOG_SCALE * torch.log(relative + _LOG_RATIO_FLOOR)
    return torch.cat([torch.stack(ratios, -2).clamp(-_RATIO_BOUND, _RATIO_BOUND), logs], -2)


def _context(mean_squares: Tensor, segments: Segments, *, lr: Any, num_data: Any, step: Any) -> Tensor:
    """`_CONTEXT` of every tensor, (..., E, S), from the mean squares (..., 2 + 6, S) of g, θ and the averages."""
    gradient, parameter, averages = mean_squares[..., 0, :], mean_squares[..., 1, :], mean_squares[..., 2:, :]
    t = step + 1
    logs = [torch.log(gradient * (lr * num_data) + _SMALL), torch.log(parameter + _SMALL)]
    for d in _COHERENCE_DECAYS:
        average = averages[..., AVERAGE_DECAYS.index(d), :] / (1 - d**t) ** 2
        logs.append(torch.log((average + _TINY) / (gradient + _TINY)))
    size = torch.log10(_lengths(segments, gradient)) / 3 - 1
    constants = [size, *(torch.zeros_like(size) + t / (t + tau) for tau in _TIME_SCALES)]
    rest = torch.stack(constants, -2).expand(*gradient.shape[:-1], -1, -1)
    return torch.cat([0.5 * _LOG_SCALE * torch.stack(logs, -2), rest], -2)


def _lengths(segments: Segments, like: Tensor) -> Tensor:
    key = (segments.lengths, like.dtype, like.device)
    if key not in _constants:
        _constants[key] = torch.tensor(segments.lengths, dtype=like.dtype, device=like.device)
    return _constants[key]
