"""Writing files whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_atomically(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` so that the file is whole or, on any failure, what it was before.

    Raises:
        OSError: the system's errno (ENOSPC for a full disk) with the path; the temporary file is removed.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        reason = f"{error.strerror or error} (while writing {len(data)} bytes; nothing was changed)"
        raise OSError(error.errno, reason, str(path)) from error
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
