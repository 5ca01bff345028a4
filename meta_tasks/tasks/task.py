"""A task: a data set, a network and the settings of a sampler, on which an inner loop runs."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from learned_samplers.base import validation
from learned_samplers.base.segments import Segments
from meta_tasks.datasets.images import renumber
from meta_tasks.networks import BatchedNetwork, batched_network_for
from meta_tasks.random_streams import generator
from meta_tasks.rules.base import Hyperparameters

if TYPE_CHECKING:  # the data sets' libraries are slow to import, and a worker process may not need them
    from meta_tasks.datasets import ImageData

__all__ = ["Hyperparameters", "ImageTask", "NetworkTask", "Task", "TaskConfig"]


class Task(Protocol):
    """A task, as an inner loop needs it. Groups of members see the same data (see `meta_tasks.networks.batched`)."""

    kind: str
    segments: Segments
    hyperparameters: Hyperparameters
    batch_size: int
    num_validation: int
    num_held_out: int
    device: torch.device

    @property
    def signature(self) -> Hashable:
        """Equal for tasks whose members may run in one batch (`TaskStack`); None for a task that runs alone."""

    def initial(self, seed: int) -> Tensor:
        """Initial parameter vector (d,)."""

    def loss_and_gradient(self, parameter: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Mean minibatch NLL (P,) of parameters (P, d) on the training points (G, B), and its gradient (P, d)."""

    def log_probabilities(self, parameter: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
        """log p(·|x, θ) (P, V, classes) on the validation points (G, V), and their labels (P, V)."""


@dataclass(frozen=True)
class TaskConfig:
    """Settings of an image-classification task; together with a seed they fix the task.

    Args:
        dataset: a name of `meta_tasks.datasets`.
        architecture, options: of `meta_tasks.networks.architectures.build`.
        size: side of the images in pixels; None keeps their own.
        grayscale: turn colour into one channel.
        classes: the labels to keep, renumbered in this order; None keeps all.
        num_data: N, training images to keep, chosen at random; None keeps all.
        batch_size: images in a minibatch.
        validation_size: images on which the meta-loss is computed, drawn anew for each run.
        weight_scale_spread: s ≥ 0. The network runs on c∘θ with one factor c = exp(s·z), z ~ N(0, 1), for each tensor,
            and θ starts at the usual initial weights divided by c: the same function, other scales of θ and of its
            gradient, as other initialisations or parametrisations would have.
        lr, temperature, prior_precision, momentum_decay: of the sampler.
        split: "val", or "test" for evaluation on tasks that meta-training never sees.
    """

    dataset: str
    architecture: str
    options: Mapping[str, Any] = field(default_factory=dict)
    size: int | None = None
    grayscale: bool = False
    classes: tuple[int, ...] | None = None
    num_data: int | None = None
    batch_size: int = 128
    validation_size: int = 512
    weight_scale_spread: float = 0.0
    lr: float = 0.1
    temperature: float = 1.0
    prior_precision: float = 0.0
    momentum_decay: float = 0.1
    split: str = "val"

    def __post_init__(self) -> None:
        for name in ("batch_size", "validation_size"):
            validation.integer(name, getattr(self, name))
        if self.num_data is not None:
            validation.integer("num_data", self.num_data)
        validation.one_of("split", self.split, ("val", "test"))
        validation.positive("lr", self.lr)
        for name in ("temperature", "prior_precision", "weight_scale_spread"):
            validation.non_negative(name, getattr(self, name))
        validation.fraction("momentum_decay", self.momentum_decay, open_left=True)

    @property
    def kind(self) -> str:
        """Under which name losses are logged: data set, architecture, and whether the training set is small."""
        small = "-small" if self.num_data is not None and self.num_data <= 2000 else ""
        return f"{self.dataset}-{self.architecture}{small}"


class NetworkTask:
    """Losses of members that are networks: base class. With factors `scale` c (d,) or (P, d) they run on c∘θ."""

    network: BatchedNetwork
    scale: Tensor | None = None

    def examples(self, split: str, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs (G, n, ...) and labels (G, n) of "train" or "held_out" at indices (G, n)."""
        raise NotImplementedError

    def loss_and_gradient(self, parameter: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
        x, y = self.examples("train", indices)
        if self.scale is None:
            return self.network.loss_and_gradient(parameter, x, y)
        loss, gradient = self.network.loss_and_gradient(parameter * self.scale, x, y)
        return loss, gradient.mul_(self.scale)

    def log_probabilities(self, parameter: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
        x, y = self.examples("held_out", indices)
        log_p = self.network.log_probabilities(parameter if self.scale is None else parameter * self.scale, x)
        return log_p, y.repeat_interleave(len(log_p) // len(y), 0)


class ImageTask(NetworkTask):
    """Image classification, as a `TaskConfig` describes it.

    Args:
        config: the configuration.
        data: the data set it names, at its size.
        seed: of the choice of training images and of the weight scales.
        device: where the data sits and the members run.

    Attributes:
        train, held_out: inputs and labels.
        scale: the factors c (d,), or None.

    Raises:
        ValueError: the data set has no image of a class, fewer than two classes remain, or the architecture refuses
            the images.
    """

    def __init__(self, config: TaskConfig, data: ImageData, seed: int, device: torch.device | str = "cpu") -> None:
        self.config, self.kind, self.device = config, config.kind, torch.device(device)
        num_classes, train, held_out = _restrict(config, data, seed)
        self.batch_size = min(config.batch_size, len(train[1]))
        self.train = tuple(t.to(self.device) for t in train)
        self.held_out = tuple(t.to(self.device) for t in held_out)
        self.num_held_out = len(self.held_out[1])
        self.num_validation = min(config.validation_size, self.num_held_out)
        self.num_classes = num_classes
        self.network = batched_network_for(config.architecture, data.input_shape, num_classes, **config.options)
        self.segments = self.network.segments
        self.hyperparameters = Hyperparameters(
            config.lr, len(train[1]), config.temperature, config.prior_precision, config.momentum_decay
        )
        self.signature = (
            *(config.architecture, str(sorted(config.options.items())), data.input_shape, num_classes, self.device),
            *(self.batch_size, self.num_validation),
        )
        if config.weight_scale_spread:
            z = torch.randn(len(self.segments.lengths), generator=generator(seed, "weight scale"))
            self.scale = self.segments.expand((z * config.weight_scale_spread).exp()).to(self.device)

    def initial(self, seed: int) -> Tensor:
        weights = self.network.initial(seed).to(self.device)
        return weights if self.scale is None else weights / self.scale

    def examples(self, split: str, indices: Tensor) -> tuple[Tensor, Tensor]:
        x, y = getattr(self, split)
        return x[indices], y[indices]


def _restrict(
    config: TaskConfig, data: ImageData, seed: int
) -> tuple[int, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Number of classes, training and held-out images and labels of the configuration."""
    train = (data.train_x, data.train_y)
    held_out = (data.val_x, data.val_y) if config.split == "val" else (data.test_x, data.test_y)
    num_classes = data.num_classes
    if config.classes is not None:
        num_classes = len(config.classes)
        train, held_out = (
            renumber(*split, config.classes, data.num_classes, config.dataset) for split in (train, held_out)
        )
    for name, (_, y) in (("training", train), (config.split, held_out)):
        if not len(y):
            raise ValueError(f"{config.dataset} has no {name} images for the task {config}")
    if config.num_data is not None and config.num_data < len(train[1]):
        chosen = torch.randperm(len(train[1]), generator=generator(seed, "subset"))[: config.num_data]
        train = (train[0][chosen], train[1][chosen])
    return num_classes, train, held_out
