"""The device of an experiment, compiled networks, and CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from meta_tasks.training.process import keep_freed_memory

LEAST_CHANNELS = 8


def prepare_torch(device: str, threads: int) -> str:
    """Set torch's number of threads, and keep freed memory; the device that ``auto`` means, others as they are."""
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
    """Return False if a convolution of ``model`` is one whose gradient torch computes wrongly with channels last.

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


class Replayed:
    """Loss and gradients of a minibatch as one CUDA graph: a small network waits for its launches otherwise.

    The numbers are those of ``evaluate(x, y).backward()``; the gradients lie in the same place at each call.
    """

    def __init__(self, evaluate: Callable[[Tensor, Tensor], Tensor], params: list[Tensor]) -> None:
        self.evaluate, self.params, self.graph = evaluate, params, torch.cuda.CUDAGraph()
        self.x = self.y = torch.empty(0)
        self.loss: Tensor | None = None

    def _record(self, x: Tensor, y: Tensor) -> Tensor:
        self.x, self.y = x.clone(), y.clone()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._forget()
                self.evaluate(self.x, self.y).backward()
        torch.cuda.current_stream().wait_stream(stream)
        self._forget()
        with torch.cuda.graph(self.graph):
            loss = self.evaluate(self.x, self.y)
            loss.backward()
        self.gradients = [p.grad for p in self.params]
        return loss.detach()

    def _forget(self) -> None:
        for p in self.params:
            p.grad = None

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        if self.loss is None:
            self.loss = self._record(x, y)
        self.x.copy_(x)
        self.y.copy_(y)
        self.graph.replay()
        for p, gradient in zip(self.params, self.gradients, strict=True):
            p.grad = gradient
        return self.loss
