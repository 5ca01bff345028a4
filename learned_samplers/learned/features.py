"""The features of every weight of a chain, and a network's outputs on them: in torch, or by compiled code.

`feature_sets` says what each feature is. Everything lies in flat buffers with any leading axes, feature by feature,
(..., F, d): a tensor's mean square is a reduction along the last axis, a layer of the network one batched product W·X
without a transpose. `network_at` chooses between torch and compiled code; both read `context_of`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from learned_samplers.base import matrices
from learned_samplers.base.segments import Segments, constant
from learned_samplers.learned.averages import Kept, update_averages, update_each_
from learned_samplers.learned.feature_sets import (
    AVERAGE_DECAYS,
    COHERENCE_DECAYS,
    FEATURE_SETS,
    RATIO_DECAYS,
    FeatureSet,
)
from learned_samplers.learned.native import kernel
from learned_samplers.learned.network import Phi, outputs_of, through

#: What is divided by its root mean square is multiplied by rsqrt(FLOOR + mean square).
FLOOR = 1e-5
_RATIO_BOUND = 8.0
_LOG_RATIO_FLOOR = 1e-10
# Logarithms are flat below these mean squares, so that a dead tensor gives a finite feature: of gradients, whose scale
# is unknown, and of dimensionless quantities and parameters.
TINY, SMALL = 1e-16, 1e-8
#: Brings natural logarithms of magnitudes to the scale of the other features.
LOG_SCALE = 0.25


class Run(NamedTuple):
    """Step of a chain, as the context needs it: ``time`` is the number of updates, with this one."""

    lr: Any
    num_data: Any
    time: Any
    total_steps: int | None = None


class Features:
    """Features of a chain in torch: statistics of whole tensors, from which windows of coordinates are computed.

    Args:
        parameter, gradient: (..., d).
        averages: (..., K, d), already updated.
        segments, feature_set, run: the tensors, what is seen of them, and the step.
    """

    #: The matrix direction of a set that has one, (..., d).
    direction: Tensor | None = None

    def __init__(
        self, parameter: Tensor, gradient: Tensor, averages: Any, segments: Segments, feature_set: FeatureSet, run: Run
    ):
        self.parameter, self.gradient, self.averages = parameter, gradient, averages
        self.segments, self.feature_set, self.run = segments, feature_set, run
        k = len(AVERAGE_DECAYS)
        squares = [segments.mean_square(x).unsqueeze(-2) for x in (gradient, parameter)]
        self.mean_squares = torch.cat([*squares, segments.mean_square(averages[..., :k, :], gradient.dtype)], -2)
        if feature_set.adaptive:  # what second moments are multiplied by before their logarithm
            self.log_factors = 1 / (segments.mean(averages[..., k:, :], gradient.dtype) + TINY)

    def with_momentum(self, momentum: Tensor) -> Features:
        """Set the momentum, which each of the two passes of a step has anew."""
        self.momentum = momentum
        square = self.segments.mean_square(momentum).unsqueeze(-2)
        gradient_parameter, averages = self.mean_squares[..., :2, :], self.mean_squares[..., 2:, :]
        self.factors = torch.rsqrt(torch.cat([gradient_parameter, square, averages], -2) + FLOOR)
        if self.feature_set.context:
            self.context = self._context(square)
        return self

    def held(self, parameter: Tensor, momentum: Tensor) -> Features:
        """Features of another θ and r with these statistics held fixed, for derivatives by coordinate."""
        moved = copy.copy(self)
        moved.parameter, moved.momentum = parameter, momentum
        return moved

    def outputs(self, layers: Phi, gated: bool, momentum: Tensor) -> tuple[Tensor, ...]:
        """Outputs of the network in ``layers``, (..., d) each."""
        return self.with_momentum(momentum).in_pieces(layers, gated)

    def in_pieces(self, layers: Phi, gated: bool) -> tuple[Tensor, ...]:
        """Outputs at the present momentum; the features of some coordinates are made at a time."""
        total, members = self.parameter.shape[-1], max(self.parameter[..., :1].numel(), 1)
        size = max((_PIECE_ON_CPU if self.parameter.is_cpu else _PIECE_ON_GPU) // members, 128)
        # (A process may hold nothing of a tensor that is sharded, and takes part in its statistics.)
        starts = range(0, max(total, 1), size)
        pieces = [through(layers, self.window(start, min(start + size, total))) for start in starts]
        return outputs_of(pieces[0] if len(pieces) == 1 else torch.cat(pieces, -1), gated=gated)

    def window(self, start: int, stop: int) -> Tensor:
        """Features of the coordinates from ``start`` to ``stop``, (..., F, stop − start)."""
        part, k = slice(start, stop), len(AVERAGE_DECAYS)
        three = [x[..., part].unsqueeze(-2) for x in (self.gradient, self.parameter, self.momentum)]
        averages = self.averages[..., part].to(self.gradient.dtype)
        rows = [torch.cat([*three, averages[..., :k, :]], -2) * self._spread(self.factors, start, stop)]
        if self.direction is not None:
            rows.append(self.direction[..., part].unsqueeze(-2))
        if self.feature_set.adaptive:
            rows += self._adaptive(averages, start, stop)
        if self.feature_set.context:
            context = self._spread(self.context, start, stop)
            rows.append(context.expand(*context.shape[:-1], stop - start))
        return torch.cat(rows, -2) if len(rows) > 1 else rows[0]

    def _spread(self, x: Tensor, start: int, stop: int) -> Tensor:
        return self.segments.expand(x, start, stop) if stop > start else x[..., :1]

    def _adaptive(self, averages: Tensor, start: int, stop: int) -> list[Tensor]:
        """Rows of an adaptive set that are made coordinate by coordinate."""
        t, seconds = self.run.time, averages[..., len(AVERAGE_DECAYS) :, :]
        inverse = torch.rsqrt(seconds[..., 0, :] / (1 - self.feature_set.second_moment_decays[0] ** t) + TINY)
        ratios = [self.gradient[..., start:stop] * inverse]
        for d in RATIO_DECAYS:
            ratios.append(averages[..., AVERAGE_DECAYS.index(d), :] * (inverse / (1 - d**t)))
        # The bias correction drops out of a ratio of two averages at one d.
        relative = seconds * self._spread(self.log_factors, start, stop)
        logs = 0.5 * LOG_SCALE * torch.log(relative + _LOG_RATIO_FLOOR)
        return [torch.stack(ratios, -2).clamp(-_RATIO_BOUND, _RATIO_BOUND), logs]

    def _context(self, momentum: Tensor) -> Tensor:
        """Rows of the context of every tensor, (..., E, S); ``momentum`` is its mean square (..., 1, S)."""
        like = self.mean_squares
        squares, constants = context_of(self.feature_set, like, momentum, self.run)
        logs = torch.log(torch.cat(squares, -2))
        rows = [torch.log10(constant(self.segments.lengths, like)) / 3 - 1]
        rows += [torch.zeros_like(rows[0]) + value for value in constants]
        if self.feature_set.matrix:
            rows.append(constant(tuple(float(min(sides) > 1) for sides in self.segments.matrices), like))
        same_for_members = torch.stack(rows).expand(*like.shape[:-2], -1, -1)
        return torch.cat([0.5 * LOG_SCALE * logs, same_for_members], -2)


# Coordinates, of all members together, whose features are made at a time.
_PIECE_ON_CPU, _PIECE_ON_GPU = 1 << 14, 1 << 22


@dataclass
class CompiledFeatures:
    """Features of a chain by compiled code, to rounding those of `Features`.

    Args:
        averages, mean_squares: as `kernel.means` gives them for ``gradient`` and ``parameter``, (..., d) contiguous.
        run: in plain numbers.
        direction: the matrix direction of every tensor, (..., rows, columns), of a set that has one.
    """

    parameter: Tensor
    gradient: Tensor
    averages: list[np.ndarray]
    mean_squares: np.ndarray
    segments: Segments
    feature_set: FeatureSet
    run: Run
    direction: Sequence[Tensor] = ()

    @np.errstate(all="ignore")  # what overflows is noticed at the end of the step
    def outputs(self, layers: Phi, gated: bool, momentum: Tensor) -> tuple[Tensor, ...]:
        """Outputs of the network in ``layers``, (..., d) each."""
        feature_set, call, momentum = self.feature_set, kernel.Call(), momentum.contiguous()
        k, known = len(AVERAGE_DECAYS), self.mean_squares
        _, square = kernel.means((momentum,), self.segments)
        scaled = np.concatenate([known[..., :2, :], square, known[..., 2 : 2 + k, :]], -2)
        factors, context, logs = 1 / np.sqrt(scaled + FLOOR), None, None
        if feature_set.adaptive:
            call.ratios, call.logs = 1 + len(RATIO_DECAYS), len(feature_set.second_moment_decays)
            call.ratio_row[: call.ratios] = [0, *[3 + AVERAGE_DECAYS.index(d) for d in RATIO_DECAYS]]
            call.ratio_factor[: call.ratios] = [1.0, *[1 / (1 - d**self.run.time) for d in RATIO_DECAYS]]
            call.second_factor = 1 / (1 - feature_set.second_moment_decays[0] ** self.run.time)
            logs = 1 / (known[..., 2 + k :, :] + TINY)
            squares, constants = context_of(feature_set, known, square, self.run)
            magnitudes, made = len(squares), 1 + len(squares)
            context = np.empty((*square.shape[:-2], len(feature_set.context), square.shape[-1]))
            context[..., :magnitudes, :] = 0.5 * LOG_SCALE * np.log(np.concatenate(squares, -2))
            context[..., magnitudes, :] = np.log10(np.array(self.segments.lengths)) / 3 - 1
            context[..., made : made + len(constants), :] = np.array(constants)[:, None]
            if feature_set.matrix:
                context[..., -1, :] = [1 not in sides for sides in self.segments.sides or ()]
        rows = [self.gradient, self.parameter, momentum, *self.averages[:k]]
        rows += [self.direction] if self.direction else []
        inputs: dict[str, Any] = dict(seconds=self.averages[k:], factors=factors, context=context, logs=logs)
        return kernel.network(call, layers, rows, self.segments, gated=gated, **inputs).unbind()


# ------------------------------------------------------------------------------------------- the context


def context_of(feature_set: FeatureSet, squares: Any, momentum: Any, run: Run) -> tuple[list[Any], list[Any]]:
    """Return the parts of the context, for tensors or for arrays.

    Args:
        feature_set: one with a context.
        squares: means over each tensor of the squares of g, θ and the averages of g, (..., 2 + K or more, S).
        momentum: mean of the squares of r, (..., 1, S).
        run: the step.

    Returns:
        Squares whose logarithm, times ½·`LOG_SCALE`, is in the context, (..., 1, S) each; and the features that are the
        same for all tensors, which stand between a tensor's size and its shape.
    """
    (lr, num_data, time, total_steps), gradient, parameter = run, squares[..., :1, :], squares[..., 1:2, :]
    logarithms = [
        gradient * (lr * num_data) + SMALL,
        parameter + SMALL,
        momentum + SMALL,
        (momentum * (lr / num_data) + SMALL**2) / (parameter + SMALL),
    ]
    for d in COHERENCE_DECAYS:
        i = 2 + AVERAGE_DECAYS.index(d)
        logarithms.append((squares[..., i : i + 1, :] / (1 - d**time) ** 2 + TINY) / (gradient + TINY))
    log_data = num_data.log10() if isinstance(num_data, Tensor) else math.log10(num_data)
    # The last is 0 at a thousand training points, 1 at a million.
    constants = [*[time / (time + tau) for tau in feature_set.times], log_data / 3 - 1]
    if feature_set.matrix:  # the share of the run that is over before this step, and whether it has an end
        share = 0.0 if total_steps is None else min((time - 1) / total_steps, 1.0)
        constants += [share, float(total_steps is not None)]
    return logarithms, constants


# ------------------------------------------------------------------------------------------- the network on a chain


@dataclass
class NetworkOnChain:
    """Network at one state of a chain; called with the momentum, once a pass.

    The second pass computes the first layer anew, though only the momentum has changed: to keep it takes 32·d floats.

    Args:
        phi: the network's layers.
        chain: the features, in torch or by compiled code.
        normalised: whether the second output is divided by its root mean square over the tensor.
    """

    phi: Phi
    chain: Features | CompiledFeatures
    normalised: bool = False

    def __call__(self, momentum: Tensor, heads: tuple[int, ...] = (0, 1)) -> tuple[Tensor, ...]:
        """The outputs ``heads`` at every coordinate, (..., d) each: of (α, β), or of a gate's (α, β·exp γ)."""
        *hidden, (weight, bias) = self.phi
        gated = weight.shape[-2] == 3 and 1 in heads
        rows = slice(heads[0], 3 if gated else heads[-1] + 1)
        outputs = self.chain.outputs([*hidden, (weight[..., rows, :], bias[..., rows])], gated, momentum)
        if not self.normalised or 1 not in heads:
            return outputs
        factor = torch.rsqrt(self.chain.segments.mean_square(outputs[-1]) + FLOOR)
        self._factor = self.chain.segments.expand(factor) if momentum.shape[-1] else factor
        return (*outputs[:-1], outputs[-1] * self._factor)

    def held(self, parameter: Tensor, momentum: Tensor) -> tuple[Tensor, ...]:
        """Both outputs at another θ and r, with the scales of the tensors as they were in the last call (in torch)."""
        assert isinstance(self.chain, Features)
        gated = self.phi[-1][0].shape[-2] == 3
        alpha, beta = self.chain.held(parameter, momentum).in_pieces(self.phi, gated)
        return alpha, beta * self._factor if self.normalised else beta


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
    in_place: bool = False,
) -> tuple[NetworkOnChain, tuple[Any, ...]]:
    """Return the network at a state of the chain, and its averages (and covariances) updated with the gradient.

    Args:
        averages: (..., K, d), or in place (K, *shape) for each tensor.
        covariances: (..., w), or in place each tensor's, where the feature set has a matrix direction.
        settings: what the network sees, and whether its second output is normalised.
        in_place: write into averages and covariances; only then compiled code may compute.

    Raises:
        ValueError: a feature set with a matrix direction and no covariances, or a gradient that is differentiated,
            which the root of a covariance does not allow.
    """
    feature_set = FEATURE_SETS[settings.feature_set]
    tensors = [averages] if isinstance(averages, Tensor) else averages
    run = Run(lr, num_data, step + 1, settings.total_steps)
    slopes = matrices.as_matrices(gradient, segments) if feature_set.matrix else []
    momenta: list[Tensor] = []
    if feature_set.matrix and tensors[0].dtype != gradient.dtype:  # from averages before they are rounded
        pairs = zip(_momenta(averages, segments), slopes, strict=True)
        momenta = [torch.lerp(m.to(g.dtype), g, 1 - _MATRIX_DECAY) for m, g in pairs]
    chain: Features | CompiledFeatures
    if in_place and kernel.takes(phi, [parameter, gradient, *tensors], segments):
        decays = AVERAGE_DECAYS, feature_set.second_moment_decays
        rows, means = kernel.means((gradient, parameter), segments, averages, decays)
        if feature_set.context:  # without one lr and num_data may be tensors with a row for each member
            run = run._replace(lr=float(lr), num_data=float(num_data))
        chain = CompiledFeatures(parameter, gradient, rows, means, segments, feature_set, run)
    else:
        when: dict[str, Any] = dict(step=step, segments=segments)
        if isinstance(averages, Tensor):
            flat = averages = update_averages(averages, gradient, feature_set, in_place=in_place, **when)
        else:
            flat = update_each_(averages, gradient, feature_set, **when)
        chain = Features(parameter, gradient, flat, segments, feature_set, run)
    network = NetworkOnChain(phi, chain, settings.normalise_output)
    if not feature_set.matrix:
        return network, (averages,)
    if covariances is None:
        raise ValueError("covariances must be given for a feature set with a matrix direction, got None")
    if isinstance(covariances, Tensor):
        covariances = _writable(covariances, gradient, in_place)
        states: Sequence[Tensor] = matrices.flat_states(covariances, segments)
    else:
        states = covariances
    matrices.update_covariances_(states, slopes)
    ahead = torch._foreach_lerp(momenta or _momenta(averages, segments), slopes, 1 - _MATRIX_DECAY)
    decay = prior_precision / num_data if settings.attenuated else 0.0
    directions = matrices.directions(list(ahead), states, matrices.as_matrices(parameter, segments), decay)
    if isinstance(covariances, Tensor):  # an optimizer's tensors have their turns among those of all groups
        matrices.renew_roots_(states, step)
    if isinstance(chain, Features):
        chain.direction = torch.cat([direction.flatten(-2) for direction in directions], -1)
    else:
        chain.direction = [*map(Tensor.contiguous, directions)]
    return network, (averages, covariances)


# d of the average that the matrix direction is made of, d·m + (1−d)·g, which looks a step ahead; and its row.
_MATRIX_DECAY = 0.9
_MATRIX_AVERAGE = AVERAGE_DECAYS.index(_MATRIX_DECAY)


def _momenta(averages: Kept, segments: Segments) -> list[Tensor]:
    """The momentum of every tensor as a matrix."""
    if isinstance(averages, Tensor):
        return matrices.as_matrices(averages[..., _MATRIX_AVERAGE, :], segments)

    def views(averages: Sequence[Tensor]) -> list[Tensor]:
        sides = segments.sides or segments.matrices
        return [x[_MATRIX_AVERAGE].reshape(shape) for x, shape in zip(averages, sides, strict=True)]

    return matrices.once(segments, "momenta", averages, views)


def _writable(covariances: Tensor, gradient: Tensor, in_place: bool) -> Tensor:
    """Covariances that may be written into; ValueError where the gradient is differentiated."""
    if torch.is_grad_enabled() and (covariances.requires_grad or gradient.requires_grad):
        raise ValueError(
            "the root of a covariance is not differentiated through: take weights of a feature set that does not "
            "whiten, such as network='l2e' of L2E"
        )
    return covariances if in_place else covariances.clone()
