"""Writing files whole or not at all."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from pathlib import Path

from learned_samplers.base.locks import process_exists


def write_atomically(path: Path, data: bytes, *, clean: bool = True) -> None:
    """Write ``data`` to ``path`` so that the file is whole or, on any failure, what it was before.

    With ``clean`` the temporary files that processes of this host left beside it, killed in the middle of the same,
    are removed first, which takes a look at the whole folder.

    Raises:
        OSError: the system's errno (ENOSPC for a full disk) with the path; the temporary file is removed.
    """
    if clean:
        remove_leftovers(path.parent, path.name)
    temporary = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise _named(error, path, data) from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    # The rename itself lasts only once the folder is on the disk; some file systems cannot sync a folder.
    with contextlib.suppress(OSError):
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def append(path: Path, size: int, data: bytes) -> None:
    """Make ``data`` follow the first ``size`` bytes of the file, dropping what was behind them.

    A crash may leave a part of ``data``: its reader must recognise a last record that is not whole.

    Raises:
        OSError: as `write_atomically`; the file ends after ``size`` bytes again.
    """
    with open(path, "r+b") as file:
        try:
            file.truncate(size)
            file.seek(size)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.ftruncate(file.fileno(), size)
            if isinstance(error, OSError):
                raise _named(error, path, data) from error
            raise


def remove_leftovers(folder: Path, name: str | None = None) -> None:
    """Remove the temporary files that dead processes of this host have left in a folder, all or those of one file."""
    what = ".+" if name is None else re.escape(name)
    pattern = re.compile(rf"\.{what}\.{re.escape(socket.gethostname())}\.(\d+)\.tmp")
    with contextlib.suppress(OSError):
        for path in list(folder.iterdir()):
            if (match := pattern.fullmatch(path.name)) and not process_exists(int(match[1])):
                path.unlink(missing_ok=True)


def _named(error: OSError, path: Path, data: bytes) -> OSError:
    reason = f"{error.strerror or error} (while writing {len(data)} bytes; nothing was changed)"
    return OSError(error.errno, reason, str(path))
