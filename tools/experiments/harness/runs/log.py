"""The course of one run: its divergence, its temperatures, and the progress bar."""

from __future__ import annotations

import math
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from tqdm import tqdm

from meta_tasks.datasets import ImageData

POINTS = 100  # of a run at which its loss and temperatures are looked at
VALIDATIONS = 10  # of which so many with the validation loss of the current weights
SHOWN = 1000  # validation examples of that loss, which is for the progress bar alone


class Diverged(Exception):
    """A run whose loss, gradient or weights are no longer finite."""


class Log:
    """Course of one run, whose step is the number of minibatch gradient evaluations.

    Attributes:
        gradients: minibatch gradient evaluations so far.
        temperatures: of a sampler, an entry a point: {"step", "sampling" (the state counts as a sample's), "groups":
            {part of the network: {"kinetic", "configurational", "size" (its number of weights)}}}; None for a
            temperature that does not exist.
        losses: mean training loss since the point before, in nats, an entry a point.
        acceptance_rate: of HMC after burn-in.
    """

    def __init__(self, bar: tqdm, data: ImageData, steps: int) -> None:
        self.bar, self.data, self.every = bar, data, max(1, steps // POINTS)
        self.validate_every = self.every * (POINTS // VALIDATIONS)
        self.validation_seconds = 0.0
        self.start, self.seconds = time.perf_counter(), 0.0  # of this command, and of earlier ones
        self.gradients = 0
        self.acceptance_rate: float | None = None
        self.temperatures: list[dict[str, Any]] = []
        self.losses: list[float] = []
        self.loss, self.count = torch.zeros((), device=data.train_x.device), 0

    def state_dict(self) -> dict[str, Any]:
        """The log in the middle of a run."""
        names = ("count", "gradients", "temperatures", "losses", "validation_seconds")
        seconds = self.seconds + time.perf_counter() - self.start
        return {"loss": self.loss.cpu(), "seconds": seconds, **{name: getattr(self, name) for name in names}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from the state of an earlier command, whose gradients are not done again."""
        self.bar.update(state["gradients"] - self.gradients)
        for name, value in state.items():
            setattr(self, name, value.to(self.loss.device) if isinstance(value, Tensor) else value)
        self.start = time.perf_counter()

    def count_gradients(self, number: int = 1) -> None:
        """Note gradient evaluations, here and on the progress bar, which counts nothing if it is disabled."""
        self.gradients += number
        self.bar.update(number)

    def add(self, loss: Tensor) -> None:
        """Collect one minibatch; nothing is read back from the device."""
        self.loss = self.loss + loss.detach()
        self.count += 1

    def look(self, step: int, optimizer: torch.optim.Optimizer) -> None:
        """Note mean loss and temperatures; call it between ``backward`` and ``step``."""
        loss, self.loss, self.count = float(self.loss) / self.count, torch.zeros_like(self.loss), 0
        if not math.isfinite(loss):
            raise Diverged(f"the training loss is {loss} at step {step}")
        self.losses.append(loss)
        groups = {}
        for group, temperatures in zip(optimizer.param_groups, getattr(optimizer, "temperatures", list)()):
            finite = {name: value if math.isfinite(value) else None for name, value in temperatures.items()}
            groups[group["name"]] = {"size": sum(p.numel() for p in group["params"]), **finite}
        if groups:
            sampling = getattr(optimizer, "is_sampling", True)
            self.temperatures.append({"step": step, "sampling": sampling, "groups": groups})

    @torch.no_grad()
    def validate(self, model: nn.Module) -> None:
        """Show the loss (nats) of the current weights on some validation examples, if there are any."""
        start, y = time.perf_counter(), self.data.val_y[:SHOWN]
        if len(y):
            model.eval()
            outputs = torch.cat([model(part) for part in self.data.val_x[:SHOWN].split(256)])
            model.train()
            self.bar.set_postfix(validation_loss=f"{cross_entropy(outputs, y).item():.3f}", refresh=False)
        self.validation_seconds += time.perf_counter() - start
