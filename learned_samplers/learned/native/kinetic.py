"""The first half of a step of Kinetic-L2E by the compiled code, where that can take it."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from learned_samplers.base.operations import as_number, scalar_sqrt
from learned_samplers.base.segments import Segments
from learned_samplers.learned.kinetic.rule import KineticSettings, kinetic_half_step
from learned_samplers.learned.native import structures
from learned_samplers.learned.native.calls import are_plain, call_with_network, own_networks, widths_of
from learned_samplers.learned.native.library import native_library
from learned_samplers.learned.network import Phi

__all__ = ["can_half_step", "half_step"]


def can_half_step(phi: Phi, *tensors: Tensor | None) -> bool:
    """Whether the compiled code can take the half step of these tensors; what it needs is as for `step.can_step`, and
    of the network two inputs and one output."""
    widths = widths_of(phi)
    fits = (widths[0], widths[-1]) == (2, 1) and structures.has_room(widths)
    return fits and are_plain(phi, tensors) and native_library() is not None


def half_step(
    parameter: Tensor,
    gradient: Tensor,
    noise: Tensor | None,
    momentum: Tensor,
    *,
    phi: Phi,
    segments: Segments,
    settings: KineticSettings,
    **hyper: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`kinetic_half_step`, with its arguments and returns: by the compiled code where it can, else by the rule."""
    tensors = (parameter, gradient, noise, momentum)
    library = native_library() if can_half_step(phi, *tensors) else None
    if library is None:
        return kinetic_half_step(*tensors, phi=phi, segments=segments, settings=settings, **hyper)
    plain = [None if x is None else x.contiguous() for x in tensors]
    parts = parameter.new_empty((4, *parameter.shape))
    lead, d = parameter.shape[:-1], parameter.shape[-1]
    members = prod(lead)
    pieces = np.zeros((members, len(segments.lengths), 10), np.int64)
    member = np.arange(members)[:, None]
    offset = 4 * (member * d + np.array(segments.edges[:-1]))
    for column, buffer in enumerate((*plain, *parts)):
        if buffer is not None:
            pieces[:, :, column] = buffer.data_ptr() + offset
    pieces[:, :, 8] = np.array(segments.lengths)
    if own_networks(phi, members):
        pieces[:, :, 9] = member
    call = _settings_of(settings, widths_of(phi), noise is not None, **{k: as_number(v) for k, v in hyper.items()})
    call_with_network(library.kinetic_half_step, call, pieces.reshape(-1, 10), phi)
    mean, half, direct, through = parts
    return mean, half, direct, through


def _settings_of(
    settings: KineticSettings,
    widths: tuple[int, ...],
    noisy: bool,
    *,
    lr: float,
    num_data: float,
    temperature: float,
    prior_precision: float,
    momentum_decay: float,
) -> structures.KineticSettings:
    s, step_size = structures.KineticSettings(), scalar_sqrt(lr / num_data)
    s.layers, s.threads = len(widths) - 1, torch.get_num_threads()
    s.widths[: len(widths)] = widths
    s.keep, s.kick, s.pull = 1 - momentum_decay, step_size * num_data, step_size * prior_precision
    s.heat = scalar_sqrt(2 * momentum_decay * temperature) if noisy else 0.0
    s.decay, s.mean_scale, s.output_bound = momentum_decay, settings.mean_scale, settings.output_bound or 0.0
    s.prior_share = prior_precision / num_data
    return s
