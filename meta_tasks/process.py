"""How a process that runs inner loops is set up."""

from __future__ import annotations

import ctypes
import sys

import torch

__all__ = ["keep_freed_memory", "one_core"]

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> bool:
    """Make the C library keep freed memory instead of handing it back to the system; True if it could be done.

    Every step of an inner loop frees and allocates the same activations of some megabytes. glibc gives such blocks back
    and the next allocation pays for fresh zeroed pages: a third of the time of a step with 28×28 images. Affects the
    whole process; only glibc has the switch.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, 1 << 30)) and bool(mallopt(_M_TRIM_THRESHOLD, 1 << 30))


def one_core() -> None:
    """Set this process up to run inner loops on one core, one of several processes."""
    torch.set_num_threads(1)
    keep_freed_memory()
