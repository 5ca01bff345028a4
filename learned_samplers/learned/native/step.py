"""One step of a learned sampler by the compiled code, in place: what the optimizers and the meta-trainer call."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from learned_samplers.base.operations import scalar_sqrt
from learned_samplers.base.segments import Segments
from learned_samplers.learned.features import FeatureSet, feature_set_named
from learned_samplers.learned.l2e.rule import Phi, velocity_scale
from learned_samplers.learned.native.library import native_library
from learned_samplers.learned.native.structures import fits, settings_of

__all__ = ["can_step", "step_flat_", "step_tensors_"]


def can_step(phi: Phi, feature_set: FeatureSet, *tensors: Tensor) -> bool:
    """Whether the compiled code can take the step.

    It needs single precision on a CPU, no derivative asked for, a network of one to four hidden layers of at most 64
    units with two outputs, and the library.
    """
    everything = (*tensors, *(part for layer in phi for part in layer))
    if torch.compiler.is_compiling() or not all(map(_is_plain, everything)):
        return False
    if torch.is_grad_enabled() and any(each.requires_grad for each in everything):
        return False
    return fits(feature_set, _widths(phi)) and native_library() is not None


def step_tensors_(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    noise: Sequence[Tensor] | None,
    momenta: Sequence[Tensor],
    averages: Sequence[Tensor],
    *,
    phi: Phi,
    form: str,
    feature_set: str | FeatureSet,
    **hyper: Any,
) -> None:
    """One step of tensors of any shapes, in place; one network for all of them.

    Args:
        parameters, gradients, noise, momenta: tensor by tensor; ``noise`` is overwritten, or None at temperature 0.
        averages: (K, *shape) each.
        phi, hyper: as for the rule of that form.
        form: "residual", "paper" or "preconditioner".

    Raises:
        RuntimeError: the library is not there; see `can_step`.
    """
    named = feature_set_named(feature_set)
    rows = [parameters, gradients, noise or parameters, momenta, averages]
    # A tensor of another memory layout (channels_last) takes the step as a copy.
    plain = [[x if x.is_contiguous() else x.contiguous() for x in row] for row in rows]
    if noise is None:
        plain[2] = [torch.empty_like(x) for x in plain[0]] if hyper.get("normalise_output") else []
    pieces = np.zeros((len(parameters), 8), np.int64)
    for column, row in enumerate(plain):
        if row:
            pieces[:, column] = [x.data_ptr() for x in row]
    pieces[:, 5] = pieces[:, 6] = [p.numel() for p in parameters]
    _run(pieces, phi, form, named, noise is not None, hyper)
    for before, after in ((parameters, plain[0]), (momenta, plain[3]), (averages, plain[4])):
        for old, new in zip(before, after, strict=True):
            if old is not new:
                old.copy_(new)


def step_flat_(
    parameter: Tensor,
    gradient: Tensor,
    noise: Tensor | None,
    momentum: Tensor,
    averages: Tensor,
    *,
    phi: Phi,
    segments: Segments,
    form: str,
    feature_set: str | FeatureSet,
    **hyper: Any,
) -> None:
    """One step of flat buffers with leading axes of members, in place; each member may have weights of its own.

    Args:
        parameter, gradient, noise, momentum: (..., d); ``noise`` may be overwritten, or is None at temperature 0.
        averages: (..., K, d).
        phi: with the leading axes of ``parameter``, or none.
        segments: where the tensors lie in the flat axis.
        form, hyper: as for `step_tensors_`.

    Raises:
        ValueError: a buffer is not contiguous, so that nothing could be written into it.
        RuntimeError: the library is not there; see `can_step`.
    """
    named = feature_set_named(feature_set)
    for name, x in (("parameter", parameter), ("momentum", momentum), ("averages", averages)):
        if not x.is_contiguous():
            raise ValueError(f"{name} must be contiguous to be changed in place, got strides {x.stride()}")
    gradient = gradient.contiguous()
    noisy = noise is not None
    if noise is not None:
        noise = noise.contiguous()
    elif hyper.get("normalise_output"):
        noise = torch.empty_like(parameter)
    lead, d = parameter.shape[:-1], parameter.shape[-1]
    members, rows = prod(lead), averages.shape[-2]
    pieces = np.zeros((members, len(segments.lengths), 8), np.int64)
    member, start = np.arange(members)[:, None], np.array(segments.edges[:-1])
    offset = 4 * (member * d + start)
    for column, buffer in enumerate((parameter, gradient, noise, momentum)):
        if buffer is not None:
            pieces[:, :, column] = buffer.data_ptr() + offset
    pieces[:, :, 4] = averages.data_ptr() + 4 * (member * (rows * d) + start)
    pieces[:, :, 5], pieces[:, :, 6] = np.array(segments.lengths), d
    if phi[0][0].dim() > 2:
        pieces[:, :, 7] = member
    _run(pieces.reshape(-1, 8), phi, form, named, noisy, hyper)


def _run(pieces: np.ndarray, phi: Phi, form: str, named: FeatureSet, noisy: bool, hyper: dict[str, Any]) -> None:
    library = native_library()
    if library is None:
        raise RuntimeError("the compiled update is not there; can_step says so beforehand")
    common = {name: hyper.pop(name) for name in ("step", "num_data")}
    numbers = _NUMBERS[form](**hyper, **common)
    if not noisy:
        numbers["heat"] = 0.0
    settings = settings_of(named, _widths(phi), **common, **numbers, threads=torch.get_num_threads())
    plain = [(weight.detach().contiguous(), bias.detach().contiguous()) for weight, bias in phi]
    own = plain[0][0].dim() > 2
    table = np.array(
        [[w.data_ptr(), b.data_ptr(), own * prod(w.shape[-2:]), own * b.shape[-1]] for w, b in plain],
        np.int64,
    )
    members = prod(plain[0][0].shape[:-2])
    failed = library.l2e_step(ctypes.addressof(settings), pieces.ctypes.data, len(pieces), table.ctypes.data, members)
    if failed:
        raise MemoryError("the compiled update ran out of memory")


def _residual(
    *, lr: float, num_data: float, temperature: float, prior_precision: float, momentum_decay: float, step: float,
    alpha_scale: float = 0.1, beta_scale: float = 1.0, friction_scale: float = 1.0,
    reference_data: float | None = None, decay_time: float | None = None, output_bound: float | None = None,
    normalise_output: bool = False,
) -> dict[str, float]:  # fmt: skip
    step_size = scalar_sqrt(lr / num_data)
    beta_scale = velocity_scale(beta_scale, num_data, reference_data)
    if decay_time is not None and reference_data is not None:
        decay_time = decay_time * reference_data / num_data
    return dict(
        keep=1 - momentum_decay, kick=step_size * num_data, pull=step_size * prior_precision,
        heat=scalar_sqrt(2 * momentum_decay * temperature), alpha=alpha_scale,
        friction_beta=momentum_decay * beta_scale * friction_scale, inertia=1.0, velocity_beta=beta_scale,
        step_size=step_size, output_factor=1.0 if decay_time is None else 1 / scalar_sqrt(1 + step / decay_time),
        output_bound=output_bound or 0.0, normalise=normalise_output,
    )  # fmt: skip


def _paper(
    *, lr: float, num_data: float, temperature: float, prior_precision: float, momentum_decay: float, step: float,
    alpha_scale: float = 1e-3, beta_scale: float = 1e-3, friction_scale: float = 1.0,
    output_bound: float | None = None, noise_multiplier: float = 1.0, friction: str = "equation6",
) -> dict[str, float]:  # fmt: skip
    step_size = scalar_sqrt(lr / num_data)
    damping = momentum_decay if friction == "equation6" else step_size * momentum_decay
    return dict(
        keep=1.0, kick=step_size * num_data, pull=step_size * prior_precision,
        heat=scalar_sqrt(2 * momentum_decay * noise_multiplier * temperature), alpha=step_size * alpha_scale,
        friction_beta=damping * beta_scale * friction_scale, inertia=0.0, velocity_beta=beta_scale,
        step_size=step_size, output_factor=1.0, output_bound=output_bound or 0.0,
    )  # fmt: skip


def _preconditioner(
    *, lr: float, num_data: float, temperature: float, prior_precision: float, momentum_decay: float, step: float,
    curl_scale: float = 1.0, friction_scale: float = 1.0, curl_clip: float = 5.0, friction_clip: float = 100.0,
    output_bound: float | None = None, correction: str = "none",
) -> dict[str, float]:  # fmt: skip
    if correction != "none":
        raise ValueError(f"correction must be 'none' for the compiled update, got {correction!r}")
    step_size = scalar_sqrt(lr / num_data)
    return dict(
        keep=1 - momentum_decay, kick=step_size * num_data, pull=step_size * prior_precision,
        heat=scalar_sqrt(2 * momentum_decay * temperature), alpha=friction_scale, velocity_beta=curl_scale,
        step_size=step_size, output_factor=1.0, output_bound=output_bound or 0.0, preconditioned=True,
        curl_clip=curl_clip, friction_low=1 / friction_clip, friction_high=min(friction_clip, 1 / momentum_decay),
    )  # fmt: skip


_NUMBERS: dict[str, Callable[..., dict[str, float]]] = {
    "residual": _residual, "paper": _paper, "preconditioner": _preconditioner,
}  # fmt: skip


def _is_plain(x: Tensor) -> bool:
    return type(x) in (Tensor, torch.nn.Parameter) and x.dtype == torch.float32 and x.device.type == "cpu"


def _widths(phi: Phi) -> tuple[int, ...]:
    return (phi[0][0].shape[-1], *(weight.shape[-2] for weight, _ in phi))
