"""Setting up a process that runs inner loops, telling it to stop, and keeping it in step with the other ranks."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, TypeVar

import torch
import torch.distributed

__all__ = ["StopSignals", "Stopped", "default_device_cpu", "keep_freed_memory", "of_first_rank", "one_core"]

_Value = TypeVar("_Value")
# glibc's names for `mallopt`, and more than any block of memory that a step asks for.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _MUCH = -1, -3, (1 << 31) - 1


def keep_freed_memory() -> bool:
    """Make the C library keep freed memory instead of handing it back to the system; True if it could be done.

    Every step of a network frees and allocates the same activations of some megabytes. glibc gives such blocks back and
    the next allocation pays for fresh zeroed pages: a third of the time of an inner loop's step with 28×28 images, a
    quarter of a training step of a ResNet-20 on images of 32×32. Affects the whole process; only glibc has the switch.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _MUCH)) and bool(mallopt(_M_TRIM_THRESHOLD, _MUCH))


def one_core() -> None:
    """Set this process up to run inner loops on one core, one of several processes."""
    torch.set_num_threads(1)
    keep_freed_memory()


@contextmanager
def default_device_cpu() -> Iterator[None]:
    """Within the context new tensors are on the CPU unless a device is named, whatever the default device is.

    The random streams of a meta-training are on the CPU, and its worker processes know nothing of that setting.
    """
    # A device as a context costs something at every operation.
    with nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu"):
        yield


class Stopped(BaseException):
    """Raised by the first Ctrl-C or SIGTERM in work that may be abandoned."""


class StopSignals:
    """Within the context Ctrl-C and SIGTERM are noted, and end at once what is `interruptible`; a second Ctrl-C
    interrupts anything.

    Outside the main thread, which alone may have handlers, none is noted.

    Args:
        message: what the first signal writes to the standard error.

    Attributes:
        received: numbers of the signals so far.
    """

    def __init__(self, message: str = "") -> None:
        self._message = message
        self.received: list[int] = []
        self._may_stop = False
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        with suppress(ValueError):  # not the main thread
            self._handlers = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: Any) -> None:
        # SIGTERM may come twice of itself, to the process group and from a launcher.
        if number == signal.SIGINT and number in self.received:
            raise KeyboardInterrupt
        self.received.append(number)
        if self._message and len(self.received) == 1:
            os.write(2, f"\n{self._message}\n".encode())  # `print` may be what was interrupted
        if self._may_stop:
            self._may_stop = False
            raise Stopped

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Within the context the first signal raises `Stopped`, where the code is; one that has come does at once."""
        if self.received:
            raise Stopped
        self._may_stop = True
        try:
            yield
        finally:
            self._may_stop = False


def of_first_rank(make: Callable[[], _Value]) -> _Value:
    """Call ``make()`` on the first rank of the process group, and return its result on all; without a group, here.

    Raises:
        Exception: whatever ``make`` raised on the first rank, on every rank.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return make()
    answer: list[Any] = [None, None]
    if torch.distributed.get_rank() == 0:
        try:
            answer[0] = make()
        except Exception as error:  # the other ranks wait: they must hear of it
            answer[1] = error
    torch.distributed.broadcast_object_list(answer, src=0)
    value, failure = answer
    if failure is not None:
        raise failure
    return value
