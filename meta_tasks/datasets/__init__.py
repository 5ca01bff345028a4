"""Image data sets as tensors: `load`, `names`, `match`, `keep_labels`, `divide_anew`, `out_of_distribution`; with
several labels an image: `load_overlaid` (Multi-MNIST and its like) and `load_celeba`.

Files are looked for in the folder given as `root`, else in the one named by the environment variable
LEARNED_SAMPLERS_DATA, else in ~/.cache/learned_samplers. torchvision and medmnist download what is missing.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from meta_tasks.datasets.celeba import load_celeba
from meta_tasks.datasets.embedded import read_digits, read_photos
from meta_tasks.datasets.files import data_root
from meta_tasks.datasets.image_data import (
    ImageData,
    RawSplits,
    divide_anew,
    keep_labels,
    match,
    scale_images,
    stratified_split,
)
from meta_tasks.datasets.multi_task_data import MultiTaskData, scaled
from meta_tasks.datasets.npz import medmnist_flags, medmnist_info, read_medmnist, read_splits
from meta_tasks.datasets.overlaid import load_overlaid
from meta_tasks.datasets.torchvision_sets import IDX_CLASSES, read_cifar, read_idx_family, read_notmnist, read_svhn

__all__ = [
    "ImageData",
    "MultiTaskData",
    "check_name",
    "data_root",
    "divide_anew",
    "keep_labels",
    "load",
    "load_celeba",
    "load_overlaid",
    "match",
    "names",
    "out_of_distribution",
    "scaled",
]

_OUT_OF_DISTRIBUTION = {"mnist": "fashion_mnist", "fashion_mnist": "mnist"}
_DEFAULT_VALIDATION = 0.1


def names() -> tuple[str, ...]:
    """The names that `load` takes; `npz:FILE` stands for any npz file in MedMNIST layout."""
    fixed = ("digits", *IDX_CLASSES, "cifar10", "cifar100", "svhn", "notmnist", "photos")
    return (*fixed, *medmnist_flags(), "npz:FILE")


def load(
    name: str,
    root: str | os.PathLike[str] | None = None,
    *,
    size: int | None = None,
    grayscale: bool = False,
    limit: int | None = None,
    validation: float | int | None = None,
    seed: int = 0,
    download: bool = True,
) -> ImageData:
    """A data set as float32 images (n, C, H, W) in [0, 1] and int64 labels (n,).

    Args:
        name: one of `names()`. `emnist` is EMNIST's 10-class split "mnist" (60,000 images), `emnist_digits` its split
            "digits" (240,000); `notmnist` and `photos` have only a test split, to be used out of distribution.
        root: the data folder; None takes LEARNED_SAMPLERS_DATA, else ~/.cache/learned_samplers.
        size: side of the images in pixels (bilinear with antialiasing); None keeps their own.
        grayscale: turn colour into luma, one channel.
        limit: number of training images to keep, chosen at random with the classes in proportion; None keeps all.
        validation: how much of the training images to hold out for validation, with the classes in proportion: a
            fraction below 1, or a number of images; None takes the data set's own validation split (MedMNIST; the
            last 9,040 training images of CIFAR), or where there is none a tenth.
        seed: of the choice of the validation images and of `limit`. The test split never changes.
        download: whether missing files may be downloaded.

    Raises:
        FileNotFoundError: a file is missing and cannot be downloaded; says which, where, and how to get it.
        ValueError: an unknown name, a damaged file, or an argument out of range.
        TypeError: an argument of the wrong type.
    """
    _check_int("size", size)
    _check_int("limit", limit)
    raw = _read(name, data_root(root), size, grayscale, download)
    train, val = _split(raw, validation, seed, name)
    if limit is not None:
        if limit > len(train[1]):
            raise ValueError(f"limit={limit} exceeds the {len(train[1])} training images of {name}")
        chosen, _ = stratified_split(train[1], limit, seed, "limit")
        train = (train[0][chosen], train[1][chosen])

    def finish(split: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return scale_images(split[0], raw.maximum, size, grayscale), split[1]

    return ImageData(name, raw.num_classes, *finish(train), *finish(val), *finish(raw.test))


def out_of_distribution(name: str) -> str:
    """The data set that stands for out-of-distribution images beside `name`, unless a user names another one.

    MNIST and Fashion-MNIST are each other's; every other data set gets `photos`, which needs no download.

    Raises:
        ValueError: an unknown name.
    """
    check_name(name)
    return _OUT_OF_DISTRIBUTION.get(name, "photos")


def check_name(name: str, argument: str = "name") -> None:
    """Raise TypeError or ValueError, calling it ``argument``, if there is no data set of that name."""
    if not isinstance(name, str):
        raise TypeError(f"{argument} must be a string, got {name!r}")
    if not name.startswith("npz:") and name not in names() and name not in medmnist_info():
        raise ValueError(f"{argument}={name!r} is unknown; choose one of {', '.join(names())}")


def _check_int(argument: str, value: int | None) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{argument} must be an integer or None, got {value!r}")
    if value < 1:
        raise ValueError(f"{argument} must be at least 1, got {value}")


def _read(name: str, root: Path, size: int | None, grayscale: bool, download: bool) -> RawSplits:
    check_name(name)
    if name.startswith("npz:"):
        return read_splits(Path(name.removeprefix("npz:")).expanduser())
    if name == "digits":
        return read_digits()
    if name == "photos":
        return read_photos(size, grayscale)
    if name == "notmnist":
        return read_notmnist(root)
    if name in IDX_CLASSES:
        return read_idx_family(name, root, download)
    if name in ("cifar10", "cifar100"):
        return read_cifar(name, root, download)
    if name == "svhn":
        return read_svhn(root, download)
    return read_medmnist(name, root, download)


def _split(
    raw: RawSplits, validation: float | int | None, seed: int, name: str
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The training and validation images and labels."""
    empty = (raw.test[0][:0], raw.test[1][:0])
    if validation is not None and (isinstance(validation, bool) or not isinstance(validation, int | float)):
        raise TypeError(f"validation must be a fraction, a number of images or None, got {validation!r}")
    if raw.train is None or raw.val is not None:
        if validation is not None:
            own = "no training images" if raw.val is None else f"{len(raw.val[1])} validation images of its own"
            raise ValueError(f"validation={validation} cannot be applied: {name} has {own}; leave it None")
        return raw.train or empty, raw.val or empty
    x, y = raw.train
    share = _DEFAULT_VALIDATION if validation is None else validation
    if not 0 <= share < len(y) or (isinstance(share, float) and share >= 1):
        raise ValueError(f"validation must be a fraction in [0, 1) or a number of images below {len(y)}, got {share}")
    count = round(share * len(y)) if isinstance(share, float) else share
    held_out, rest = stratified_split(y, count, seed, "validation")
    index = torch.sort(rest).values  # keeps the training images in the order of the file
    return (x[index], y[index]), (x[held_out], y[held_out])
