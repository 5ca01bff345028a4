"""What L2E's network sees of each coordinate, computed over flat buffers with any leading batch axes.

Feature-major layout, (..., F, d): a tensor's mean square is a reduction along the last axis, and a layer of the network
is one batched product W·X without a transpose.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base.operations import scalar_log10
from learned_samplers.base.segments import Segments, constant
from learned_samplers.learned.feature_sets import FeatureSet, feature_set_named
from learned_samplers.learned.narrow import narrow_update_
from learned_samplers.learned.whole_matrices import prior_decay, whole_direction

#: What is divided by its root mean square is multiplied by rsqrt(FLOOR + mean square).
FLOOR = 1e-5
# Logarithms are flat below these mean squares, so that a dead tensor gives a finite feature: of gradients, whose scale
# is unknown, and of dimensionless quantities and parameters.
_TINY, _SMALL = 1e-16, 1e-8
# Brings natural logarithms of magnitudes to the scale of the other features.
_LOG_SCALE = 0.25
_RATIO_BOUND = 8.0
_LOG_RATIO_FLOOR = 1e-10


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
    prior_precision: Any = None,
    whitening: Tensor | None = None,
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
    - "adaptive_data": also log₁₀(N)/3 − 1, the same everywhere: how much there is to memorise.
    - "adaptive_run": also t/(t+τ) at τ = 10,000, and after the rest (t − 1)/``total_steps`` held to 1 ("progress", the
      share of the run that is over) and 1 ("has_total"), or 0 and 0 where the length of the run is not known.
    - "matrix": "adaptive_run" and, as the last adaptive row, the orthogonal factor of the momentum of each whole matrix
      (`learned_samplers.base.matrices`), with "is_matrix" as the last of the context: 0 for biases and the like.
    - "whitened": the same with `learned_samplers.base.whitening` in the place of the orthogonal factor.
    - "orthogonal_whitened": with the orthogonal factor of that.
    - "damped_orthogonal_whitened": with that factor times ‖m‖/√(‖m‖² + ‖λθ/N‖²), m the average that it is made of: it
      becomes short where the gradients are small beside the prior's pull.
    - "lean": what four running averages can give, m at d = .9, .99 and .999 and v at .99: the three m and g over √v̂,
      the logarithm at .99, and the context of "adaptive_run".

    Args:
        parameter, momentum, gradient: (..., d), θ less the prior's mean, the gradient of the mean minibatch loss.
        averages: (..., K, d), already updated with ``gradient`` (`update_averages`).
        segments: the tensors in the flat axis; for "matrix" and the sets that whiten with their shapes.
        feature_set: a set, or its name.
        lr, num_data, step: learning rate, N, and updates done before this one; the paper's set uses none of them.
        total_steps: length of the run, or None where it is not known.
        prior_precision: λ, of a set that is damped.
        whitening: (..., w), the covariances, already updated with ``gradient`` (`update_whitening`), of sets that
            whiten.

    Raises:
        ValueError: there is no feature set of that name, or it needs shapes that ``segments`` do not have, or λ.
    """
    named = feature_set_named(feature_set)
    run = dict(lr=lr, num_data=num_data, step=step, total_steps=total_steps, prior_precision=prior_precision)
    scale = TensorScales(parameter, gradient, averages, segments, named, **run, whitening=whitening)
    return scale.with_momentum(momentum).window(0, segments.total)


def data_feature(num_data: Any) -> Any:
    """The feature "log_data", log₁₀(N)/3 − 1: 0 at a thousand, 1 at a million training points."""
    return scalar_log10(num_data) / 3 - 1


def progress_feature(time: Any, total_steps: int | None) -> Any:
    """The feature "progress", the share of the run that is over before its ``time``-th step; 0 where it has no end."""
    if total_steps is None:
        return 0.0
    share = (time - 1) / total_steps
    return share.clamp(max=1.0) if isinstance(share, Tensor) else min(share, 1.0)


def begin_late_(averages: Tensor, mean_square: Tensor, feature_set: str | FeatureSet, step: int) -> None:
    """Let the second moments of a tensor that joins after ``step`` updates begin as if all had had this gradient.

    v_d ← (1 − dᵗ)·mean(g²): the correction by 1/(1 − dᵗ) is the chain's, and from zeros the tensor would be taken for
    one of tiny gradients, and move too far (or get too small a mass). Means of gradients may begin at zero.

    Args:
        averages: of the tensor, (K, *shape), all zero.
        mean_square: of its first gradient, one number.
    """
    named = feature_set_named(feature_set)
    for row, decay in zip(averages[len(named.average_decays) :], named.second_moment_decays, strict=True):
        row.add_(mean_square, alpha=1 - decay**step)


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
    Averages in bfloat16 stay so, and are rounded as `learned_samplers.learned.narrow` says, by step and tensor.

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
        for i, (row, decay) in enumerate(zip(averages.unbind(-2), decays, strict=True)):
            narrow_update_(
                row,
                gradient,
                1 - decay,
                square=i >= k,
                number=i,
                step=step,
                segments=segments or Segments((gradient.shape[-1],)),
            )
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


class TensorScales:
    """Statistics of whole tensors that the features of their coordinates need; computes the features window by window.

    A window of a few hundred coordinates stays in the processor's cache, from the raw values to the network's output.
    ``exact`` is the average that the row of whole matrices is made of, where ``averages`` have it rounded.
    """

    def __init__(
        self,
        parameter: Tensor,
        gradient: Tensor,
        averages: Tensor,
        segments: Segments,
        named: FeatureSet,
        *,
        lr: Any,
        num_data: Any,
        step: Any,
        total_steps: int | None = None,
        prior_precision: Any = None,
        whitening: Tensor | None = None,
        exact: Tensor | None = None,
    ):
        self.parameter, self.gradient, self.averages = parameter, gradient, averages
        self.segments, self.named = segments, named
        # In double precision, for 1 − dᵗ is a small difference; as a scalar it leaves the features' dtype alone.
        self.time = (step.double() if isinstance(step, Tensor) else step) + 1
        self.lr, self.num_data, self.total_steps = lr, num_data, total_steps
        self.matrices = () if named.whole is None else segments.matrices
        k = len(named.average_decays)
        squares = [segments.mean_square(x).unsqueeze(-2) for x in (gradient, parameter)]
        self.mean_squares = torch.cat([*squares, segments.mean_square(averages[..., :k, :], gradient.dtype)], -2)
        #: The rows `FeatureSet.adaptive`, (..., A, d), made when they are first needed.
        self.adaptive: Tensor | None = None
        #: The row that is made of whole matrices, (..., d).
        self.whole: Tensor | None = None
        if named.whole is not None:
            average = averages[..., named.whole_average, :] if exact is None else exact
            decay = prior_decay(named, prior_precision, num_data)
            self.whole = whole_direction(named, average, gradient, segments, whitening, parameter, decay)
        if named.second_moment_decays:
            self.mean_seconds = segments.mean(averages[..., k:, :], gradient.dtype)

    def with_momentum(self, momentum: Tensor) -> TensorScales:
        """A copy with another momentum (each of the two passes has its own)."""
        self.momentum = momentum
        square = self.segments.mean_square(momentum).unsqueeze(-2)
        gradient_parameter, averages = self.mean_squares[..., :2, :], self.mean_squares[..., 2:, :]
        self.factors = torch.rsqrt(torch.cat([gradient_parameter, square, averages], -2) + FLOOR)
        if self.named.context:
            self.context = self._context(square)
        return self

    def held(self, parameter: Tensor, momentum: Tensor) -> TensorScales:
        """The features of another θ and r with these statistics held fixed, for derivatives by coordinate."""
        other = copy.copy(self)
        other.parameter, other.momentum = parameter, momentum
        return other

    def part(self, part: slice) -> TensorScales:
        """The same for a range of coordinates, where there is only one tensor."""
        other = self.held(self.parameter[..., part], self.momentum[..., part])
        other.gradient, other.averages, other.adaptive = self.gradient[..., part], self.averages[..., part], None
        other.whole = None if self.whole is None else self.whole[..., part]
        other.segments = Segments((other.gradient.shape[-1],))
        return other

    def window(self, start: int, stop: int) -> Tensor:
        """The features of the coordinates from ``start`` to ``stop``, (..., F, stop − start)."""
        part, k = slice(start, stop), len(self.named.average_decays)
        three = [x[..., part].unsqueeze(-2) for x in (self.gradient, self.parameter, self.momentum)]
        averages = self.averages[..., :k, part].to(self.gradient.dtype)
        rows = torch.cat([*three, averages], -2) * self.segments.expand(self.factors, start, stop)
        more = []
        if self.named.adaptive:
            if self.adaptive is None:
                self.adaptive = self._adaptive_rows()
            more.append(self.adaptive[..., part])
        if self.named.context:
            context = self.segments.expand(self.context, start, stop)
            more.append(context.expand(*context.shape[:-1], stop - start))
        return torch.cat([rows, *more], -2) if more else rows

    def _adaptive_rows(self) -> Tensor:
        """The rows `FeatureSet.adaptive`, (..., A, d), made once: small operations cost more than memory."""
        decays, t = self.named.average_decays, self.time
        k = len(decays)
        averages = self.averages.to(self.gradient.dtype)
        seconds = averages[..., k:, :]
        inverse = torch.rsqrt(seconds[..., 0, :] / (1 - self.named.second_moment_decays[0] ** t) + _TINY)
        ratios = [self.gradient * inverse]
        for d in self.named.ratio_decays:
            ratios.append(averages[..., decays.index(d), :] * (inverse / (1 - d**t)))
        # The bias correction drops out of a ratio of two averages at one d.
        relative = seconds * self.segments.expand(1 / (self.mean_seconds + _TINY))
        logs = 0.5 * _LOG_SCALE * torch.log(relative + _LOG_RATIO_FLOOR)
        rows = [torch.stack(ratios, -2).clamp(-_RATIO_BOUND, _RATIO_BOUND), logs]
        if self.whole is not None:
            rows.append(self.whole.unsqueeze(-2))
        return torch.cat(rows, -2)

    def _context(self, momentum: Tensor) -> Tensor:
        """The rows of the context of every tensor, (..., E, S); ``momentum`` is its mean square (..., 1, S)."""
        gradient, parameter = self.mean_squares[..., :1, :], self.mean_squares[..., 1:2, :]
        lr, num_data, t = self.lr, self.num_data, self.time
        logs: list[Tensor] = []
        constants: list[Any] = []
        for name in self.named.context:
            kind, _, number = name.rpartition("_")
            if name == "log_kick":
                logs.append(gradient * (lr * num_data) + _SMALL)
            elif name == "log_parameter":
                logs.append(parameter + _SMALL)
            elif name == "log_momentum":
                logs.append(momentum + _SMALL)
            elif name == "log_displacement":
                logs.append((momentum * (lr / num_data) + _SMALL**2) / (parameter + _SMALL))
            elif kind == "log_coherence":
                i, d = 2 + self.named.average_decays.index(float(number)), float(number)
                logs.append((self.mean_squares[..., i : i + 1, :] / (1 - d**t) ** 2 + _TINY) / (gradient + _TINY))
            elif name == "log_size":
                constants.append(torch.log10(constant(self.segments.lengths, gradient)) / 3 - 1)
            elif name == "is_matrix":
                constants.append(constant(tuple(float(min(sides) > 1) for sides in self.matrices), gradient))
            elif kind == "time":
                constants.append(t / (t + float(number)))
            elif name == "progress":
                constants.append(progress_feature(t, self.total_steps))
            elif name == "has_total":
                constants.append(float(self.total_steps is not None))
            else:
                constants.append(data_feature(num_data))
        size = constant(self.segments.lengths, gradient)
        rest = torch.stack([torch.zeros_like(size) + value for value in constants], -2)
        logarithms = 0.5 * _LOG_SCALE * torch.log(torch.cat(logs, -2))
        return torch.cat([logarithms, rest.expand(*gradient.shape[:-2], -1, -1)], -2)
