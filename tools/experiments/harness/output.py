"""Tables, numbers and messages of a tool, and the command that made them."""

from __future__ import annotations

import json
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from learned_samplers.base.files import shared_lock, write_atomically


def command_line(tool: str, arguments: Sequence[str] | None) -> str:
    """The command that runs ``tools/<tool>.py`` with these arguments; None stands for the process's own."""
    return shlex.join(["python", f"tools/{tool}.py", *(sys.argv[1:] if arguments is None else arguments)])


def counted(number: int, noun: str) -> str:
    """A number with its noun, in the plural but for 1."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def settings_of(options: Any) -> dict[str, Any]:
    """The fields of an options class, paths as text, as JSON takes them."""
    return {key: str(value) if isinstance(value, Path) else value for key, value in asdict(options).items()}


def write_outputs(out: Path, command: str, text: str, content: Mapping[str, Any]) -> None:
    """Write ``table.md``, the text under its command, and ``results.json``, each whole or not at all."""
    out.mkdir(parents=True, exist_ok=True)
    numbers = json.dumps({"command": command, **content}, indent=1, allow_nan=False)
    write_atomically(out / "results.json", numbers.encode())
    write_atomically(out / "table.md", f"`{command}`\n\n{text.rstrip()}\n".encode())


@contextmanager
def explained(out: Path | None = None) -> Iterator[None]:
    """End the process with one line instead of a traceback after a user's error, an interrupt or SIGTERM."""
    kept = "" if out is None else f"; finished runs are kept in {out}, the same command goes on from there"
    try:
        with terminated_as_exit(f"terminated{kept}"):
            lock = None
            if out is not None:
                out.mkdir(parents=True, exist_ok=True)
                lock = shared_lock(out)
            yield
            del lock
    except KeyboardInterrupt:
        sys.exit(f"interrupted{kept}")
    except (ValueError, TypeError, OSError, FloatingPointError, RuntimeError) as error:
        sys.exit(f"error: {one_line(error)}")


def one_line(error: BaseException) -> str:
    """An error in one line: its message, and of a process that failed the last line of the traceback that it sent."""
    lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return f"{lines[0]} {lines[-1].strip()}" if any("Traceback (most" in line for line in lines) else lines[0]


def quiet_threads() -> None:
    """Let a thread that fails (a logger's, on a full disk) say so in one line."""

    def hook(failure: Any) -> None:
        print(f"error in {failure.thread.name}: {one_line(failure.exc_value)}", file=sys.stderr)

    threading.excepthook = hook


@contextmanager
def terminated_as_exit(message: str) -> Iterator[None]:
    """Within the context SIGTERM ends the process as an error does: what is open is closed, and locks are released.

    Outside the main thread, which alone may have handlers, nothing changes.
    """

    def leave(number: int, frame: Any) -> None:
        sys.exit(message)

    try:
        old = signal.signal(signal.SIGTERM, leave)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old)
