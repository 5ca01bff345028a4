"""Where an experiment computes."""

from __future__ import annotations

import torch

from meta_tasks.training.process import keep_freed_memory


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
