"""What a network sees of each weight of a chain, and the network on it.

Everything lies in flat buffers with any leading axes, feature by feature, (..., F, d): a tensor's mean square is a
reduction along the last axis, a layer of the network one batched product W·X without a transpose.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base import matrices
from learned_samplers.base.segments import Segments, constant
from learned_samplers.learned.feature_sets import (
    AVERAGE_DECAYS,
    LOG_SCALE,
    TINY,
    FeatureSet,
    constants,
    feature_set_named,
    logarithms,
)
from learned_samplers.learned.native.kernel import CompiledChain, takes
from learned_samplers.learned.network import Phi, outputs_of, through

#: What is divided by its root mean square is multiplied by rsqrt(FLOOR + mean square).
FLOOR = 1e-5
_RATIO_BOUND = 8.0
_LOG_RATIO_FLOOR = 1e-10
# Coordinates, of all members together, whose features are made at a time.
_PIECE_ON_CPU, _PIECE_ON_GPU = 1 << 14, 1 << 22

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

    - "adaptive": also, with v̂ the bias-corrected average of g² at d = .99: g/√v̂, m_.9/√v̂ and m_.99/√v̂ (bias-corrected,
      held to ±8), and ¼·log(√v̂/‖√v̂‖) at d = .99 and .999, coordinate by coordinate. Constant over a tensor: ¼ of
      log‖ε·N·g‖ (the kick, in units of the momentum), of log‖θ‖, log‖r‖ and log(ε‖r‖/‖θ‖), and of the coherence
      log(‖m_d‖/((1−dᵗ)·‖g‖)) at d = .9, .99, .999 (½·log((1−d)/(1+d)) means pure noise: the gradient-to-noise ratio);
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
        run, like = dict(num_data=self.num_data, time=self.time), self.mean_squares
        logs = torch.log(torch.cat(logarithms(self.named, like, momentum, lr=self.lr, **run), -2))
        rows = [torch.log10(constant(self.segments.lengths, like)) / 3 - 1]
        rows += [torch.zeros_like(rows[0]) + x for x in constants(self.named, total_steps=self.total_steps, **run)]
        if self.named.matrix:
            rows.append(constant(tuple(float(min(sides) > 1) for sides in self.segments.matrices), like))
        rest = torch.stack(rows).expand(*like.shape[:-2], -1, -1)
        return torch.cat([0.5 * LOG_SCALE * logs, rest], -2)


# ------------------------------------------------------------------------------------------- the network on a chain


class NetworkOnChain:
    """The network at one state of the chain; called with the momentum, once a pass.

    The second pass computes the first layer anew, though only the momentum has changed: to keep it takes 32·d floats.

    Args:
        phi: its layers.
        chain: what it sees, and what computes: torch, or compiled code.
        output_bound: B, or None.
        normalised: None, or what the second output is multiplied by after it was divided by its root mean square over
            the tensor.
    """

    def __init__(self, phi: Phi, chain: Scales | CompiledChain, output_bound: float | None, normalised: Any = None):
        self.phi, self.chain, self.output_bound, self.normalised = phi, chain, output_bound, normalised

    def __call__(self, momentum: Tensor, heads: tuple[int, ...] = (0, 1)) -> tuple[Tensor, ...]:
        """The outputs ``heads`` at every coordinate, (..., d) each: of (α, β), or of a gate's (α, β·exp γ)."""
        if isinstance(self.chain, CompiledChain):
            outputs = self.chain.outputs(*self._layers(heads), momentum, self.output_bound)
        else:
            outputs = self._of(self.chain.with_momentum(momentum), heads)
        if self.normalised is None or 1 not in heads:
            return outputs
        segments = self.chain.segments
        factor = torch.rsqrt(segments.mean_square(outputs[-1]) + FLOOR) * self.normalised
        self._factor = segments.expand(factor) if momentum.shape[-1] else factor
        return (*outputs[:-1], outputs[-1] * self._factor)

    def held(self, parameter: Tensor, momentum: Tensor) -> tuple[Tensor, ...]:
        """The outputs at another θ and r, with the scales of the tensors as they were in the last call of torch's."""
        assert isinstance(self.chain, Scales)
        outputs = self._of(self.chain.held(parameter, momentum), (0, 1))
        return outputs if self.normalised is None else (outputs[0], outputs[1] * self._factor)

    def _layers(self, heads: tuple[int, ...]) -> tuple[Phi, bool]:
        """The layers with the last one's rows for these heads, and whether the last of them is a gate."""
        *hidden, (weight, bias) = self.phi
        gated = weight.shape[-2] == 3 and 1 in heads
        rows = slice(heads[0], 3 if gated else heads[-1] + 1)
        return [*hidden, (weight[..., rows, :], bias[..., rows])], gated

    def _of(self, scales: Scales, heads: tuple[int, ...]) -> tuple[Tensor, ...]:
        layers, gated = self._layers(heads)
        total, members = scales.parameter.shape[-1], max(scales.parameter[..., :1].numel(), 1)
        size = max((_PIECE_ON_CPU if scales.parameter.is_cpu else _PIECE_ON_GPU) // members, 128)
        # (A process may hold nothing of a tensor that is sharded, and takes part in its statistics.)
        starts = range(0, max(total, 1), size)
        pieces = [through(layers, scales.window(start, min(start + size, total))) for start in starts]
        y = pieces[0] if len(pieces) == 1 else torch.cat(pieces, -1)
        return outputs_of(y, self.output_bound, gated=gated)


def network_at(
    phi: Phi,
    parameter: Tensor,
    gradient: Tensor,
    averages: Kept,
    segments: Segments,
    *,
    settings: Any,
    lr: Any,
    num_data: Any,
    step: Any,
    prior_precision: Any = None,
    covariances: Kept | None = None,
    normalised: Any = None,
    in_place: bool = False,
) -> tuple[NetworkOnChain, tuple[Any, ...]]:
    """The network at a state of the chain, and its averages (and covariances) updated with the gradient.

    Here it is decided whether compiled code computes: where it takes the tensors, and may write in place.

    Args:
        averages: (..., K, d), or in place (K, *shape) for each tensor.
        covariances: (..., w) or likewise, where the feature set has a matrix direction.
        settings: say what the network sees and how its outputs are bounded.
        normalised: that of `NetworkOnChain`.
        in_place: write into averages and covariances.
    """
    named = feature_set_named(settings.feature_set)
    kept = [averages] if isinstance(averages, Tensor) else averages
    run = dict(lr=lr, num_data=num_data, step=step, total_steps=settings.total_steps)
    rounded = named.matrix and kept[0].dtype != gradient.dtype
    ahead = _unrounded(averages, gradient, segments) if rounded else None
    compiled, flat = None, averages
    if in_place and takes(phi, [parameter, gradient, *kept], segments):
        compiled = CompiledChain(parameter, gradient, averages, segments, named, **run)
    elif isinstance(averages, Tensor):
        flat = averages = update_averages(averages, gradient, named, in_place=in_place, step=step, segments=segments)
    else:
        rows = [x.reshape(len(x), -1) for x in averages]
        flat = rows[0] if len(rows) == 1 else torch.cat(rows, -1)  # of a huge tensor no copy
        fresh = not torch.compiler.is_compiling()  # which does not follow a change in place
        flat = update_averages(flat, gradient, named, in_place=fresh, step=step, segments=segments)
        if torch.compiler.is_compiling() or flat.data_ptr() != averages[0].data_ptr():
            for x, piece in zip(averages, flat.split([x[0].numel() for x in averages], -1), strict=True):
                x.copy_(piece.reshape(x.shape))
    matrix_rows: list[Tensor] | None = None
    if named.matrix:
        slopes = segments.as_matrices(gradient)
        covariances, states = _update_covariances(covariances, gradient, slopes, segments, step, in_place)
        pairs = zip(ahead or _rows(averages, segments), slopes, strict=True)
        decay = prior_precision / num_data if settings.attenuated else 0.0
        ahead = [torch.lerp(m, g, 1 - _MATRIX_DECAY) for m, g in pairs]
        matrix_rows = matrices.directions(ahead, states, segments.as_matrices(parameter), decay)
    chain: Scales | CompiledChain
    if compiled is None:
        direction = None if matrix_rows is None else torch.cat([row.flatten(-2) for row in matrix_rows], -1)
        chain = Scales(parameter, gradient, flat, segments, named, direction=direction, **run)
    else:
        chain, compiled.direction = compiled, matrix_rows and [row.contiguous() for row in matrix_rows]
    network = NetworkOnChain(phi, chain, settings.output_bound, normalised)
    return network, (averages,) if covariances is None else (averages, covariances)


# d of the average that the matrix direction is made of, d·m + (1−d)·g, which looks a step ahead; and its row.
_MATRIX_DECAY = 0.9
_MATRIX_AVERAGE = AVERAGE_DECAYS.index(_MATRIX_DECAY)


def _rows(averages: Kept, segments: Segments) -> list[Tensor]:
    """Those rows of every tensor, as matrices."""
    if isinstance(averages, Tensor):
        return segments.as_matrices(averages[..., _MATRIX_AVERAGE, :])
    return [x[_MATRIX_AVERAGE].reshape(sides) for x, sides in zip(averages, segments.matrices, strict=True)]


def _unrounded(averages: Kept, gradient: Tensor, segments: Segments) -> list[Tensor]:
    """Of averages in bfloat16, not yet updated: those rows after this gradient, before they are rounded."""
    rows, slopes = _rows(averages, segments), segments.as_matrices(gradient)
    return [torch.lerp(m.to(g.dtype), g, 1 - _MATRIX_DECAY) for m, g in zip(rows, slopes, strict=True)]


def _update_covariances(
    covariances: Kept | None, gradient: Tensor, slopes: list[Tensor], segments: Segments, step: Any, in_place: bool
) -> tuple[Kept, Sequence[Tensor]]:
    """The covariances as they were given, updated, and those of every tensor."""
    if covariances is None or isinstance(covariances, Tensor):
        flat = matrices.update_whitening(covariances, gradient, segments, step, in_place=in_place)
        return flat, matrices.flat_states(flat, segments)
    matrices.update_whitening_(covariances, slopes, step)
    return covariances, covariances
