"""Images and their labels as tensors: `ImageData`, `MultiTaskData`, what readers return, and operations on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from learned_samplers.base import validation as checks
from learned_samplers.base.optional import require

SPLITS = ("train", "val", "test")
CHUNK = 8192  # images converted at a time, which bounds the memory of the intermediate float copies
Examples = tuple[Tensor, Tensor]  # inputs (n, ...) and labels


@dataclass(frozen=True, eq=False)
class Splits:
    """Base class of data: tensors `train_x`, `train_y`, `val_x`, …, their checks and sizes."""

    name: str
    num_classes: int
    train_x: Tensor
    train_y: Tensor
    val_x: Tensor
    val_y: Tensor
    test_x: Tensor
    test_y: Tensor

    def split(self, name: str) -> Examples:
        """Inputs and labels of "train", "val" or "test"."""
        return getattr(self, f"{name}_x"), getattr(self, f"{name}_y")

    def with_splits(self, **splits: Examples) -> Self:
        """The same data with other inputs and labels of some splits, ``train=(x, y)``."""
        changed: dict[str, Any] = {
            f"{name}_{letter}": x for name, part in splits.items() for letter, x in zip("xy", part)
        }
        return replace(self, **changed)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input; (C, H, W) of an image."""
        return tuple(self.test_x.shape[1:])

    @property
    def num_data(self) -> int:
        """N, the number of training inputs."""
        return len(self.train_y)

    def to(self, device: torch.device | str) -> Self:
        """The same data with every tensor on `device`."""
        return self.with_splits(
            **{name: (x.to(device), y.to(device)) for name in SPLITS for x, y in [self.split(name)]}
        )

    def _check_labels(self, name: str, y: Tensor) -> None:
        """Raise ValueError for labels outside [0, num_classes)."""
        if len(y) and not 0 <= int(y.min()) <= int(y.max()) < self.num_classes:
            raise ValueError(
                f"{name}_y must lie in [0, num_classes={self.num_classes}), "
                f"got labels from {int(y.min())} to {int(y.max())}"
            )

    def _check_images(self, dtype: torch.dtype, label_shape: tuple[int, ...]) -> None:
        """Check the three splits: images of ``dtype``, and int64 labels of ``label_shape`` an image, in their range."""
        for name in SPLITS:
            x, y = self.split(name)
            if x.dtype != dtype or y.dtype != torch.int64:
                raise TypeError(f"{name}_x must be {dtype} and {name}_y int64, got {x.dtype} and {y.dtype}")
            if x.ndim != 4 or y.shape != (len(x), *label_shape) or x.shape[1:] != self.test_x.shape[1:]:
                raise ValueError(
                    f"{name}_x must be (n, C, H, W) as test_x {tuple(self.test_x.shape)} and {name}_y "
                    f"(n, {', '.join(map(str, label_shape))}), got {tuple(x.shape)} and {tuple(y.shape)}"
                )
            self._check_labels(name, y)


@dataclass(frozen=True, eq=False)
class ImageData(Splits):
    """Images and labels of one data set, as tensors.

    `train_x`, `val_x`, `test_x` are float32 of shape (n, C, H, W) in [0, 1]; `train_y`, `val_y`, `test_y` are int64 of
    shape (n,) in [0, num_classes). A split that the data set does not have is empty (n = 0).

    Raises:
        TypeError: a tensor has another dtype.
        ValueError: a tensor has another shape, or a label is outside [0, num_classes).
    """

    def __post_init__(self) -> None:
        self._check_images(torch.float32, ())


@dataclass(frozen=True, eq=False)
class MultiTaskData(Splits):
    """Images and K labels of each, as tensors; K is the number of ``tasks``.

    `train_x`, `val_x`, `test_x` are uint8 of shape (n, C, H, W), which is a quarter of their size as numbers: `scaled`
    makes float32 in [0, 1] of a minibatch. `train_y`, `val_y`, `test_y` are int64 of shape (n, K) in [0, num_classes).

    Raises:
        TypeError, ValueError: as `ImageData`.
    """

    tasks: tuple[str, ...] = field(kw_only=True)

    def __post_init__(self) -> None:
        self._check_images(torch.uint8, (len(self.tasks),))


@dataclass(frozen=True, eq=False)
class RawSplits:
    """Splits as a reader returns them: pixel tensors (n, C, H, W) of any dtype in [0, maximum], int64 labels (n,).

    `train` or `val` is None where the data set has no such split of its own.
    """

    num_classes: int
    maximum: float
    test: Examples
    train: Examples | None = None
    val: Examples | None = None


def scaled(x: Tensor) -> Tensor:
    """Pixels 0 to 255 as float32 in [0, 1]."""
    return x.float() / 255


def scale_images(x: Tensor, maximum: float, size: int | None, grayscale: bool) -> Tensor:
    """Pixels (n, C, H, W) in [0, maximum] as float32 in [0, 1], in grey and resized to size × size where asked."""
    floats = (part.float() / maximum for part in x.split(CHUNK))
    return torch.cat([resize(to_grayscale(part) if grayscale else part, size) for part in floats])


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

    def fit(part: Tensor) -> Tensor:
        return resize(to_grayscale(part) if channels == 1 else part.expand(-1, 3, -1, -1), (height, width))

    def fitted(x: Tensor) -> Tensor:
        return torch.cat([fit(part) for part in x.split(CHUNK)])

    return data.with_splits(**{name: (fitted(x), y) for name in SPLITS for x, y in [data.split(name)]})


def keep_labels(data: ImageData, labels: Sequence[int]) -> ImageData:
    """The images of these classes alone, renumbered in the order of ``labels``.

    Raises:
        ValueError: as `renumber`.
    """
    kept = {name: renumber(*data.split(name), labels, data.num_classes, data.name) for name in SPLITS}
    return replace(data.with_splits(**kept), num_classes=len(labels))


def renumber(x: Tensor, y: Tensor, classes: Sequence[int], num_classes: int, name: str) -> Examples:
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


def stratified_split(y: Tensor, count: int, seed: int, argument: str) -> Examples:
    """Indices of a seeded random subset of `count` labels, with the classes in proportion, and of the rest.

    Raises:
        ValueError: `count` is too small or too large to have every class on both sides; names `argument`.
    """
    if count in (0, len(y)):
        everything = torch.arange(len(y))
        return everything[:count], everything[count:]
    train_test_split = require("sklearn.model_selection", "meta").train_test_split
    try:
        parts = train_test_split(torch.arange(len(y)).numpy(), train_size=count, stratify=y, random_state=seed)
    except ValueError as error:
        raise ValueError(f"{argument}={count} does not split {len(y)} images by class: {error}") from error
    chosen, remaining = map(torch.from_numpy, parts)
    return chosen, remaining


def held_out(
    x: Tensor, y: Tensor, share: float | None, seed: int, *, stratified: bool = True
) -> tuple[Examples, Examples]:
    """The rest of the examples, in their order, and those held out for validation.

    Args:
        share: a fraction below 1 (a float), or a number of examples (an integer); None is a tenth.
        stratified: whether classes are in proportion.

    Raises:
        TypeError, ValueError: another type, or out of range.
    """
    share = 0.1 if share is None else share
    if isinstance(share, bool) or not isinstance(share, int | float):
        raise TypeError(f"validation must be a fraction, a number of examples or None, got {share!r}")
    if not 0 <= share < len(y) or (isinstance(share, float) and share >= 1):
        raise ValueError(f"validation must be a fraction in [0, 1) or a number of examples below {len(y)}, got {share}")
    count = round(share * len(y)) if isinstance(share, float) else share
    if stratified:
        held, remaining = stratified_split(y, count, seed, "validation")
    else:
        held, remaining = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed)).split(
            [count, len(y) - count]
        )
    remaining = remaining.sort().values
    return (x[remaining], y[remaining]), (x[held], y[held])


def limited(part: Examples, limit: int | None, seed: int, name: str) -> Examples:
    """``limit`` of the examples of a data set, chosen at random with the classes in proportion; None keeps all.

    Raises:
        TypeError, ValueError: no whole number, or more than there are.
    """
    if limit is None:
        return part
    checks.integer("limit", limit)
    x, y = part
    if limit > len(y):
        raise ValueError(f"limit={limit} exceeds the {len(y)} training examples of {name}")
    chosen, _ = stratified_split(y, limit, seed, "limit")
    return x[chosen], y[chosen]
