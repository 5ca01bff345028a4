"""The data sets by name, and what reads each: to add one, write its reader and put it into `READERS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from meta_tasks.datasets.embedded import read_digits, read_photos
from meta_tasks.datasets.image_data import RawSplits
from meta_tasks.datasets.npz import medmnist_flags, medmnist_info, read_medmnist, read_splits
from meta_tasks.datasets.overlaid import CANVAS, read_cluttered
from meta_tasks.datasets.tiny_imagenet import read_tiny_imagenet
from meta_tasks.datasets.torchvision_sets import IDX_CLASSES, read_cifar, read_idx_family, read_notmnist, read_svhn

__all__ = ["READERS", "Request", "check_name", "names", "out_of_distribution", "reader_of", "shape_of"]


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
