"""One step of a learned sampler by the compiled code, in place: what the optimizers and the meta-trainer call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from math import prod

import numpy as np
import torch
from torch import Tensor

from learned_samplers.base.operations import as_number
from learned_samplers.base.segments import Segments
from learned_samplers.learned.feature_sets import feature_set_named
from learned_samplers.learned.l2e.rule import L2ESettings
from learned_samplers.learned.native.coefficients import coefficients
from learned_samplers.learned.native.library import native_library
from learned_samplers.learned.native.structures import fits, settings_of
from learned_samplers.learned.network import Phi
from learned_samplers.learned.preconditioned.rule import PreconditionedSettings

__all__ = ["can_step", "step_flat_", "step_tensors_"]


def can_step(phi: Phi, settings: L2ESettings | PreconditionedSettings, *tensors: Tensor | None) -> bool:
    """Whether the compiled code can take the step.

    It needs single precision on a CPU, no gradient required, a network of one to four hidden layers of at most 64
    units with two or three outputs, no correction (of Precond-L2E), and the library. ``tensors`` are those of the step.
    """
    if isinstance(settings, PreconditionedSettings) and settings.correction != "none":
        return False
    everything = [x for x in (*tensors, *(part for layer in phi for part in layer)) if x is not None]
    if torch.compiler.is_compiling() or not all(map(_is_plain, everything)):
        return False
    if torch.is_grad_enabled() and any(each.requires_grad for each in everything):
        return False
    return fits(feature_set_named(settings.feature_set), _widths(phi)) and native_library() is not None


def step_tensors_(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    noise: Sequence[Tensor] | None,
    momenta: Sequence[Tensor],
    averages: Sequence[Tensor],
    *,
    phi: Phi,
    settings: L2ESettings | PreconditionedSettings,
    **hyper: float,
) -> None:
    """One step of tensors of any shapes, in place; one network for all of them.

    Args:
        parameters, gradients, noise, momenta: tensor by tensor; ``noise`` is overwritten, or None at temperature 0.
        averages: (K, *shape) each.
        phi, settings, hyper: as for the rule that the settings belong to.

    Raises:
        RuntimeError: the library is not there; see `can_step`.
    """
    rows = [parameters, gradients, noise or parameters, momenta, averages]
    # A tensor of another memory layout (channels_last) takes the step as a copy.
    plain = [[x if x.is_contiguous() else x.contiguous() for x in row] for row in rows]
    if noise is None:
        plain[2] = [torch.empty_like(x) for x in plain[0]] if _normalises(settings) else []
    pieces = np.zeros((len(parameters), 8), np.int64)
    for column, row in enumerate(plain):
        if row:
            pieces[:, column] = [x.data_ptr() for x in row]
    pieces[:, 5] = pieces[:, 6] = [p.numel() for p in parameters]
    _run(pieces, phi, settings, noise is not None, hyper)
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
    settings: L2ESettings | PreconditionedSettings,
    **hyper: float,
) -> None:
    """One step of flat buffers with leading axes of members, in place; each member may have weights of its own.

    Args:
        parameter, gradient, noise, momentum: (..., d); ``noise`` may be overwritten, or is None at temperature 0.
        averages: (..., K, d).
        phi: with the leading axes of ``parameter``, or none.
        segments: where the tensors lie in the flat axis.
        settings, hyper: as for `step_tensors_`.

    Raises:
        ValueError: a buffer is not contiguous, so that nothing could be written into it.
        RuntimeError: the library is not there; see `can_step`.
    """
    for name, x in (("parameter", parameter), ("momentum", momentum), ("averages", averages)):
        if not x.is_contiguous():
            raise ValueError(f"{name} must be contiguous to be changed in place, got strides {x.stride()}")
    gradient = gradient.contiguous()
    noisy = noise is not None
    if noise is not None:
        noise = noise.contiguous()
    elif _normalises(settings):
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
    _run(pieces.reshape(-1, 8), phi, settings, noisy, hyper)


def _run(
    pieces: np.ndarray,
    phi: Phi,
    settings: L2ESettings | PreconditionedSettings,
    noisy: bool,
    hyper: dict[str, float],
) -> None:
    library = native_library()
    if library is None:
        raise RuntimeError("the compiled update is not there; can_step says so beforehand")
    hyper = {name: as_number(value) for name, value in hyper.items()}
    numbers = coefficients(settings, **hyper)
    if not noisy:
        numbers["heat"] = 0.0
    named = feature_set_named(settings.feature_set)
    numbers["threads"] = torch.get_num_threads()
    call = settings_of(named, _widths(phi), hyper["step"], hyper["num_data"], settings.total_steps, numbers)
    plain = [(weight.detach().contiguous(), bias.detach().contiguous()) for weight, bias in phi]
    own = plain[0][0].dim() > 2
    table = np.array(
        [[w.data_ptr(), b.data_ptr(), own * prod(w.shape[-2:]), own * b.shape[-1]] for w, b in plain],
        np.int64,
    )
    members = prod(plain[0][0].shape[:-2])
    failed = library.l2e_step(ctypes.addressof(call), pieces.ctypes.data, len(pieces), table.ctypes.data, members)
    if failed:
        raise MemoryError("the compiled update ran out of memory")


def _normalises(settings: L2ESettings | PreconditionedSettings) -> bool:
    return isinstance(settings, L2ESettings) and settings.normalise_output


def _is_plain(x: Tensor) -> bool:
    return type(x) in (Tensor, torch.nn.Parameter) and x.dtype == torch.float32 and x.device.type == "cpu"


def _widths(phi: Phi) -> tuple[int, ...]:
    return (phi[0][0].shape[-1], *(weight.shape[-2] for weight, _ in phi))
