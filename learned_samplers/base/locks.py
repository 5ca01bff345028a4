"""A lock on a folder, so that no two processes write their results into the same one."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import weakref
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

LOCK = ".lock"


@dataclass(frozen=True)
class Owner:
    """Identifies a process, even after its number (pid) was given to another one.

    host: the host's name; pid: the process's number; started: when the system started it (ticks since boot); boot: the
    system's run; namespace: what its number is counted in (a container has its own). The last three are "" where the
    system does not say.
    """

    host: str
    pid: int
    started: str = ""
    boot: str = ""
    namespace: str = ""

    @staticmethod
    def of_this_process() -> Owner:
        namespace = ""
        with contextlib.suppress(OSError):
            namespace = os.readlink("/proc/self/ns/pid")
        pid = os.getpid()
        return Owner(socket.gethostname(), pid, _started(pid), _read("/proc/sys/kernel/random/boot_id"), namespace)

    def is_dead(self) -> bool:
        """Whether this process has certainly ended; False where that cannot be known (another host or container)."""
        us = Owner.of_this_process()
        if self.host != us.host:
            return False
        if self.boot and us.boot and self.boot != us.boot:
            return True
        if self.namespace != us.namespace:
            return False
        return not process_exists(self.pid) or (self.started != "" and self.started != _started(self.pid))


def process_exists(pid: int) -> bool:
    """Whether a process of that number runs on this host; True if the system cannot tell."""
    if pid <= 0:
        return False
    if os.name != "posix":  # os.kill would end the process there
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True  # it is another user's
    return True


class FolderLock:
    """Marks a folder as being written by this process, until :meth:`release` or the end of the process.

    The mark is the file ``.lock`` in the folder, with the host and the process of its owner. The mark of a process of
    this host that has ended is replaced. Works between processes, between objects of one process, and on shared file
    systems that can make a hard link or create a file exclusively.

    Args:
        folder: an existing folder.

    Raises:
        RuntimeError: another one is writing there, or the owner cannot be examined from here; the message names the
            owner, and the file to delete if the owner is known to be gone.
        OSError: the folder cannot be written to.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path = Path(folder) / LOCK
        self._owner = Owner.of_this_process()
        # A number of its own, for a second lock of the same process.
        self._content = json.dumps({**asdict(self._owner), "token": os.urandom(8).hex()}).encode()
        with _one_at_a_time(self.path.parent):
            while not self._create():
                self._remove_stale()
        self._finalizer = weakref.finalize(self, _release, self.path, self._content, self._owner.pid)

    def _create(self) -> bool:
        """Make the lock file with its content at once, unless there is one."""
        temporary = self.path.with_name(f"{LOCK}.{os.urandom(4).hex()}.{self._owner.host}.{self._owner.pid}.tmp")
        try:
            temporary.write_bytes(self._content)
            try:
                os.link(temporary, self.path)
            except FileExistsError:
                return False
            except OSError:  # a file system without hard links
                try:
                    descriptor = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
                except FileExistsError:
                    return False
                with open(descriptor, "wb") as file:
                    file.write(self._content)
            return True
        finally:
            temporary.unlink(missing_ok=True)

    def _remove_stale(self) -> None:
        """Remove the lock of a dead process; RuntimeError if its owner lives, or may live."""
        folder = self.path.parent
        try:
            found = json.loads(self.path.read_bytes())
            found.pop("token", None)
            owner = Owner(**found)
            if not isinstance(owner.host, str) or not isinstance(owner.pid, int):
                raise TypeError("host or pid")
        except FileNotFoundError:
            return  # released this moment
        except (ValueError, TypeError, AttributeError) as error:
            raise RuntimeError(
                f"{self.path} is not a readable lock: delete it if no other process writes to {folder}"
            ) from error
        if owner.is_dead():
            self.path.unlink(missing_ok=True)
            return
        whose = f"process {owner.pid} on host {owner.host}"
        if owner == self._owner:
            raise RuntimeError(
                f"{folder} is being written by another object of this process ({whose}): detach or close that one first"
            )
        raise RuntimeError(
            f"{folder} is being written by {whose}: two writers would mix their results. Wait for it or end it; if it "
            f"is gone, delete {self.path}"
        )

    @property
    def held(self) -> bool:
        """Whether the lock file is (still) this one's."""
        own = self._finalizer.alive and self._owner.pid == os.getpid()  # a forked child has a copy, and no lock
        return own and _is_ours(self.path, self._content)

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


def _release(path: Path, content: bytes, pid: int) -> None:
    # A forked child ends with a copy of its parent's lock, which is not its own to remove.
    if os.getpid() == pid and _is_ours(path, content):
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def _is_ours(path: Path, content: bytes) -> bool:
    try:
        return path.read_bytes() == content
    except OSError:
        return False


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """One process of this host at a time in the block, where the system can do that.

    Two that found the same dead owner could else each remove a lock, the slower one that of the faster one. Only
    processes of one host can find an owner dead.
    """
    try:
        import fcntl

        descriptor = os.open(folder, os.O_RDONLY)
    except (ImportError, PermissionError):
        yield
        return
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _started(pid: int) -> str:
    stat = _read(f"/proc/{pid}/stat")
    # The name, in parentheses, may hold anything; the start time is the twentieth word after it.
    words = stat.rpartition(")")[2].split()
    return words[19] if len(words) > 19 else ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
