"""Forms of a network's gradient: how fast each is, and by how much it differs from the plain one."""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from experiments.benchmarks.timing import interleaved, lower_decile, write_table
from experiments.harness import compiling
from experiments.harness.compiling import LEAST_CHANNELS
from experiments.harness.options import at_least, at_least_one
from experiments.harness.tables import markdown
from meta_tasks.networks import architectures


@dataclass(frozen=True)
class FormsBenchmark:
    """Milliseconds for the loss and gradient of a ResNet-20 with filter response normalisation, in eight forms.

    Compiled or not, channels last or first, in bfloat16 autocast or in single precision.
    """

    # Channels of the first convolution.
    width: int = 16
    # Side of the images.
    size: int = 32
    # Images in the minibatch.
    batch_size: int = 80
    # Each form is timed once a round.
    rounds: int = 10
    # CPU threads of torch.
    threads: int = 1
    # File for the Markdown table, besides the terminal.
    out: Path | None = None

    def __post_init__(self) -> None:
        at_least_one(self, "size", "batch_size", "threads")
        if self.width < LEAST_CHANNELS:  # torch's channels-last gradient is wrong below: bears_channels_last
            raise ValueError(f"width must be at least {LEAST_CHANNELS}, got {self.width}")
        at_least(2, self, "rounds")


class Form:
    """One form of the loss of ``model``, a copy of which it keeps."""

    def __init__(self, model: nn.Module, x: Tensor, y: Tensor, *, compiled: bool, last: bool, narrow: bool) -> None:
        layout = torch.channels_last if last else torch.contiguous_format
        self.model = copy.deepcopy(model).to(memory_format=layout)
        self.x, self.y, self.narrow = x.contiguous(memory_format=layout), y, narrow
        self._forward = compiling.compiled(self._loss, self.model) if compiled else self._loss

    def _loss(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.model(x), y)

    def __call__(self) -> Tensor:
        """The loss; the gradients are where torch puts them."""
        self.model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16) if self.narrow else contextlib.nullcontext():
            loss = self._forward(self.x, self.y)
        loss.backward()
        return loss.detach()

    def gradient(self) -> Tensor:
        """Of the last call, of all parameters end to end."""
        return torch.cat([p.grad.flatten() for p in self.model.parameters() if p.grad is not None])


def forms(options: FormsBenchmark) -> dict[str, Form]:
    """Name → form, the plain one first."""
    torch.manual_seed(0)
    shape = (3, options.size, options.size)
    model = architectures.build("resnet20_frn", shape, 10, width=options.width)
    x, y = torch.randn(options.batch_size, *shape), torch.randint(10, (options.batch_size,))
    names = {"compiled": "compiled", "last": "channels last", "narrow": "bfloat16 autocast"}
    every = {}
    for choice in itertools.product((False, True), repeat=3):
        flags = dict(zip(names, choice, strict=True))
        every[", ".join(names[flag] for flag, on in flags.items() if on) or "plain"] = Form(model, x, y, **flags)
    return every


def _differences(every: Mapping[str, Form]) -> dict[str, tuple[float, float]]:
    """Name → the loss less the first form's, and ‖g − g₀‖/‖g₀‖."""
    found = {name: (form().double(), form.gradient().double()) for name, form in every.items()}
    loss, gradient = next(iter(found.values()))
    return {
        name: ((own - loss).item(), ((g - gradient).norm() / gradient.norm()).item())
        for name, (own, g) in found.items()
    }


def benchmark_forms(options: FormsBenchmark, command: str = "python tools/benchmark.py forms") -> None:
    torch.set_num_threads(options.threads)
    every = forms(options)
    differences = _differences(every)
    times = interleaved(every, options.rounds, "forms", warm_up=2)
    fastest = {name: lower_decile(values) for name, values in times.items()}
    rows = [
        {
            "form": name,
            "ms": f"{value:.0f} ({value / fastest['plain']:.2f}×)",
            "loss": f"{differences[name][0]:+.1e}",
            "gradient": f"{differences[name][1]:.1e}",
        }
        for name, value in fastest.items()
    ]
    title = (
        f"torch {torch.__version__}, {options}; differences to the plain form's loss, and of the gradient in its norm"
    )
    write_table(options.out, command, f"{title}\n\n{markdown(rows)}")
