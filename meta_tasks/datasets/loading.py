"""Data sets of images by name: `READERS`, `load`, `fingerprint_of`. To add one, write its reader and put it there."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from learned_samplers.base.validation import integer
from meta_tasks.datasets.files import data_root
from meta_tasks.datasets.images import Examples, ImageData, RawSplits, held_out, limited, scale_images
from meta_tasks.datasets.npz import medmnist_flags, medmnist_info, read_medmnist, read_splits
from meta_tasks.datasets.overlaid import read_cluttered
from meta_tasks.datasets.sklearn_sets import read_digits, read_photos
from meta_tasks.datasets.torchvision_sets import IDX_CLASSES, read_cifar, read_idx_family, read_notmnist, read_svhn
from meta_tasks.fingerprints import fingerprint

__all__ = ["READERS", "Request", "check_name", "fingerprint_of", "load", "names", "out_of_distribution"]


@dataclass(frozen=True)
class Request:
    """Request of `load` to a reader.

    Args:
        name: of the data set.
        root: the data folder.
        download: whether missing files may be downloaded.
        size, grayscale: of the images, for readers whose images depend on them; `load` resizes those of the others.
    """

    name: str
    root: Path
    download: bool = True
    size: int | None = None
    grayscale: bool = False


Reader = Callable[[Request], RawSplits]

#: Name → what reads the data set. Those of MedMNIST and ``npz:FILE`` are read without an entry here.
READERS: dict[str, Reader] = {
    "digits": lambda _: read_digits(),
    **dict.fromkeys(IDX_CLASSES, lambda request: read_idx_family(request.name, request.root, request.download)),
    "cluttered_fashion": lambda request: read_cluttered(request.root, request.download),
    **dict.fromkeys(("cifar10", "cifar100"), lambda request: read_cifar(request.name, request.root, request.download)),
    "svhn": lambda request: read_svhn(request.root, request.download),
    "notmnist": lambda request: read_notmnist(request.root),
    "photos": lambda request: read_photos(request.size, request.grayscale),
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


def out_of_distribution(name: str) -> str:
    """The data set that stands for out-of-distribution images beside `name`, unless a user names another one.

    MNIST and Fashion-MNIST are each other's; every other data set gets `photos`, which needs no download.

    Raises:
        ValueError: an unknown name.
    """
    check_name(name)
    return _OUT_OF_DISTRIBUTION.get(name, "photos")


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
    check_name(name)
    if size is not None:
        integer("size", size)
    raw, train, val = _read(Request(name, data_root(root), download, size, grayscale), validation, seed)

    def finish(split: Examples) -> Examples:
        return scale_images(split[0], raw.maximum, size, grayscale), split[1]

    train = limited(train, limit, seed, name)
    return ImageData(name, raw.num_classes, *finish(train), *finish(val), *finish(raw.test))


def fingerprint_of(
    name: str, root: str | os.PathLike[str] | None = None, *, size: int | None = None, grayscale: bool = False
) -> str:
    """Fingerprint that changes with any pixel or label of a data set's three splits, and is the same on every machine.

    It is of the pixels as the files hold them: the last bits of resized ones depend on the processor. Arguments and
    errors are those of `load`; the size matters only for readers whose images depend on it.
    """
    check_name(name)
    raw, train, val = _read(Request(name, data_root(root), True, size, grayscale))
    return f"{raw.num_classes}/{raw.maximum:g}/{fingerprint([*train, *val, *raw.test])}"


def _read(
    request: Request, validation: float | int | None = None, seed: int = 0
) -> tuple[RawSplits, Examples, Examples]:
    """Read a data set: all of it, and its training and validation images and labels."""
    name = request.name
    if name.startswith("npz:"):
        raw = read_splits(Path(name.removeprefix("npz:")).expanduser())
    elif name in READERS:
        raw = READERS[name](request)
    else:
        raw = read_medmnist(name, request.root, request.download)
    if raw.train is not None and raw.val is None:
        return raw, *held_out(*raw.train, validation, seed)
    if validation is not None:
        images = "no training images" if raw.val is None else f"{len(raw.val[1])} validation images of its own"
        raise ValueError(f"validation={validation} cannot be applied: {name} has {images}; leave it None")
    empty = (raw.test[0][:0], raw.test[1][:0])
    return raw, raw.train or empty, raw.val or empty
