"""The training curves of one run: TensorBoard, and the progress bar's postfix."""

from __future__ import annotations

import math
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from learned_samplers.base.sampler import Sampler
from learned_samplers.integrations.tensorboard import gradient_norm, rates
from meta_tasks.datasets import ImageData

LOGS = 100  # points of a training curve
VALIDATIONS = 10  # of which so many with the validation loss of the current weights


class Diverged(Exception):
    """A run whose loss, gradient or weights are no longer finite."""


class Log:
    """Training curves of one run, whose step is the number of minibatch gradient evaluations.

    Attributes:
        gradients: minibatch gradient evaluations so far, see `count_gradients`.
        temperatures: of a sampler, one entry a point: {"step", "sampling" (whether the state counts as a sample's),
            "groups": {part of the network: {"kinetic", "configurational", "size" (its number of weights)}}}; None
            for a temperature that does not exist.
        acceptance_rate: of HMC after burn-in.
    """

    def __init__(self, writer: SummaryWriter, bar: tqdm, data: ImageData, steps: int) -> None:
        self.writer, self.bar, self.data = writer, bar, data
        self.every = max(1, steps // LOGS)
        self.validate_every = self.every * (LOGS // VALIDATIONS)
        self.validation_seconds = 0.0
        self.gradients = 0
        self.start, self.seconds = time.perf_counter(), 0.0  # of this command, and of earlier ones
        self.temperatures: list[dict[str, Any]] = []
        self.acceptance_rate: float | None = None
        self._begin_mean()

    def count_gradients(self, number: int = 1) -> None:
        """Note gradient evaluations, here and on the progress bar, which counts nothing where it is disabled."""
        self.gradients += number
        self.bar.update(number)

    def _begin_mean(self) -> None:
        self.loss: Tensor | float = 0.0
        self.right: Tensor | float = 0.0
        self.examples = self.count = 0

    def state_dict(self) -> dict[str, Any]:
        """The log in the middle of a run."""
        tensors = {"loss": torch.as_tensor(self.loss).cpu(), "right": torch.as_tensor(self.right).cpu()}
        names = ("examples", "count", "gradients", "temperatures", "validation_seconds")
        seconds = self.seconds + time.perf_counter() - self.start
        return {**tensors, **{name: getattr(self, name) for name in names}, "seconds": seconds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from the state of an earlier command; its gradients are not done again, and leave the bar's total."""
        if self.bar.total is not None:
            self.bar.total -= state["gradients"] - self.gradients
        for name, value in state.items():
            setattr(self, name, value.to(self.data.train_x.device) if isinstance(value, Tensor) else value)
        self.start = time.perf_counter()

    def add(self, loss: Tensor, outputs: Tensor, labels: Tensor) -> None:
        """Collect one minibatch; nothing is read back from the device."""
        self.loss = self.loss + loss.detach()
        self.right = self.right + (outputs.detach().argmax(1) == labels).sum()
        self.examples += len(labels)
        self.count += 1

    def write(self, step: int, optimizer: torch.optim.Optimizer) -> None:
        """Write the means since the last time; call it between ``backward`` and ``step``."""
        loss = float(self.loss) / self.count
        if not math.isfinite(loss):
            raise Diverged(f"the training loss is {loss} at step {step}")
        values: dict[str, float] = {
            "train/loss": loss,
            "train/accuracy": float(self.right) / self.examples,
            "train/learning_rate": optimizer.param_groups[0]["lr"],
        }
        self._begin_mean()
        if isinstance(optimizer, Sampler):
            sampling = float(optimizer.is_sampling)
            values |= {**rates(optimizer), "chain/sampling": sampling, "gradient/norm": gradient_norm(optimizer)}
        groups: dict[str, dict[str, Any]] = {}
        for group, known in zip(optimizer.param_groups, getattr(optimizer, "temperatures", list)()):
            groups[group["name"]] = {"size": sum(p.numel() for p in group["params"])}
            for kind, value in known.items():
                groups[group["name"]][kind] = value if math.isfinite(value) else None
                if math.isfinite(value):
                    values[f"temperature_{kind}/{group['name']}"] = value
        if groups:
            sampling = getattr(optimizer, "is_sampling", True)
            self.temperatures.append({"step": step, "sampling": sampling, "groups": groups})
        for tag, value in values.items():
            self.writer.add_scalar(tag, value, step)

    def moved(self, step: int, before: list[Tensor], model: nn.Module) -> None:
        """Write ‖Δθ‖² of one step of the optimizer, from the parameters ``before`` it (L2E's Figure 3)."""
        moves = zip(model.parameters(), before, strict=True)
        squared = float(sum((p.detach() - old).square().sum() for p, old in moves))
        self.writer.add_scalar("chain/squared_step", squared, step)

    @torch.no_grad()
    def validate(self, step: int, model: nn.Module) -> None:
        """Write loss (nats) and accuracy of the current weights on the validation examples, if there are any."""
        x, y = self.data.val_x, self.data.val_y
        if not len(y):
            return
        start = time.perf_counter()
        model.eval()
        outputs = torch.cat([model(part) for part in x.split(256)])
        model.train()
        loss, accuracy = cross_entropy(outputs, y).item(), (outputs.argmax(1) == y).double().mean().item()
        self.validation_seconds += time.perf_counter() - start
        self.writer.add_scalar("validation/loss", loss, step)
        self.writer.add_scalar("validation/accuracy", accuracy, step)
        self.bar.set_postfix(validation_loss=f"{loss:.3f}", refresh=False)
