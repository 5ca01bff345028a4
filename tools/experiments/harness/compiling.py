"""torch.compile for networks of any width: on a CPU it chooses channels last, which not all bear."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

LEAST_CHANNELS = 8


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
    """``torch.compile(function)``, of ``model`` or the model itself, which leaves the layout alone where it must."""
    options: dict[str, Any] | None = None if bears_channels_last(model) else {"layout_optimization": False}
    return torch.compile(function, options=options)
