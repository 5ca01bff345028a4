"""Distributions over tasks: what a sampler is meta-trained on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from learned_samplers.base import validation
from meta_tasks import datasets
from meta_tasks.datasets import ImageData
from meta_tasks.networks.architectures import names as architecture_names
from meta_tasks.random_streams import choose, generator, log_uniform
from meta_tasks.tasks.task import ImageTask, Task, TaskConfig

__all__ = ["Architecture", "ImageTaskFamily", "TaskFamily"]

Architecture = tuple[str, Mapping[str, Any]]

#: The fields of `ImageTaskFamily` from which each task takes one.
_CHOICES = (
    *("dataset_names", "architectures", "sizes", "batch_sizes", "lrs", "temperatures", "prior_precisions"),
    *("momentum_decays", "weight_scale_spreads"),
)


def require_choices(family: str, name: str, choices: Any) -> None:
    """Raise an error unless the choices of a family are a tuple or a list with one at least."""
    if not isinstance(choices, tuple | list):
        raise TypeError(f"{name} of task family {family!r} must be a tuple of choices, got {choices!r:.60}")
    if not choices:
        raise ValueError(f"{name} of task family {family!r} must have at least one choice")


class TaskFamily(Protocol):
    """A distribution over tasks, as the trainer needs it."""

    @property
    def name(self) -> str:
        """The name in logs, checkpoints and weight cards."""

    @property
    def has_validation(self) -> bool:
        """True if its tasks have data to measure a loss on that is not the chain's own."""

    def task(self, *keys: int | str) -> Task:
        """The task that the keys draw, for instance (seed, iteration, pair): the same for the same keys."""

    def specification(self) -> dict[str, Any]:
        """Plain values that name the family in checkpoints and weight cards."""

    def data_fingerprints(self) -> dict[str, str]:
        """Fingerprint of each data set by name, the same on every machine; {} without data."""


@dataclass(frozen=True)
class ImageTaskFamily:
    """A distribution over image-classification tasks; most fields are sets of equally likely choices.

    Args:
        name: of the family.
        dataset_names, sizes, architectures, batch_sizes, lrs, temperatures, prior_precisions, momentum_decays: choices
            for the fields of `TaskConfig`; a choice that stands twice is twice as likely.
        grayscale: whether colour images become grey.
        validation_size: of `TaskConfig`.
        labels: the classes that every task has, or chooses from; None takes all of the data set's.
        label_subset_share: share of the tasks that keep a random subset of 2 to C−1 of the C classes.
        small_data_share: share of the tasks that keep only N images, log-uniform in ``small_data``.
        small_data: the range of N there; a run memorises so few images unless the sampler prevents it.
        weight_scale_spreads: choices for `TaskConfig.weight_scale_spread`.
        root: data folder, as in `meta_tasks.datasets.load`.
        device: where tasks live.

    Raises:
        ValueError: an unknown data set, CIFAR-10 (kept unseen, as the test of what was learned), or an empty choice.
    """

    name: str
    dataset_names: tuple[str, ...]
    architectures: tuple[Architecture, ...]
    sizes: tuple[int | None, ...] = (None,)
    batch_sizes: tuple[int, ...] = (128,)
    lrs: tuple[float, ...] = (0.05, 0.1, 0.2)
    temperatures: tuple[float, ...] = (1.0,)
    prior_precisions: tuple[float, ...] = (20.0,)
    momentum_decays: tuple[float, ...] = (0.1,)
    weight_scale_spreads: tuple[float, ...] = (0.0,)
    grayscale: bool = False
    validation_size: int = 512
    labels: tuple[int, ...] | None = None
    label_subset_share: float = 0.0
    small_data_share: float = 0.0
    small_data: tuple[int, int] = (200, 2000)
    root: str | None = None
    device: str = "cpu"
    _loaded: dict[tuple[str, int | None], ImageData] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        for name in _CHOICES:
            require_choices(self.name, name, getattr(self, name))
        for one in self.architectures:
            if not (isinstance(one, tuple | list) and len(one) == 2 and isinstance(one[1], Mapping)):
                raise TypeError(f"architectures must be pairs as ('mlp', {{'hidden': (20,)}}), got {one!r:.60}")
            validation.one_of("architectures", one[0], architecture_names())
        for size in (*(size for size in self.sizes if size is not None), self.validation_size):
            validation.integer("sizes and validation_size", size)
        validation.truth("grayscale", self.grayscale)
        if "cifar10" in self.dataset_names:
            raise ValueError("dataset_names must not have 'cifar10': it is the unseen test of what was learned")
        for name in self.dataset_names:
            datasets.check_name(name, "dataset_names")
        for lr in self.lrs:
            validation.positive("lrs", lr)
        for name in ("temperatures", "prior_precisions", "weight_scale_spreads"):
            for value in getattr(self, name):
                validation.non_negative(name, value)
        for decay in self.momentum_decays:
            validation.fraction("momentum_decays", decay, open_left=True)
        for size in self.batch_sizes:
            validation.integer("batch_sizes", size)
        for name in ("label_subset_share", "small_data_share"):
            validation.fraction(name, getattr(self, name))
        if self.labels is not None and (len(set(self.labels)) < len(self.labels) or len(self.labels) < 2):
            raise ValueError(f"labels must be two or more different ones, got {self.labels}")
        if len(self.small_data) != 2 or not 1 <= self.small_data[0] <= self.small_data[1]:
            raise ValueError(f"small_data must be a range of two positive numbers, got {self.small_data}")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": {}}  # another process loads its own data

    @property
    def has_validation(self) -> bool:
        return True

    def config(self, *keys: int | str) -> TaskConfig:
        """The configuration that the keys draw; loads the data set to know its classes."""
        stream = generator(*keys, "task")
        dataset, size = choose(self.dataset_names, stream), choose(self.sizes, stream)
        data = self._data(dataset, size)
        architecture, options = choose(self.architectures, stream)
        return TaskConfig(
            dataset=dataset,
            architecture=architecture,
            options=options,
            size=size,
            grayscale=self.grayscale,
            classes=self._classes(data.num_classes if self.labels is None else len(self.labels), stream),
            num_data=self._num_data(data.num_data, stream),
            batch_size=choose(self.batch_sizes, stream),
            validation_size=self.validation_size,
            weight_scale_spread=choose(self.weight_scale_spreads, stream),
            lr=choose(self.lrs, stream),
            temperature=choose(self.temperatures, stream),
            prior_precision=choose(self.prior_precisions, stream),
            momentum_decay=choose(self.momentum_decays, stream),
        )

    def task(self, *keys: int | str) -> Task:
        return self.make(self.config(*keys), *keys)

    def make(self, config: TaskConfig, *keys: int | str) -> ImageTask:
        """The task of a configuration; ``keys`` fix its random parts (which images, which scales)."""
        seed = torch.randint(2**62, (), generator=generator(*keys, "task data")).item()
        return ImageTask(config, self._data(config.dataset, config.size), int(seed), self.device)

    def specification(self) -> dict[str, Any]:
        hidden = {"_loaded", "root", "device"}  # where the data lies and what runs it change nothing
        return {key: _plain(getattr(self, key)) for key in self.__dataclass_fields__ if key not in hidden}

    def data_fingerprints(self) -> dict[str, str]:
        """Fingerprint of the files of each data set, by its name."""
        options: Any = {"size": self.sizes[0], "grayscale": self.grayscale}
        return {name: datasets.fingerprint_of(name, self.root, **options) for name in dict.fromkeys(self.dataset_names)}

    def _data(self, dataset: str, size: int | None) -> ImageData:
        key = (dataset, size)
        if key not in self._loaded:
            data = datasets.load(dataset, self.root, size=size, grayscale=self.grayscale)
            self._loaded[key] = data.to(self.device)
        return self._loaded[key]

    def _classes(self, num_classes: int, stream: torch.Generator) -> tuple[int, ...] | None:
        chosen, order = torch.rand((), generator=stream), torch.randperm(num_classes, generator=stream)
        count = int(torch.randint(2, max(num_classes, 3), (), generator=stream))
        if not (chosen < self.label_subset_share and num_classes > 2):
            return self.labels
        subset = order[:count].tolist()
        return tuple(subset if self.labels is None else (self.labels[i] for i in subset))

    def _num_data(self, num_data: int, stream: torch.Generator) -> int | None:
        chosen, count = torch.rand((), generator=stream), round(log_uniform(*self.small_data, stream))
        return min(count, num_data) if chosen < self.small_data_share else None


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value
