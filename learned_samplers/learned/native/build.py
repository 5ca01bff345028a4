"""Compiling the C++ of this folder; standard library only, so that setup.py can load this file by its path.

The library is plain C++17 without headers of Python or torch: it takes addresses, and any Python loads it.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
_SOURCES = ("kernel.cpp",)
#: Instruction sets, the best first, by the names that ``torch.backends.cpu.get_cpu_capability`` gives them.
_X86_FLAGS = {
    "AVX512": ("-march=x86-64-v3", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"),
    "AVX2": ("-march=x86-64-v3",),
    "DEFAULT": (),
}
_FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-pthread",
    "-fno-math-errno",
    "-ffp-contract=off",
)
_TIME_LIMIT = 300


class BuildError(RuntimeError):
    """The C++ could not be compiled; the message says why, in one line."""


def is_x86() -> bool:
    return platform.machine().lower() in ("x86_64", "amd64")


def levels() -> tuple[str, ...]:
    """The instruction sets to compile for on this kind of processor.

    The base alone on Windows, where GCC keeps AVX registers on a stack that is not aligned for them (its bug 54412).
    """
    return tuple(_X86_FLAGS) if is_x86() and sys.platform != "win32" else ("DEFAULT",)


def library_name(level: str) -> str:
    """File name of the library for an instruction set: it changes with the source and with the way to compile."""
    digest = hashlib.sha256(repr(_command("", level, Path())).encode())
    for path in sorted([*FOLDER.glob("*.cpp"), *FOLDER.glob("*.h")]):
        digest.update(path.read_bytes())
    return f"kernel-{sys.platform}-{platform.machine().lower()}-{level.lower()}-{digest.hexdigest()[:16]}.so"


def compiler() -> str | None:
    """The C++ compiler: the environment variable CXX, else the first of c++, g++ and clang++ that is there."""
    return next(filter(None, map(shutil.which, (os.environ.get("CXX") or "c++", "g++", "clang++"))), None)


def compile_library(level: str, folder: Path) -> Path:
    """Compile the library for an instruction set; it appears in ``folder`` only when it is complete.

    Raises:
        BuildError: there is no compiler, or it fails.
        OSError: nothing can be written into ``folder``.
    """
    program = compiler()
    if program is None:
        raise BuildError("no C++ compiler was found")
    folder = folder.resolve()  # the compiler runs in another one
    target = folder / library_name(level)
    folder.mkdir(parents=True, exist_ok=True)
    # Written beside its place and then moved there, for several processes may do this at once.
    with tempfile.TemporaryDirectory(dir=folder, prefix=".build-") as scratch:
        built = Path(scratch) / target.name
        command = _command(program, level, built)
        try:
            done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=_TIME_LIMIT)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BuildError(f"{program} does not run: {error}") from error
        if done.returncode or not built.exists():
            said = (done.stderr or done.stdout).strip().splitlines() or [f"exit status {done.returncode}"]
            reason = next((line for line in said if "error" in line), said[0])
            raise BuildError(f"{program} failed: {reason.strip()}")
        os.replace(built, target)
    return target


def _command(program: str, level: str, target: Path) -> list[str]:
    special = _X86_FLAGS[level] if is_x86() else ()
    static = ("-static",) if sys.platform == "win32" else ()  # Windows does not bring the compiler's libraries
    return [program, *_FLAGS, *static, *special, *_SOURCES, "-o", str(target)]
