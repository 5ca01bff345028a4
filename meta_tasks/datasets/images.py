"""Images and their labels as tensors: `ImageData`, `MultiTaskData`, what readers return, and operations on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from learned_samplers.base.optional import require

__all__ = ["renumber"]


SPLITS = ("train", "val", "test")
CHUNK = 8192  # images converted at a time, which bounds the memory of the intermediate float copies


class ImageSplits:
    """What `ImageData` and `MultiTaskData` share: tensors `train_x`, `train_y`, `val_x`, …, their checks and sizes."""

    num_classes: int
    train_y: Tensor
    test_x: Tensor

    def _validate(self, dtype: torch.dtype, label_shape: tuple[int, ...]) -> None:
        """Check the three splits: images of ``dtype``, and int64 labels of ``label_shape`` an image, in their range."""
        kind, labels = str(dtype).removeprefix("torch."), ", ".join(map(str, ("n", *label_shape)))
        for split in SPLITS:
            x, y = getattr(self, f"{split}_x"), getattr(self, f"{split}_y")
            if x.dtype != dtype or y.dtype != torch.int64:
                raise TypeError(f"{split}_x must be {kind} and {split}_y int64, got {x.dtype} and {y.dtype}")
            if x.ndim != 4 or y.shape != (len(x), *label_shape) or x.shape[1:] != self.test_x.shape[1:]:
                raise ValueError(
                    f"{split}_x must be (n, C, H, W) as test_x {tuple(self.test_x.shape)} and {split}_y "
                    f"({labels}{'' if label_shape else ','}), got {tuple(x.shape)} and {tuple(y.shape)}"
                )
            if len(y) and not 0 <= int(y.min()) <= int(y.max()) < self.num_classes:
                raise ValueError(
                    f"{split}_y must lie in [0, num_classes={self.num_classes}), "
                    f"got labels from {int(y.min())} to {int(y.max())}"
                )

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of one image."""
        channels, height, width = self.test_x.shape[1:]
        return channels, height, width

    @property
    def num_data(self) -> int:
        """N, the number of training images."""
        return len(self.train_y)

    def to(self, device: torch.device | str) -> Self:
        """The same data with every tensor on `device`."""
        moved = {f"{split}_{each}": getattr(self, f"{split}_{each}").to(device) for split in SPLITS for each in "xy"}
        return replace(self, **moved)  # type: ignore[type-var]


@dataclass(frozen=True, eq=False)
class ImageData(ImageSplits):
    """Images and labels of one data set, as tensors.

    `train_x`, `val_x`, `test_x` are float32 of shape (n, C, H, W) in [0, 1]; `train_y`, `val_y`, `test_y` are int64 of
    shape (n,) in [0, num_classes). A split that the data set does not have is empty (n = 0).

    Raises:
        TypeError: a tensor has another dtype.
        ValueError: a tensor has another shape, or a label is outside [0, num_classes).
    """

    name: str
    num_classes: int
    train_x: Tensor
    train_y: Tensor
    val_x: Tensor
    val_y: Tensor
    test_x: Tensor
    test_y: Tensor

    def __post_init__(self) -> None:
        self._validate(torch.float32, ())


@dataclass(frozen=True, eq=False)
class RawSplits:
    """What a reader returns: pixel tensors (n, C, H, W) of any dtype in [0, maximum], int64 labels (n,).

    `train` or `val` is None where the data set has no such split of its own.
    """

    num_classes: int
    maximum: float
    test: tuple[Tensor, Tensor]
    train: tuple[Tensor, Tensor] | None = None
    val: tuple[Tensor, Tensor] | None = None


def scale_images(x: Tensor, maximum: float, size: int | None, grayscale: bool) -> Tensor:
    """Pixels (n, C, H, W) in [0, maximum] as float32 in [0, 1], in grey and resized to size × size where asked."""
    chunks = [
        resize(to_grayscale(part.float() / maximum) if grayscale else part.float() / maximum, size)
        for part in x.split(CHUNK)
    ]
    return torch.cat(chunks)


def to_grayscale(x: Tensor) -> Tensor:
    """Luma (ITU-R BT.601) of images (n, 3, H, W) as (n, 1, H, W); one-channel images are returned as they are."""
    return x if x.shape[1] == 1 else require("torchvision.transforms.functional", "meta").rgb_to_grayscale(x)


def resize(x: Tensor, size: int | tuple[int, int] | None) -> Tensor:
    """Images (n, C, H, W) at size × size (or height × width) pixels: bilinear with antialiasing."""
    height_width = (size, size) if isinstance(size, int) else size
    if height_width is None or tuple(x.shape[-2:]) == height_width:
        return x
    if not len(x):  # interpolate refuses an empty batch
        return x.new_empty(0, x.shape[1], *height_width)
    return interpolate(x, height_width, mode="bilinear", antialias=True, align_corners=False).clamp(0, 1)


def match(data: ImageData, like: ImageData | Sequence[int]) -> ImageData:
    """`data` with its images resized and its channels changed to fit a network made for `like`.

    Colour becomes luma, grey is repeated over the channels. Labels and num_classes stay those of `data`.

    Args:
        data: the images to change, for instance an out-of-distribution set.
        like: the data whose image shape to take, or that shape (C, H, W).

    Raises:
        ValueError: `like` has a number of channels other than 1 or 3.
    """
    channels, height, width = like.input_shape if isinstance(like, ImageData) else tuple(like)
    if channels not in (1, 3):
        raise ValueError(f"like must have 1 or 3 channels, got {channels}")

    def fit(x: Tensor) -> Tensor:
        parts = []
        for part in x.split(CHUNK):
            grey_or_colour = to_grayscale(part) if channels == 1 else part.expand(-1, 3, -1, -1)
            parts.append(resize(grey_or_colour, (height, width)))
        return torch.cat(parts)

    return replace(data, train_x=fit(data.train_x), val_x=fit(data.val_x), test_x=fit(data.test_x))


def keep_labels(data: ImageData, labels: Sequence[int]) -> ImageData:
    """The images of these classes alone, renumbered in the order of ``labels``.

    Raises:
        ValueError: as `meta_tasks.datasets.images.renumber`.
    """
    splits: dict[str, Any] = {}
    for split in SPLITS:
        x, y = getattr(data, f"{split}_x"), getattr(data, f"{split}_y")
        splits[f"{split}_x"], splits[f"{split}_y"] = renumber(x, y, labels, data.num_classes, data.name)
    return replace(data, num_classes=len(labels), **splits)


def divide_anew(data: ImageData, seed: int) -> ImageData:
    """All images of the three splits, divided at random into training, validation and test images of the same numbers.

    Comparing two methods on several divisions averages over the choice of test images, which more seeds on one
    division do not.
    """
    x, y = (torch.cat([getattr(data, f"{split}_{each}") for split in SPLITS]) for each in "xy")
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed)).to(y.device)
    parts = order.split([len(data.train_y), len(data.val_y), len(data.test_y)])
    splits: dict[str, Any] = {}
    for split, part in zip(SPLITS, parts):
        splits[f"{split}_x"], splits[f"{split}_y"] = x[part], y[part]
    return replace(data, **splits)


def stratified_split(y: Tensor, count: int, seed: int, argument: str) -> tuple[Tensor, Tensor]:
    """Indices of a seeded random subset of `count` labels, with the classes in proportion, and of the rest.

    Raises:
        ValueError: `count` is too small or too large to have every class on both sides; names `argument`.
    """
    if count == 0:
        return torch.arange(0), torch.arange(len(y))
    if count == len(y):
        return torch.arange(len(y)), torch.arange(0)
    train_test_split = require("sklearn.model_selection", "meta").train_test_split
    try:
        chosen, rest = train_test_split(torch.arange(len(y)).numpy(), train_size=count, stratify=y, random_state=seed)
    except ValueError as error:
        raise ValueError(f"{argument}={count} does not split {len(y)} images by class: {error}") from error
    return torch.from_numpy(chosen), torch.from_numpy(rest)


def renumber(x: Tensor, y: Tensor, classes: Sequence[int], num_classes: int, name: str) -> tuple[Tensor, Tensor]:
    """The images x (n, ...) whose labels y (n,) are among ``classes``, with their places there as labels.

    Raises:
        ValueError: fewer than two classes, one of them twice, or one that the data set ``name`` has not.
    """
    if len(classes) < 2 or len(set(classes)) < len(classes) or not set(classes) <= set(range(num_classes)):
        raise ValueError(
            f"classes must be two or more different labels of {name} in [0, {num_classes}), got {tuple(classes)}"
        )
    new = torch.full((num_classes,), -1, device=y.device)
    new[list(classes)] = torch.arange(len(classes), device=y.device)
    kept = new[y] >= 0
    return x[kept], new[y[kept]]


@dataclass(frozen=True, eq=False)
class MultiTaskData(ImageSplits):
    """Images and K labels of each, as tensors; K is the number of tasks.

    `train_x`, `val_x`, `test_x` are uint8 of shape (n, C, H, W), which is a quarter of their size as numbers: `scaled`
    makes float32 in [0, 1] of a minibatch. `train_y`, `val_y`, `test_y` are int64 of shape (n, K) in [0, num_classes).

    Raises:
        TypeError: a tensor has another dtype.
        ValueError: a tensor has another shape, or a label is outside [0, num_classes).
    """

    name: str
    tasks: tuple[str, ...]
    num_classes: int
    train_x: Tensor
    train_y: Tensor
    val_x: Tensor
    val_y: Tensor
    test_x: Tensor
    test_y: Tensor

    def __post_init__(self) -> None:
        self._validate(torch.uint8, (len(self.tasks),))


def scaled(x: Tensor) -> Tensor:
    """Pixels 0 to 255 as float32 in [0, 1]."""
    return x.float() / 255
