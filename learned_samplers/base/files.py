"""Files that are written whole or not at all and show damage, and folders that one process at a time writes to."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import socket
import stat
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import filelock

# ------------------------------------------------------------------------------------------------- writing


def write_atomically(path: Path, data: bytes, *, clean: bool = True) -> None:
    """Write a file atomically: after a failure it is what it was before.

    With ``clean`` the temporary files that processes of this host left beside it, killed in the middle of the same,
    are removed first, which takes a look at the whole folder.

    Raises:
        ValueError: the path is that of a device, a pipe or a socket.
        OSError: the system's errno (ENOSPC for a full disk) with the path; the temporary file is removed.
    """
    write_together({path: data}, clean=clean)


def write_together(files: Mapping[Path, bytes], *, clean: bool = True) -> None:
    """Write files of one folder that belong together: after a failure all are what they were before.

    All contents are on the disk before the first one takes its place, so that a full disk changes none.

    Raises:
        ValueError, OSError: as `write_atomically`.
    """
    temporaries = {path: path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.tmp") for path in files}
    path = next(iter(files))
    try:
        for path, data in files.items():
            refuse_special(path)
            if clean:
                _remove_leftovers(path)
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            with open(temporaries[path], "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        for path, temporary in temporaries.items():
            os.replace(temporary, path)
    except BaseException as error:
        for temporary in temporaries.values():
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise _named(error, path, files[path]) from error
        raise
    # A rename itself lasts only once the folder is on the disk; some file systems cannot sync a folder.
    with contextlib.suppress(OSError):
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def refuse_special(path: Path) -> None:
    """Raise ValueError if there is a device, a pipe or a socket at a path, where a file is to be."""
    try:
        mode = path.stat().st_mode  # asked once: a lock may be removed at any time
    except OSError:
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise ValueError(f"{path} is a device, a pipe or a socket, and no file: nothing was written")


def append(path: Path, size: int, data: bytes) -> None:
    """Append ``data`` after the first ``size`` bytes of a file; anything behind them is dropped.

    A crash may leave a part of ``data``: its reader must recognise a last record that is not whole.

    Raises:
        OSError: as `write_atomically`; the file ends after ``size`` bytes again.
    """
    try:
        with open(path, "r+b", buffering=0) as file:  # a buffer would be written once more when the file is closed
            try:
                file.truncate(size)
                file.seek(size)
                left = memoryview(data)
                while left:
                    left = left[file.write(left) :]
                os.fsync(file.fileno())
            except BaseException:
                with contextlib.suppress(OSError):
                    os.ftruncate(file.fileno(), size)
                raise
    except OSError as error:
        raise _named(error, path, data) from error


def _remove_leftovers(path: Path) -> None:
    """Remove the temporary files of a file that processes of this host left, and are dead."""
    pattern = re.compile(rf"\.{re.escape(path.name)}\.{re.escape(socket.gethostname())}\.(\d+)\.tmp")
    with contextlib.suppress(OSError):
        for file in list(path.parent.iterdir()):
            if (match := pattern.fullmatch(file.name)) and not _process_exists(int(match[1])):
                file.unlink(missing_ok=True)


def _process_exists(pid: int) -> bool:
    """Return whether a process of that number runs on this host; True if the system cannot tell."""
    if os.name != "posix":  # os.kill would end the process there
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True  # it is another user's
    return True


def _named(error: OSError, path: Path, data: bytes) -> OSError:
    reason = f"{error.strerror or error} (while writing {len(data)} bytes; nothing was changed)"
    return OSError(error.errno, reason, str(path))


# ------------------------------------------------------------------------------------------------- checksums

_SEAL = b"\nlearned-samplers blake2b "
_DIGITS = 32


def sealed(data: bytes) -> bytes:
    """The bytes with a checksum behind them, for `unsealed`; ``torch.load`` still opens what ``torch.save`` made."""
    return data + _SEAL + _digest(data)


def unsealed(path: Path) -> bytes:
    """The bytes that were `sealed` into a file.

    Raises:
        ValueError: the bytes have changed since they were written; the message names the file.
        OSError: the file cannot be read.
    """
    data = path.read_bytes()
    content, seal, digest = data[: -_DIGITS - len(_SEAL)], data[-_DIGITS - len(_SEAL) : -_DIGITS], data[-_DIGITS:]
    if seal != _SEAL:
        raise ValueError(f"{path} ends in no checksum: it is cut, or not a file of this version")
    if digest != _digest(content):
        raise ValueError(f"{path} has changed since it was written (damaged file?): its checksum is another")
    return content


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGITS // 2).hexdigest().encode()


# ------------------------------------------------------------------------------------------------- locks

LOCK = ".lock"


class FolderLock:
    """Marks a folder as being written by this process, until :meth:`release` or the end of the process.

    It is a lock of ``filelock`` on the file ``.lock`` in the folder, which the system lets go of when its process ends,
    however it ends. The file says who holds it. Works between processes and between objects of one process.

    Args:
        folder: an existing folder.

    Raises:
        RuntimeError: another one is writing there; the message names its process.
        OSError: the folder cannot be written to.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path = Path(folder) / LOCK
        self._pid = os.getpid()
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, "no lock can be made in a folder that is not writable", str(folder))
        refuse_special(self.path)  # to read a pipe would wait for ever
        content = None
        while content is None:
            before = _read(self.path)  # some versions of filelock empty the file where they try
            lock = self._lock(before)
            content = self._sign(lock, before)
        self._content = content
        self._finalizer = weakref.finalize(self, _release, lock, self.path, content, self._pid)

    def _lock(self, content: bytes) -> filelock.BaseFileLock:
        try:
            lock: filelock.BaseFileLock = filelock.FileLock(self.path, timeout=0, thread_local=False)
            try:
                lock.acquire()
            except NotImplementedError:  # a file system that cannot lock: the file itself is the lock
                lock = filelock.SoftFileLock(self.path, timeout=0, thread_local=False)
                lock.acquire()
        except filelock.Timeout:
            raise RuntimeError(self._whose(content)) from None
        return lock

    def _sign(self, lock: filelock.BaseFileLock, before: bytes) -> bytes | None:
        """Write our name into the file; what it holds then, None where its last holder has just removed it."""
        holder = _read(self.path)
        if holder and holder != before:
            return holder  # the lock is the file itself, and says whose it is in filelock's own words
        owner = {"pid": self._pid, "host": socket.gethostname(), "token": os.urandom(8).hex()}
        try:
            with open(self.path, "r+b") as file:
                file.write(json.dumps(owner).encode())
                file.truncate()
        except FileNotFoundError:
            lock.release()
            return None
        except OSError:
            return b""  # Windows, where nothing can be read of a locked file, nor can it be removed
        return _read(self.path)

    def _whose(self, content: bytes) -> str:
        owner = _parsed(content)
        if (owner.get("pid"), owner.get("host")) == (self._pid, socket.gethostname()):
            return (
                f"{self.path.parent} is being written by another object of this process (process {self._pid}): detach "
                "or close that one first"
            )
        process = f"process {owner['pid']} on host {owner.get('host')}" if "pid" in owner else "another process"
        from learned_samplers.base.guards.replicas import in_process_group  # which imports what imports this

        together = (
            ". Or if these processes hold copies of one chain, make PosteriorSamples after DistributedDataParallel, or "
            "give the sampler distributed='replicated'"
        )
        return (
            f"{self.path.parent} is being written by {process}: two writers would mix their results. Wait for it or "
            f"end it; if it is gone, delete {self.path}{together if in_process_group() else ''}"
        )

    @property
    def held(self) -> bool:
        """True if the lock file is (still) this one's."""
        held = self._finalizer.alive and self._pid == os.getpid()  # a forked child has a copy, and no lock
        return held and _read(self.path) == self._content

    def require_held(self) -> None:
        """Raise RuntimeError unless the lock is held: it was released, or its file was removed or replaced."""
        if not self.held:
            why = "has been removed or replaced" if self._finalizer.alive else "was released"
            raise RuntimeError(f"the lock {self.path} {why}: nothing is written to {self.path.parent} any more")

    def release(self) -> None:
        """Remove the lock file. Calling it again does nothing; a lock that another process holds by now stays."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.release()


_of_this_process: weakref.WeakValueDictionary[Path, FolderLock] = weakref.WeakValueDictionary()
_of_the_parent: list[filelock.BaseFileLock] = []


def shared_lock(folder: str | os.PathLike[str]) -> FolderLock | None:
    """This process's lock on a folder, one for all objects that ask for it; the last one to let go of it releases it.

    The processes that ``torchrun`` starts are one owner: the first of them (``RANK`` 0) holds the lock, and the others
    get None.

    Raises:
        RuntimeError, OSError: as `FolderLock`.
    """
    if os.environ.get("RANK", "0") != "0":
        return None
    path = Path(folder).resolve()
    lock = _of_this_process.get(path)
    if lock is None or not lock.held:
        _of_this_process[path] = lock = FolderLock(path)
    return lock


def _release(lock: filelock.BaseFileLock, path: Path, content: bytes, pid: int) -> None:
    if os.getpid() != pid:  # a forked child's copy: to release it, or to drop it, would end the parent's lock
        _of_the_parent.append(lock)
        return
    if _read(path) == content:  # while it is locked: who opens the file now finds that it is gone, and begins anew
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
    lock.release()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _parsed(content: bytes) -> dict[str, object]:
    try:
        record = json.loads(content)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}
