"""The training curves of one run."""

from __future__ import annotations

import math
import time
from collections.abc import Sized
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from experiments.images.likelihood import Classification, Likelihood, evaluate
from learned_samplers.base.sampler import Sampler
from learned_samplers.integrations.tensorboard import gradient_norm, rates
from meta_tasks.datasets import ImageData

LOGS = 100  # points of a training curve
VALIDATIONS = 20  # of which so many with the validation loss of the current weights


class Diverged(Exception):
    """A run whose loss, gradient or weights are no longer finite."""


class Log:
    """Training curves of one run: TensorBoard, and the progress bar's postfix.

    The step of every curve is the number of minibatch gradient evaluations.

    Attributes:
        gradients: minibatch gradient evaluations so far, see `count_gradients`.
        temperatures: of a sampler, one entry a point: {"step", "sampling" (whether the state counts as a sample's),
            "groups": {part of the network: {"kinetic", "configurational", "size" (its number of weights)}}}; None
            for a temperature that does not exist.
        validation_curve, movement_curve: see `experiments.images.result.Result`.
    """

    def __init__(
        self,
        writer: SummaryWriter,
        bar: tqdm,
        data: ImageData,
        steps: int,
        validations: int = VALIDATIONS,
        likelihood: Likelihood | None = None,
    ) -> None:
        self.writer, self.bar, self.data = writer, bar, data
        self.likelihood: Likelihood = likelihood or Classification()
        self.every = max(1, steps // LOGS)
        self.validate_every = self.every * max(1, LOGS // validations)
        self.validation_seconds = 0.0
        self.gradients = 0
        self.temperatures: list[dict[str, Any]] = []
        self.validation_curve: list[list[float]] = []
        self.movement_curve: list[list[float]] = []
        self._written = math.nan
        self._collection: Sized = ()
        self._optimizer: Any = None
        self._mean: Tensor | float = 0.0
        self._averaged = 0
        self.reset()

    def follow(self, samples: Sized, optimizer: Any) -> None:
        """From the first of these samples on, follow a classifier's model average wherever the chain is sampling."""
        self._collection, self._optimizer = samples, optimizer

    def count_gradients(self, number: int = 1) -> None:
        """Note gradient evaluations, here and on the progress bar, which counts nothing where it is disabled."""
        self.gradients += number
        self.bar.update(number)

    def reset(self) -> None:
        """Begin a new mean."""
        self.loss: Tensor | float = 0.0
        self.hits: Tensor | float = 0.0
        self.images = self.count = 0

    def add(self, loss: Tensor, logits: Tensor, labels: Tensor) -> None:
        """Collect one minibatch; nothing is read back from the device."""
        self.loss = self.loss + loss.detach()
        self.hits = self.hits + self.likelihood.total(logits.detach(), labels)
        self.images += len(labels)
        self.count += 1

    def write(self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Write the means since the last time; call it between ``backward`` and ``step``."""
        loss = float(self.loss) / self.count
        if not math.isfinite(loss):
            raise Diverged(f"the training loss is {loss} at step {step}")
        self.writer.add_scalar("train/loss", loss, step)
        curve = self.likelihood.average(float(self.hits), self.images)
        self.writer.add_scalar(f"train/{self.likelihood.curve}", curve, step)
        self.writer.add_scalar("train/learning_rate", optimizer.param_groups[0]["lr"], step)
        self._written = loss
        self.reset()
        if isinstance(optimizer, Sampler):
            sampling = float(optimizer.is_sampling)
            chain = {**rates(optimizer), "chain/sampling": sampling, "gradient/norm": gradient_norm(optimizer)}
            for tag, value in chain.items():
                self.writer.add_scalar(tag, value, step)
        if not hasattr(optimizer, "temperatures"):
            return
        groups: dict[str, dict[str, Any]] = {}
        for group, values in zip(optimizer.param_groups, optimizer.temperatures()):
            groups[group["name"]] = {"size": sum(p.numel() for p in group["params"])}
            for kind, value in values.items():
                groups[group["name"]][kind] = value if math.isfinite(value) else None
                if math.isfinite(value):
                    self.writer.add_scalar(f"temperature_{kind}/{group['name']}", value, step)
        sampling = getattr(optimizer, "is_sampling", True)
        self.temperatures.append({"step": step, "sampling": sampling, "groups": groups})

    def moved(self, step: int, before: list[Tensor], model: nn.Module) -> None:
        """Write ‖Δθ‖² of one step of the optimizer; call it after that step, and after ``write``.

        Args:
            before: the parameters as they were before the step.
        """
        moves = zip(model.parameters(), before, strict=True)
        squared = float(sum((p.detach() - old).square().sum() for p, old in moves))
        if math.isfinite(squared):
            self.movement_curve.append([step, squared, self._written])
        self.writer.add_scalar("chain/squared_step", squared, step)

    def validate(self, step: int, model: nn.Module) -> None:
        """Write loss and accuracy of the current weights on the validation images, if there are any."""
        if not len(self.data.val_y):
            return
        start = time.perf_counter()
        model.eval()
        outputs: list[Any] = []

        def call(x: Tensor) -> Any:
            outputs.append(model(x))
            return outputs[-1]

        loss, second = evaluate(call, self.data.val_x, self.data.val_y, self.likelihood)
        if len(self._collection) and getattr(self._optimizer, "is_sampling", True):
            self._average(outputs, step)
        model.train()
        self.validation_seconds += time.perf_counter() - start
        if math.isfinite(loss):
            self.validation_curve.append([step, loss, second])
        self.writer.add_scalar("validation/loss", loss, step)
        self.writer.add_scalar(f"validation/{self.likelihood.curve}", second, step)
        self.bar.set_postfix(validation_loss=f"{loss:.3f}", refresh=False)

    def _average(self, outputs: list[Any], step: int) -> None:
        """The mean prediction of the weights at the looks since the first sample; it costs no further evaluation."""
        if not isinstance(self.likelihood, Classification):
            return
        probabilities = torch.cat(outputs).double().softmax(1)
        self._averaged += 1
        self._mean = self._mean + (probabilities - self._mean) / self._averaged
        loss = torch.nn.functional.nll_loss(self._mean.log(), self.data.val_y).item()
        accuracy = float(self.likelihood.total(self._mean, self.data.val_y)) / len(self.data.val_y)
        self.writer.add_scalar("model_average/validation_loss_so_far", loss, step)
        self.writer.add_scalar("model_average/validation_accuracy_so_far", accuracy, step)
