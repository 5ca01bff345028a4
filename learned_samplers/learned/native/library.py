"""Finds the compiled library, or compiles it."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from learned_samplers.base.warning import warn
from learned_samplers.learned.native.build import FOLDER, BuildError, compile_library, levels, library_name

#: "0" turns the compiled network off.
ENVIRONMENT_VARIABLE = "LEARNED_SAMPLERS_NATIVE"


class Call(ctypes.Structure):
    """``Call`` of kernel.cpp, field by field."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("threads", "plain", "averages", "seconds")),
        *(
            (name, ctypes.c_int32)
            for name in ("layers", "rows", "ratios", "logs", "context", "scaled", "outputs", "gated", "slopes")
        ),
        ("slope_input", ctypes.c_int32 * 4),
        ("widths", ctypes.c_int32 * 8),
        ("ratio_row", ctypes.c_int32 * 8),
        ("ratio_factor", ctypes.c_float * 8),
        ("average_weight", ctypes.c_float * 12),
        ("second_factor", ctypes.c_float),
    )


def load() -> ctypes.CDLL | None:
    """The library that the package brings, or that is compiled now, in some seconds, and kept.

    It is kept in ~/.cache/learned_samplers/native. Where neither is possible one warning says why, and this is None.
    """
    capability = torch.backends.cpu.get_cpu_capability()
    level = capability if capability in levels() else "DEFAULT"
    name, cache = library_name(level), _cache_folder()
    reasons = []
    attempts: list[Callable[[], ctypes.CDLL]] = [lambda: _opened(FOLDER / name), lambda: _opened(cache / name)]
    attempts += [lambda: _opened(compile_library(level, cache)), lambda: _compiled_apart(level)]
    for attempt in attempts:
        try:
            return attempt()
        except FileNotFoundError:
            continue
        except BuildError as error:
            reasons.append(str(error))
            break
        except OSError as error:
            reasons.append(str(error))
    warn(
        f"Learned samplers take slower steps in torch, because their C++ cannot be built: {'; '.join(reasons)}. "
        f"(Install a C++ compiler, or set {ENVIRONMENT_VARIABLE}=0 to say nothing.)",
        RuntimeWarning,
    )
    return None


def _opened(path: Path) -> ctypes.CDLL:
    """The library in a file.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: it cannot be loaded, or is another library.
    """
    if not path.is_file():
        raise FileNotFoundError(path)
    library = ctypes.CDLL(str(path))
    if library.call_size() != ctypes.sizeof(Call):
        raise OSError(f"{path} lays out its settings in another way")
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    library.sums.argtypes = (pointer, pointer, count, pointer)
    library.network.argtypes = (pointer, pointer, count, pointer, pointer, pointer, pointer, count)
    return library


def _compiled_apart(level: str) -> ctypes.CDLL:
    """Compiled into a folder for this process alone, where the cache cannot be written to."""
    with tempfile.TemporaryDirectory(prefix="learned_samplers-") as folder:
        return _opened(compile_library(level, Path(folder)))  # once loaded, it needs its file no more


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "learned_samplers" / "native"
