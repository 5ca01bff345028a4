"""One step of Meta-SGMCMC by the compiled code, in place."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from learned_samplers.base.operations import as_number, scalar_sqrt
from learned_samplers.base.segments import Segments
from learned_samplers.learned.meta_sgmcmc.rule import GRADIENT_FLOOR, MOMENTUM_FLOOR, MetaSGMCMCSettings
from learned_samplers.learned.native import structures
from learned_samplers.learned.native.calls import (
    addresses,
    are_plain,
    call_with_network,
    contiguous_rows,
    lengths_of,
    own_networks,
    widths_of,
    write_back,
)
from learned_samplers.learned.native.library import native_library
from learned_samplers.learned.network import Phi

__all__ = ["can_meta_step", "meta_step_flat_", "meta_step_tensors_"]


def can_meta_step(phi: Phi, settings: MetaSGMCMCSettings, *tensors: Tensor | None) -> bool:
    """Whether the compiled code can take the step: what it needs is as for `step.can_step`, of each of the two networks
    at most 64 units a layer, and ``correction="autograd"``, for its derivatives are exact."""
    if settings.correction != "autograd" or not structures.has_room(_own_widths(phi)):
        return False
    return are_plain(phi, tensors) and native_library() is not None


def meta_step_tensors_(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    noise: Sequence[Tensor] | None,
    momenta: Sequence[Tensor],
    *,
    energy: Tensor,
    phi: Phi,
    settings: MetaSGMCMCSettings,
    **hyper: Any,
) -> None:
    """One step of tensors of any shapes behind the leading axes of ``energy``, in place; one network for all of them.

    Args:
        parameters, gradients, noise, momenta: tensor by tensor; ``noise`` is None at temperature 0.
        energy, phi, settings, hyper: as for `meta_sgmcmc_rule`.

    Raises:
        RuntimeError: the library is not there; see `can_meta_step`.
    """
    plain = [contiguous_rows(row) for row in (gradients, noise or (), parameters, momenta)]
    chains = energy.numel()
    lengths = lengths_of(parameters) // chains
    pieces = np.zeros((chains, len(parameters), _COLUMNS), np.int64)
    offsets = 4 * lengths * np.arange(chains)[:, None]
    for column, row in enumerate(plain):
        if row:
            pieces[:, :, column] = offsets + addresses(row)
    pieces[:, :, _LENGTH] = lengths
    _run(pieces, energy, phi, settings, noise is not None, hyper)
    write_back(parameters, plain[2])
    write_back(momenta, plain[3])
    torch.autograd.graph.increment_version(parameters)  # autograd has seen nothing of it


def meta_step_flat_(
    parameter: Tensor,
    gradient: Tensor,
    noise: Tensor | None,
    momentum: Tensor,
    *,
    energy: Tensor,
    phi: Phi,
    segments: Segments,
    settings: MetaSGMCMCSettings,
    **hyper: Any,
) -> None:
    """One step of flat buffers with leading axes of members, in place; each member may have weights of its own.

    Args:
        parameter, gradient, noise, momentum: (..., d).
        energy, phi, segments, settings, hyper: as for `meta_sgmcmc_rule`; ``segments`` are needed in any case.

    Raises:
        ValueError: a buffer is not contiguous, so that nothing could be written into it.
        RuntimeError: the library is not there; see `can_meta_step`.
    """
    for name, x in (("parameter", parameter), ("momentum", momentum)):
        if not x.is_contiguous():
            raise ValueError(f"{name} must be contiguous to be changed in place, got strides {x.stride()}")
    plain = (gradient.contiguous(), None if noise is None else noise.contiguous(), parameter, momentum)
    members, d = prod(parameter.shape[:-1]), parameter.shape[-1]
    member, lengths = np.arange(members)[:, None], segments.lengths
    if settings.feature_set == "energy":  # no network sees where a tensor ends
        lengths = (d,)
    pieces = np.zeros((members, len(lengths), _COLUMNS), np.int64)
    offsets = 4 * (member * d + np.cumsum([0, *lengths[:-1]]))
    for column, buffer in enumerate(plain):
        if buffer is not None:
            pieces[:, :, column] = buffer.data_ptr() + offsets
    pieces[:, :, _LENGTH] = lengths
    if own_networks(phi, members):
        pieces[:, :, _NETWORK] = member
    _run(pieces, energy, phi, settings, noise is not None, hyper)


# Of ``MetaPiece`` in meta_sgmcmc.cpp: four addresses, the length, which network, and u.
_LENGTH, _NETWORK, _ENERGY, _COLUMNS = 4, 5, 6, 7


def _run(
    pieces: np.ndarray, energy: Tensor, phi: Phi, settings: MetaSGMCMCSettings, noisy: bool, hyper: dict[str, Any]
) -> None:
    """``pieces`` are (chains, tensors, _COLUMNS), without the energies."""
    library = native_library()
    if library is None:
        raise RuntimeError("the compiled update is not there; can_meta_step says so beforehand")
    numbers = {name: as_number(value) for name, value in hyper.items()}
    seen = (energy.detach() * (settings.energy_scale / numbers["num_data"])).to(torch.float32)
    pieces[:, :, _ENERGY] = seen.reshape(-1, 1).double().numpy().view(np.int64)
    call = _settings_of(settings, _own_widths(phi), noisy, **numbers)
    call_with_network(library.meta_sgmcmc_step, call, pieces.reshape(-1, _COLUMNS), phi)


def _own_widths(phi: Phi) -> tuple[int, ...]:
    """The inputs of the stack, then the units of each layer of one of the two networks."""
    inputs, *units = widths_of(phi)
    return (inputs, *(width // 2 for width in units))


def _settings_of(
    settings: MetaSGMCMCSettings,
    widths: tuple[int, ...],
    noisy: bool,
    *,
    lr: float,
    num_data: float,
    temperature: float,
    prior_precision: float,
    momentum_decay: float,
) -> structures.MetaSettings:
    s, step_size = structures.MetaSettings(), scalar_sqrt(lr / num_data)
    s.layers, s.threads = len(widths) - 1, torch.get_num_threads()
    s.widths[: len(widths)] = widths
    s.noisy, s.absolute, s.relative = noisy, settings.form == "absolute", settings.feature_set == "energy_rms"
    s.curl_offset, s.curl_scale, s.curl_clip = settings.curl_offset, settings.curl_scale, settings.curl_clip
    s.by_square = momentum_decay * (1 - settings.constant_friction)
    s.constant = momentum_decay * settings.constant_friction
    s.friction_scale, s.friction_clip = momentum_decay * settings.friction_scale, settings.friction_clip
    s.num_data, s.prior, s.step_size, s.temperature = num_data, prior_precision, step_size, temperature
    s.pull = temperature * step_size * settings.energy_scale / num_data
    s.taken = step_size * step_size * settings.gradient_variance
    s.gradient_scale = settings.gradient_scale
    s.momentum_floor, s.gradient_floor = MOMENTUM_FLOOR, GRADIENT_FLOOR
    return s
