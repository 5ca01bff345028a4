"""`load`: one data set by its name, as tensors; `fingerprint_of`: what tells its files from others."""

from __future__ import annotations

import os

import torch
from torch import Tensor

from learned_samplers.base.validation import whole
from meta_tasks.datasets.files import data_root
from meta_tasks.datasets.image_data import ImageData, RawSplits, scale_images, stratified_split
from meta_tasks.datasets.registry import Request, check_name, reader_of
from meta_tasks.fingerprints import fingerprint

__all__ = ["fingerprint_of", "load"]

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
