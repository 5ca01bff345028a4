"""L2E's residual rule on a GPU: five Triton kernels in place of up to some hundreds of torch's operations.

Experimental: they have run under Triton's interpreter only, never on a GPU, and are used on request alone.

`learned_samplers.learned.l2e.rule.l2e_rule` is the rule; this computes the same function, to rounding. A step
reads each coordinate's features into registers, takes them through the network, and writes back the new state:

1. the running averages, with partial sums of squares for each tensor's scales,
2. the scales (and, where the feature set has one, the context) of each tensor,
3. first pass: features → (α, β) → the new momentum, with partial sums of its square,
4. the momentum's scale,
5. second pass: features with the new momentum → β → the new parameters.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base.operations import scalar_sqrt
from learned_samplers.base.segments import Segments
from learned_samplers.learned.feature_sets import AVERAGE_DECAYS, FEATURE_SETS, FeatureSet, feature_set_named
from learned_samplers.learned.features import data_feature
from learned_samplers.learned.l2e.rule import L2ESettings, decayed, l2e_rule, velocity_scale
from learned_samplers.learned.network import Phi
from meta_tasks.rules.learned import L2ERule

__all__ = ["FusedL2ERule", "fused_residual_rule", "triton_installed"]

# Coordinates that a program takes through the network at a time, and blocks whose sums it adds at a time.
_BLOCK, _CHUNK = 128, 32
# Widths are rounded up to a power of two that the matrix product takes. Beyond 32 units the compiler runs out of
# registers, and the activations go through memory after all.
_LEAST_WIDTH, _GREATEST_WIDTH = 16, 32
# The feature sets that the kernels compute.
_SUPPORTED = ("paper", "scaled", "adaptive", "adaptive_data")
_CLOCK_DECAYS, _CLOCK_TIMES = (0.9, 0.99, 0.999), (10, 100, 1000)


def triton_installed() -> bool:
    """Whether a Triton is installed that the kernels were tested with, 3.4 or later (torch 2.8 comes with it)."""
    if importlib.util.find_spec("triton") is None:
        return False
    try:
        major, minor, *_ = importlib.metadata.version("triton").split(".")
    except importlib.metadata.PackageNotFoundError:
        return False
    return (int(major), int(minor)) >= (3, 4)


class FusedL2ERule(L2ERule):
    """`L2ERule` in its residual form, experimental: `fused_residual_rule` on CUDA tensors, on others as `L2ERule`.

    The same sampler: its specification, weights and cards are those of `L2ERule`. Arguments are those of `L2ERule`.

    Raises:
        ValueError: as `L2ERule`; another form, a gate, normalised outputs, or a feature set or layers that the kernels
            are not made for (two hidden ones of 1 to 32 units are needed).
        ModuleNotFoundError: Triton is not installed.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self.settings.form != "residual":
            raise ValueError(f"form must be 'residual' for the fused rule, got {self.settings.form!r}")
        if self.settings.gated:
            raise ValueError("gated must be False for the fused rule, got True")
        _check_supported(self.settings)
        if len(self.hidden) != 2 or not all(1 <= width <= _GREATEST_WIDTH for width in self.hidden):
            raise ValueError(
                f"hidden must be two widths in [1, {_GREATEST_WIDTH}] for the fused rule, got {self.hidden}"
            )
        if not triton_installed():
            raise ModuleNotFoundError("the fused rule needs Triton 3.4 or later, which is not installed", name="triton")

    def _updated(self, parameter: Tensor, *tensors: Any, **hyper: Any) -> tuple[Tensor, ...]:
        rule = fused_residual_rule if parameter.device.type == "cuda" else l2e_rule
        return rule(parameter, *tensors, **hyper)


def _check_supported(settings: L2ESettings) -> None:
    if settings.normalise_output:
        raise ValueError("normalise_output must be False for the fused rule, got True")
    if settings.feature_set not in _SUPPORTED:
        known = ", ".join(map(repr, _SUPPORTED))
        raise ValueError(f"feature_set must be one of {known} here, got {settings.feature_set!r}")


def fused_residual_rule(
    parameter: Tensor,
    gradient: Tensor,
    noise: Tensor | None,
    momentum: Tensor,
    averages: Tensor,
    *,
    phi: Phi,
    segments: Segments,
    lr: float,
    num_data: float,
    temperature: float,
    prior_precision: float,
    momentum_decay: float,
    step: Any = 0,
    settings: L2ESettings,
) -> tuple[Tensor, Tensor, Tensor]:
    """`l2e_rule` of members (P, d) in single precision, not differentiable; its arguments are that rule's.

    lr, N and the like are numbers, ``step`` a number or a zero-dimensional tensor; ``phi`` has two hidden layers.

    Raises:
        TypeError: a tensor is not in single precision.
        ValueError: a tensor has another shape or requires a gradient; the feature set or the layers are others than
            the kernels are made for; the tensors are not on a CUDA device, and Triton's interpreter is off.
        ModuleNotFoundError: Triton is not installed.
    """
    named, output_bound = feature_set_named(settings.feature_set), settings.output_bound
    tensors = dict(parameter=parameter, gradient=gradient, momentum=momentum, averages=averages)
    if noise is not None:
        tensors["noise"] = noise
    _check_supported(settings)
    members, d = _check(tensors, segments, named)
    checked = decayed(_layers(phi, members, named), settings, step, num_data)
    if named.name == "adaptive_data":  # its last feature is one number: a shift of the first layer's bias
        (weight, bias), *rest = checked
        checked = [(weight[..., :-1], bias + weight[..., -1] * data_feature(num_data)), *rest]
        named = FEATURE_SETS["adaptive"]
    layers = [each.contiguous() for layer in checked for each in layer]

    from meta_tasks.rules import triton_kernels as kernels

    if parameter.device.type != "cuda" and not kernels.INTERPRETED:
        raise ValueError(
            f"parameter must be on a CUDA device, got one on {parameter.device}; only Triton's interpreter "
            "(TRITON_INTERPRET=1) runs the kernels elsewhere"
        )
    widths = [layers[0].shape[1], layers[2].shape[1]]
    rounded = [max(_LEAST_WIDTH, 1 << (width - 1).bit_length()) for width in widths]
    has_context, seconds = bool(named.context), len(named.second_moment_decays)
    network = dict(
        F=named.size, H1=widths[0], H2=widths[1], P1=rounded[0], P2=rounded[1], SECONDS=seconds, CONTEXT=has_context,
        BOUND=output_bound is not None, BLOCK=_BLOCK,
    )  # fmt: skip
    parameter, gradient, momentum, averages = (each.contiguous() for each in list(tensors.values())[:4])
    table = _table(segments, parameter.device)
    blocks, count = len(table.start), len(segments.lengths)
    weights = _average_weights(named, parameter.device)
    clock = _clock(step, parameter.device) if has_context or seconds else weights  # which is then not read
    rows = kernels.ROWS.value
    partial, squares, factors, context = (
        parameter.new_empty(members, n, rows) for n in (blocks, count, count, count)
    )  # fmt: skip
    # Floats, all of them: Triton would compile another kernel for a whole number.
    kick, displacement, step_size = float(lr * num_data), float(lr / num_data), float(scalar_sqrt(lr / num_data))
    heat = float(scalar_sqrt(2 * momentum_decay * temperature))
    beta_scale = float(velocity_scale(settings, num_data))
    by_beta = float(momentum_decay * beta_scale * settings.friction_scale)
    bound = 1.0 if output_bound is None else float(output_bound)

    new_averages, new_momentum, new_parameter = (torch.empty_like(x) for x in (averages, momentum, parameter))
    kernels.averages_kernel[members, blocks](
        gradient, parameter, momentum, averages, new_averages, weights, table.start, table.stop, partial, d, blocks,
        SECONDS=seconds, BLOCK=_BLOCK,
    )  # fmt: skip
    kernels.scales_kernel[members, count](
        partial, table.first, table.last, table.length, clock, squares, factors, context, blocks, count, kick,
        displacement, SECONDS=seconds, CONTEXT=has_context, CHUNK=_CHUNK,
    )  # fmt: skip
    kernels.first_pass_kernel[members, blocks](
        gradient, parameter, gradient if noise is None else noise.contiguous(), momentum, new_averages, factors,
        context, clock, *layers, table.segment, table.start, table.stop, new_momentum, partial, d, blocks, count,
        1.0 - momentum_decay, step_size * num_data, step_size * prior_precision, heat, float(settings.alpha_scale),
        by_beta, bound, NOISE=noise is not None, **network,
    )  # fmt: skip
    kernels.momentum_scales_kernel[members, count](
        partial, table.first, table.last, table.length, squares, factors, context, blocks, count, displacement,
        CONTEXT=has_context, CHUNK=_CHUNK,
    )  # fmt: skip
    kernels.second_pass_kernel[members, blocks](
        gradient, parameter, new_momentum, new_averages, factors, context, clock, *layers, table.segment, table.start,
        table.stop, new_parameter, d, count, step_size, beta_scale, bound, **network,
    )  # fmt: skip
    return new_parameter, new_momentum, new_averages


def _check(tensors: dict[str, Tensor], segments: Segments, named: FeatureSet) -> tuple[int, int]:
    """Number of members and d; raises as `fused_residual_rule` says."""
    shape = tensors["parameter"].shape
    if len(shape) != 2 or shape[1] != segments.total:
        raise ValueError(f"parameter must be (P, {segments.total}), got {tuple(shape)}")
    expected = {name: tuple(shape) for name in tensors}
    expected["averages"] = (shape[0], named.num_averages, shape[1])
    for name, each in tensors.items():
        if each.dtype != torch.float32:
            raise TypeError(f"{name} must be in single precision (torch.float32), got {each.dtype}")
        if tuple(each.shape) != expected[name]:
            raise ValueError(f"{name} must be {expected[name]}, got {tuple(each.shape)}")
        if each.requires_grad and torch.is_grad_enabled():
            raise ValueError(f"{name} requires a gradient, and the fused rule has none; use l2e_rule")
    return shape[0], shape[1]


def _layers(phi: Phi, members: int, named: FeatureSet) -> list[tuple[Tensor, Tensor]]:
    """The layers with an axis of members each."""
    widths = [weight.shape[-2] for weight, _ in phi]
    if len(phi) != 3 or widths[-1] != 2 or not all(1 <= width <= _GREATEST_WIDTH for width in widths):
        raise ValueError(
            f"phi must have two hidden layers of 1 to {_GREATEST_WIDTH} units and two outputs, got widths {widths}"
        )
    if phi[0][0].shape[-1] != named.size:
        raise ValueError(f"phi takes {phi[0][0].shape[-1]} features, feature set {named.name!r} has {named.size}")
    for weight, bias in phi:
        if weight.dtype != torch.float32 or bias.dtype != torch.float32:
            raise TypeError(f"phi must be in single precision (torch.float32), got {weight.dtype} and {bias.dtype}")
        if torch.is_grad_enabled() and (weight.requires_grad or bias.requires_grad):
            raise ValueError("phi requires a gradient, and the fused rule has none; use l2e_rule")
    return [(weight.expand(members, *weight.shape[-2:]), bias.expand(members, bias.shape[-1])) for weight, bias in phi]


class _Table:
    """Which coordinates each block has, and which blocks each tensor has. No block has coordinates of two tensors."""

    def __init__(self, segments: Segments, device: torch.device) -> None:
        whole: dict[str, list[int]] = {name: [] for name in ("segment", "start", "stop", "first", "last")}
        for i, (begin, end) in enumerate(zip(segments.edges, segments.edges[1:])):
            starts = range(begin, end, _BLOCK)
            whole["first"].append(len(whole["start"]))
            whole["segment"] += [i] * len(starts)
            whole["start"] += starts
            whole["stop"] += [min(start + _BLOCK, end) for start in starts]
            whole["last"].append(len(whole["start"]))
        tensors = {name: torch.tensor(values, dtype=torch.int32, device=device) for name, values in whole.items()}
        self.segment, self.start, self.stop = tensors["segment"], tensors["start"], tensors["stop"]
        self.first, self.last = tensors["first"], tensors["last"]
        self.length = torch.tensor(segments.lengths, dtype=torch.float32, device=device)


# Made once for each network: copying them to the device at every step would break the capture of CUDA graphs.
_table = lru_cache(maxsize=256)(_Table)


@lru_cache(maxsize=16)
def _clock_constants(device: torch.device) -> tuple[Tensor, Tensor]:
    decays = torch.tensor(_CLOCK_DECAYS, dtype=torch.float64, device=device)
    return decays, torch.tensor(_CLOCK_TIMES, dtype=torch.float64, device=device)


def _clock(step: Any, device: torch.device) -> Tensor:
    """1 − dᵗ at the three decays and t/(t + τ) at the three times, t = step + 1; in double precision until the end."""
    decays, times = _clock_constants(device)
    if not isinstance(step, Tensor):
        step = torch.full((), step, dtype=torch.float64, device=device)
    t = step.double() + 1
    return torch.cat([1 - decays**t, t / (t + times)]).float()


@lru_cache(maxsize=16)
def _average_weights(named: FeatureSet, device: torch.device) -> Tensor:
    # In single precision, as the rule has them: 1 − d differs in the fourth digit from that in double at d = .9999.
    return 1 - torch.tensor(AVERAGE_DECAYS + named.second_moment_decays, dtype=torch.float32, device=device)
