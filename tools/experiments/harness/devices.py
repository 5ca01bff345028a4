"""Where an experiment computes, and compiled networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from meta_tasks.training.process import keep_freed_memory

LEAST_CHANNELS = 8


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


def bears_channels_last(model: nn.Module) -> bool:
    """Whether no convolution of ``model`` is one whose gradient torch computes wrongly with channels last.

    With kernels of one pixel, a stride and fewer than eight input channels, the gradient of the weights is written past
    its workspace on CPUs (oneDNN's issue 6035, torch 2.14): wrong numbers, or the end of the process.
    """
    return not any(
        isinstance(module, nn.Conv2d)
        and set(module.kernel_size) == {1}
        and max(module.stride) > 1
        and module.in_channels // module.groups < LEAST_CHANNELS
        for module in model.modules()
    )


def compiled(function: Callable[..., Any], model: nn.Module) -> Callable[..., Any]:
    """``torch.compile(function)``, of ``model`` or the model itself, which leaves the layout alone where it must: on a
    CPU torch chooses channels last."""
    options: dict[str, Any] | None = None if bears_channels_last(model) else {"layout_optimization": False}
    return torch.compile(function, options=options)
