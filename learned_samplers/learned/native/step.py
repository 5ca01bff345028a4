"""One step of a learned sampler by the compiled code, in place: what the optimizers and the meta-trainer call."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

import numpy as np
import torch
from torch import Tensor

from learned_samplers.base.matrices import averaged
from learned_samplers.base.operations import as_number
from learned_samplers.base.segments import Segments
from learned_samplers.base.whitening import update_whitening, update_whitening_
from learned_samplers.learned.feature_sets import feature_set_named
from learned_samplers.learned.l2e.rule import L2ESettings
from learned_samplers.learned.narrow import STEP
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
from learned_samplers.learned.native.coefficients import coefficients
from learned_samplers.learned.native.library import native_library
from learned_samplers.learned.native.structures import fits, settings_of
from learned_samplers.learned.network import Phi
from learned_samplers.learned.preconditioned.rule import PreconditionedSettings
from learned_samplers.learned.whole_matrices import prior_decay, whole_direction, whole_rows

__all__ = ["can_step", "step_flat_", "step_tensors_"]

# Of ``Piece`` in settings.h.
_COLUMNS = 10


def can_step(
    phi: Phi,
    settings: L2ESettings | PreconditionedSettings,
    *tensors: Tensor | None,
    averages: Sequence[Tensor] = (),
) -> bool:
    """Whether the compiled code can take the step.

    It needs single precision on a CPU, no gradient required, a network of one to four hidden layers of at most 64
    units with two or three outputs, no correction (of Precond-L2E), and the library. ``tensors`` are those of the step;
    ``averages``, which may be in bfloat16, stand apart.
    """
    if isinstance(settings, PreconditionedSettings) and settings.correction != "none":
        return False
    narrow = bool(averages) and averages[0].dtype == torch.bfloat16
    plain = are_plain(phi, tensors if narrow else (*tensors, *averages))
    if not plain or (narrow and not are_plain((), averages, torch.bfloat16)):
        return False
    return fits(feature_set_named(settings.feature_set), widths_of(phi)) and native_library() is not None


def step_tensors_(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    noise: Sequence[Tensor] | None,
    momenta: Sequence[Tensor],
    averages: Sequence[Tensor],
    whitening: Sequence[Tensor] | None = None,
    *,
    phi: Phi,
    settings: L2ESettings | PreconditionedSettings,
    **hyper: float,
) -> None:
    """One step of tensors of any shapes, in place; one network for all of them.

    Args:
        parameters, gradients, noise, momenta: tensor by tensor; ``noise`` is overwritten, or None at temperature 0.
        averages: (K, *shape) each, in bfloat16 if they are kept so.
        whitening: the covariances of each, where the feature set has any.
        phi, settings, hyper: as for the rule that the settings belong to.

    Raises:
        RuntimeError: the library is not there; see `can_step`.
    """
    rows = [parameters, gradients, noise or parameters, momenta, averages]
    plain = [contiguous_rows(row) for row in rows]
    if noise is None:
        plain[2] = [torch.empty_like(x) for x in plain[0]] if _normalises(settings) else []
    pieces = np.zeros((len(parameters), _COLUMNS), np.int64)
    for column, row in enumerate(plain):
        if row:
            pieces[:, column] = addresses(row)
    pieces[:, 5] = pieces[:, 6] = lengths_of(parameters)
    given = _given(plain[0], plain[1], plain[4], whitening, settings, hyper)
    if given:
        pieces[:, 8] = addresses(given)
        pieces[:, 9] = [min(matrix.shape) > 1 for matrix in given]
    _run(pieces, phi, settings, noise is not None, averages[0].dtype == torch.bfloat16, hyper)
    for before, after in ((parameters, plain[0]), (momenta, plain[3]), (averages, plain[4])):
        write_back(before, after)
    torch.autograd.graph.increment_version(parameters)  # autograd has seen nothing of it


def step_flat_(
    parameter: Tensor,
    gradient: Tensor,
    noise: Tensor | None,
    momentum: Tensor,
    averages: Tensor,
    whitening: Tensor | None = None,
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
        whitening: (..., w), where the feature set has covariances.
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
    members = prod(parameter.shape[:-1])
    own = own_networks(phi, members)
    pieces = _offsets(members, segments.lengths, averages.shape[-2], averages.element_size(), own).copy()
    named = feature_set_named(settings.feature_set)
    if named.whole is not None:
        if named.whitens:
            whitening = update_whitening(whitening, gradient, segments, int(hyper["step"]), in_place=True)
        average = averaged(averages[..., named.whole_average, :], gradient, named.whole_decay)
        decay = prior_decay(named, hyper["prior_precision"], hyper["num_data"])
        given = whole_direction(named, average, gradient, segments, whitening, parameter, decay)
        pieces[:, 8] = given.data_ptr() + pieces[:, 0]
        pieces[:, 9] = np.tile([min(sides) > 1 for sides in segments.matrices], members)
    buffers = (parameter, gradient, noise, momentum, averages)
    pieces[:, :5] += np.array([0 if x is None else x.data_ptr() for x in buffers], np.int64)
    if noise is None:
        pieces[:, 2] = 0
    _run(pieces, phi, settings, noisy, averages.dtype == torch.bfloat16, hyper)


@lru_cache(maxsize=256)
def _offsets(members: int, lengths: tuple[int, ...], rows: int, size: int, own: bool) -> np.ndarray:
    """The rows of ``pieces`` for flat buffers that begin at address 0: the same at every step of a chain.

    ``rows`` averages are kept in ``size`` bytes each; ``own`` says whether each member has weights of its own.
    """
    d = sum(lengths)
    pieces = np.zeros((members, len(lengths), _COLUMNS), np.int64)
    member, start = np.arange(members)[:, None], np.cumsum([0, *lengths[:-1]])
    pieces[:, :, :4] = (4 * (member * d + start))[..., None]
    pieces[:, :, 4] = size * (member * (rows * d) + start)
    pieces[:, :, 5], pieces[:, :, 6], pieces[:, :, 7] = np.array(lengths), d, own * member
    return pieces.reshape(-1, _COLUMNS)


def _run(
    pieces: np.ndarray,
    phi: Phi,
    settings: L2ESettings | PreconditionedSettings,
    noisy: bool,
    narrow: bool,
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
    numbers["narrow"], numbers["dither"] = narrow, int(hyper["step"]) * STEP % (1 << 32)
    call = settings_of(named, widths_of(phi), hyper["step"], hyper["num_data"], settings.total_steps, numbers)
    call_with_network(library.l2e_step, call, pieces, phi)


def _given(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    averages: Sequence[Tensor],
    whitening: Sequence[Tensor] | None,
    settings: L2ESettings | PreconditionedSettings,
    hyper: dict[str, float],
) -> list[Tensor]:
    """The row of features that the compiled code does not make, as contiguous matrices; none where it makes all."""
    named = feature_set_named(settings.feature_set)
    if named.whole is None:
        return []
    row, d, matrices = named.whole_average, named.whole_decay, Segments.of(gradients).matrices
    if named.whitens:
        assert whitening is not None
        slopes = [gradient.view(sides) for gradient, sides in zip(gradients, matrices, strict=True)]
        update_whitening_(whitening, slopes, int(hyper["step"]))
    ahead = [
        # In one expression, so that the average between them does not last.
        averaged(averaged(kept[row], gradient, d), gradient, d).view(sides)
        for gradient, kept, sides in zip(gradients, averages, matrices, strict=True)
    ]
    decay = prior_decay(named, hyper["prior_precision"], hyper["num_data"])
    return [matrix.contiguous() for matrix in whole_rows(named, ahead, whitening, parameters, decay)]


def _normalises(settings: L2ESettings | PreconditionedSettings) -> bool:
    return isinstance(settings, L2ESettings) and settings.normalise_output
