"""The C structures of settings.h, in Python."""

from __future__ import annotations

import ctypes
from functools import lru_cache

from learned_samplers.learned.feature_sets import FeatureSet
from learned_samplers.learned.features import data_feature, progress_feature

_MOST_AVERAGES, _MOST_SECONDS, _MOST_RATIOS, _MOST_CONTEXTS, _MOST_LAYERS = 8, 4, 8, 24, 5
_MOST_WIDTH = 64
_CONSTANT, _COHERENCE = 0, 5
_KINDS = {"log_kick": 1, "log_parameter": 2, "log_momentum": 3, "log_displacement": 4, "log_size": 6, "is_matrix": 7}


class Settings(ctypes.Structure):
    """``Settings`` of settings.h, field by field."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("averages", "seconds", "ratios", "logs", "contexts")),
        *((name, ctypes.c_int32) for name in ("layers", "normalise", "preconditioned", "threads", "narrow", "extra")),
        ("dither", ctypes.c_uint32),
        ("widths", ctypes.c_int32 * 8),
        ("ratio_average", ctypes.c_int32 * _MOST_RATIOS),
        ("context_kind", ctypes.c_int32 * _MOST_CONTEXTS),
        ("context_average", ctypes.c_int32 * _MOST_CONTEXTS),
        ("average_weight", ctypes.c_float * (_MOST_AVERAGES + _MOST_SECONDS)),
        ("ratio_correction", ctypes.c_float * _MOST_RATIOS),
        ("second_correction", ctypes.c_float),
        ("context_value", ctypes.c_double * _MOST_CONTEXTS),
        *((name, ctypes.c_float) for name in ("keep", "kick", "pull", "heat", "alpha", "friction_beta", "inertia")),
        *((name, ctypes.c_float) for name in ("velocity_beta", "step_size", "curl_clip", "friction_low")),
        *((name, ctypes.c_float) for name in ("friction_high", "output_factor", "output_bound")),
    )


class KineticSettings(ctypes.Structure):
    """``KineticSettings`` of kinetic.cpp, field by field."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("layers", "threads")),
        ("widths", ctypes.c_int32 * 8),
        *((name, ctypes.c_float) for name in ("keep", "kick", "pull", "heat", "decay")),
        *((name, ctypes.c_float) for name in ("mean_scale", "output_bound", "prior_share")),
    )


class MetaSettings(ctypes.Structure):
    """``MetaSettings`` of meta_sgmcmc.cpp, field by field."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("layers", "threads", "noisy", "absolute", "relative")),
        ("widths", ctypes.c_int32 * 8),
        *((name, ctypes.c_float) for name in ("curl_offset", "curl_scale", "curl_clip", "by_square", "constant")),
        *((name, ctypes.c_float) for name in ("friction_scale", "friction_clip", "num_data", "prior", "step_size")),
        *((name, ctypes.c_float) for name in ("temperature", "pull", "taken", "gradient_scale")),
        *((name, ctypes.c_float) for name in ("momentum_floor", "gradient_floor")),
    )


def has_room(widths: tuple[int, ...]) -> bool:
    """Whether the compiled code takes networks of these widths, inputs and outputs aside."""
    return 3 <= len(widths) <= _MOST_LAYERS + 1 and max(widths[1:]) <= _MOST_WIDTH


@lru_cache(maxsize=64)
def fits(named: FeatureSet, widths: tuple[int, ...]) -> bool:
    """Whether the structures have room for the feature set and for a network of these widths."""
    return (
        widths[0] == named.size
        and widths[-1] in (2, 3)
        and has_room(widths)
        and len(named.average_decays) <= _MOST_AVERAGES
        and len(named.second_moment_decays) <= _MOST_SECONDS
        and len(named.context) <= _MOST_CONTEXTS
    )


@lru_cache(maxsize=64)
def _template(named: FeatureSet, widths: tuple[int, ...]) -> bytes:
    """What the feature set and the network's widths alone decide of `Settings`."""
    s = Settings()
    s.averages, s.seconds = len(named.average_decays), len(named.second_moment_decays)
    s.contexts, s.layers = len(named.context), len(widths) - 1
    s.extra = named.whole is not None
    s.widths[: len(widths)] = widths
    s.average_weight[: named.num_averages] = [1 - d for d in named.average_decays + named.second_moment_decays]
    if named.second_moment_decays:
        s.ratios, s.logs = 1 + len(named.ratio_decays), s.seconds
        s.ratio_average[: s.ratios] = [-1, *(named.average_decays.index(d) for d in named.ratio_decays)]
    for i, name in enumerate(named.context):
        kind, _, number = name.rpartition("_")
        s.context_kind[i] = _KINDS.get(name, _COHERENCE if kind == "log_coherence" else _CONSTANT)
        if kind == "log_coherence":
            s.context_average[i] = named.average_decays.index(float(number))
    return bytes(s)


@lru_cache(maxsize=64)
def _moving(named: FeatureSet) -> tuple[tuple[int, str, float], ...]:
    """Place, kind and number of each feature of the context that depends on the step or the run, not on the tensor."""
    found = []
    for i, name in enumerate(named.context):
        kind, _, number = name.rpartition("_")
        if kind in ("log_coherence", "time"):
            found.append((i, kind, float(number)))
        elif name in ("log_data", "progress", "has_total"):
            found.append((i, name, 0.0))
    return tuple(found)


def settings_of(
    named: FeatureSet,
    widths: tuple[int, ...],
    step: float,
    num_data: float,
    total_steps: int | None,
    numbers: dict[str, float],
) -> Settings:
    """`Settings` for a step; ``numbers`` are further fields."""
    s = Settings.from_buffer_copy(_template(named, widths))
    t = step + 1
    if named.second_moment_decays:
        s.second_correction = 1 / (1 - named.second_moment_decays[0] ** t)
        s.ratio_correction[: s.ratios] = [1.0, *(1 / (1 - d**t) for d in named.ratio_decays)]
    for i, name, number in _moving(named):
        if name == "log_coherence":
            s.context_value[i] = (1 - number**t) ** 2
        elif name == "time":
            s.context_value[i] = t / (t + number)
        elif name == "log_data":
            s.context_value[i] = data_feature(num_data)
        elif name == "progress":
            s.context_value[i] = progress_feature(t, total_steps)
        else:
            s.context_value[i] = total_steps is not None
    for name, value in numbers.items():
        setattr(s, name, value)
    return s
