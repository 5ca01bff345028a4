"""Where an experiment computes."""

from __future__ import annotations

import ctypes

import torch

# glibc's names for `mallopt`, and more than any block of memory that a step of a network asks for.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _MUCH = -1, -3, (1 << 31) - 1


def keep_freed_memory() -> bool:
    """Keep what this process frees for its next step, where the C library is glibc; whether it is.

    A step of a network frees large blocks and asks for them again. Given back to the system in between, all of their
    pages are new, and are cleared, at every step: a quarter of a training step of a ResNet-20 on images of 32×32.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _MUCH)) and bool(mallopt(_M_TRIM_THRESHOLD, _MUCH))


def prepare_torch(device: str, threads: int) -> str:
    """Set torch's number of threads, and keep freed memory; the device that ``auto`` means, others as they are.

    Raises:
        ValueError: torch knows no such device, or sees none here.
    """
    torch.set_num_threads(threads)
    keep_freed_memory()
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device={device!r} cannot be used: {reason}") from error
    return device


def synchronize(device: str | torch.device) -> None:
    """Wait until the device has finished its work, so that times are right."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def device_name(device: str) -> str:
    """For tables: the name of a GPU, or CPU."""
    return torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else "CPU"
