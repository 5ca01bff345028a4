"""Data sets of images by name: `READERS`, `load`, `fingerprint_of`. To add one, write its reader and put it there."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from learned_samplers.base.validation import whole
from meta_tasks.datasets.files import data_root
from meta_tasks.datasets.images import ImageData, RawSplits, scale_images, stratified_split
from meta_tasks.datasets.npz import medmnist_flags, medmnist_info, read_medmnist, read_splits
from meta_tasks.datasets.overlaid import CANVAS, read_cluttered
from meta_tasks.datasets.sklearn_sets import read_digits, read_photos
from meta_tasks.datasets.tiny_imagenet import read_tiny_imagenet
from meta_tasks.datasets.torchvision_sets import IDX_CLASSES, read_cifar, read_idx_family, read_notmnist, read_svhn
from meta_tasks.fingerprints import fingerprint

__all__ = [
    "READERS",
    "Request",
    "check_name",
    "fingerprint_of",
    "load",
    "names",
    "out_of_distribution",
    "reader_of",
    "shape_of",
]


@dataclass(frozen=True)
class Request:
    """What `load` asks a reader for.

    Args:
        name: of the data set.
        root: the data folder.
        download: whether missing files may be downloaded.
        size, grayscale: of the images, for readers whose images depend on them; `load` resizes those of the others.
    """

    name: str
    root: Path
    download: bool
    size: int | None
    grayscale: bool


Reader = Callable[[Request], RawSplits]

#: Name → what reads the data set. Those of MedMNIST and ``npz:FILE`` are read without an entry here.
READERS: dict[str, Reader] = {
    "digits": lambda _: read_digits(),
    **dict.fromkeys(IDX_CLASSES, lambda request: read_idx_family(request.name, request.root, request.download)),
    "cluttered_fashion": lambda request: read_cluttered(request.root, request.download),
    **dict.fromkeys(("cifar10", "cifar100"), lambda request: read_cifar(request.name, request.root, request.download)),
    "svhn": lambda request: read_svhn(request.root, request.download),
    "tiny_imagenet": lambda request: read_tiny_imagenet(request.root),
    "notmnist": lambda request: read_notmnist(request.root),
    "photos": lambda request: read_photos(request.size, request.grayscale),
}

_SHAPES = {
    "digits": ((1, 8, 8), 10),
    "cluttered_fashion": ((1, CANVAS, CANVAS), 10),
    "cifar10": ((3, 32, 32), 10),
    "cifar100": ((3, 32, 32), 100),
    "svhn": ((3, 32, 32), 10),
    "tiny_imagenet": ((3, 64, 64), 200),
}
_OUT_OF_DISTRIBUTION = {"mnist": "fashion_mnist", "fashion_mnist": "mnist"}


def names() -> tuple[str, ...]:
    """The names that `load` takes; `npz:FILE` stands for any npz file in MedMNIST layout."""
    return (*READERS, *medmnist_flags(), "npz:FILE")


def check_name(name: str, argument: str = "name") -> None:
    """Raise TypeError or ValueError, calling it ``argument``, if there is no data set of that name."""
    if not isinstance(name, str):
        raise TypeError(f"{argument} must be a string, got {name!r}")
    if name not in READERS and not name.startswith("npz:") and name not in medmnist_info():
        raise ValueError(f"{argument}={name!r} is unknown; choose one of {', '.join(names())}")


def reader_of(name: str) -> Reader:
    """What reads the data set of a name that `check_name` accepts."""
    if name.startswith("npz:"):
        return lambda request: read_splits(Path(request.name.removeprefix("npz:")).expanduser())
    return READERS.get(name, lambda request: read_medmnist(request.name, request.root, request.download))


def shape_of(name: str) -> tuple[tuple[int, int, int], int]:
    """(C, H, W) and the number of classes of a data set, known without its files.

    Raises:
        ValueError: an unknown name, or ``npz:FILE``.
    """
    check_name(name)
    if name in IDX_CLASSES or name == "notmnist":
        return (1, 28, 28), 10
    if name in _SHAPES:
        return _SHAPES[name]
    if name not in medmnist_flags():
        raise ValueError(f"the shape of {name!r} is not known without its files")
    info = medmnist_info()[name]
    return (info["n_channels"], 28, 28), len(info["label"])


def out_of_distribution(name: str) -> str:
    """The data set that stands for out-of-distribution images beside `name`, unless a user names another one.

    MNIST and Fashion-MNIST are each other's; every other data set gets `photos`, which needs no download.

    Raises:
        ValueError: an unknown name.
    """
    check_name(name)
    return _OUT_OF_DISTRIBUTION.get(name, "photos")


_DEFAULT_VALIDATION = 0.1


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
            "digits" (240,000); `cluttered_fashion` is Fashion-MNIST with a second image in the way; `notmnist` and
            `photos` have only a test split, to be used out of distribution.
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
    for argument, value in (("size", size), ("limit", limit)):
        if value is not None:
            whole(argument, value)
    raw, train, val = _read(name, root, size, grayscale, validation, seed, download)
    if limit is not None:
        if limit > len(train[1]):
            raise ValueError(f"limit={limit} exceeds the {len(train[1])} training images of {name}")
        chosen, _ = stratified_split(train[1], limit, seed, "limit")
        train = (train[0][chosen], train[1][chosen])

    def finish(split: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return scale_images(split[0], raw.maximum, size, grayscale), split[1]

    return ImageData(name, raw.num_classes, *finish(train), *finish(val), *finish(raw.test))


def fingerprint_of(
    name: str, root: str | os.PathLike[str] | None = None, *, size: int | None = None, grayscale: bool = False
) -> str:
    """What changes with any pixel or label of a data set's three splits, and is the same on every machine.

    It is of the pixels as the files hold them: the last bits of resized ones depend on the processor. Arguments and
    errors are those of `load`; the size matters only for readers whose images depend on it.
    """
    raw, train, val = _read(name, root, size, grayscale)
    return f"{raw.num_classes}/{raw.maximum:g}/{fingerprint([*train, *val, *raw.test])}"


def _read(
    name: str,
    root: str | os.PathLike[str] | None,
    size: int | None,
    grayscale: bool,
    validation: float | int | None = None,
    seed: int = 0,
    download: bool = True,
) -> tuple[RawSplits, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """What the reader gives, and its training and validation images and labels."""
    check_name(name)
    raw = reader_of(name)(Request(name, data_root(root), download, size, grayscale))
    return raw, *_split(raw, validation, seed, name)


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
