"""CIFAR-10-C and CIFAR-100-C: the test images of CIFAR under corruptions of five severities, from the published files.

Hendrycks and Dietterich, "Benchmarking neural network robustness to common corruptions and perturbations" (ICLR 2019).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from learned_samplers.base import validation
from meta_tasks.datasets.files import data_root, fetch, read_npy
from meta_tasks.datasets.images import ImageData, scale_images

__all__ = ["CORRUPTIONS", "SEVERITIES", "find_corrupted", "load_corrupted"]

#: The fifteen corruptions of the benchmark, by kind: noise, blur, weather, digital.
CORRUPTIONS = (
    *("gaussian_noise", "shot_noise", "impulse_noise"),
    *("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    *("snow", "frost", "fog", "brightness"),
    *("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
)
SEVERITIES = (1, 2, 3, 4, 5)


class _Source(NamedTuple):
    folder: str
    num_classes: int
    address: str


_SOURCES = {
    "cifar10": _Source("CIFAR-10-C", 10, "https://zenodo.org/records/2535967"),
    "cifar100": _Source("CIFAR-100-C", 100, "https://zenodo.org/records/3555552"),
}


def load_corrupted(
    name: str,
    corruption: str,
    severity: int,
    root: str | os.PathLike[str] | None = None,
    *,
    size: int | None = None,
    grayscale: bool = False,
) -> ImageData:
    """The test images of CIFAR under one corruption at one severity, with their labels; no training images.

    ``<root>/CIFAR-10-C/<corruption>.npy`` holds the images of all severities one after the other, (5·n, 32, 32, 3) in
    uint8, and labels.npy beside it the labels, (5·n,); n is 10,000 in the published files. Of the images those of the
    severity alone are read.

    Args:
        name: "cifar10" or "cifar100".
        corruption: one of `CORRUPTIONS`.
        severity: 1 to 5.
        root, size, grayscale: as for `load`.

    Raises:
        FileNotFoundError: a file is missing; says which, where, and how to get it.
        ValueError: an argument out of range, or a file that is damaged or of another shape.
    """
    validation.one_of("corruption", corruption, CORRUPTIONS)
    validation.one_of("severity", severity, SEVERITIES)
    if size is not None:
        validation.integer("size", size)
    images, labels = (_file(name, stem, root) for stem in (corruption, "labels"))
    classes = _SOURCES[name].num_classes
    x, y = read_npy(images, mapped=True), read_npy(labels)
    count, remainder = divmod(len(x), len(SEVERITIES)) if x.ndim else (0, 0)
    if x.shape[1:] != (32, 32, 3) or x.dtype != np.uint8 or remainder or not count:
        raise ValueError(f"{images} must be uint8 of shape (5·n, 32, 32, 3), got {x.dtype} of shape {x.shape}")
    if y.shape != (len(x),) or not np.issubdtype(y.dtype, np.integer):
        raise ValueError(f"{labels} must hold {len(x)} integers, one an image, got {y.dtype} of shape {y.shape}")
    if not 0 <= y.min() <= y.max() < classes:
        raise ValueError(f"{labels} must lie in [0, {classes}), got {y.min()} to {y.max()}")
    part = slice((severity - 1) * count, severity * count)
    pixels = torch.from_numpy(np.ascontiguousarray(x[part].transpose(0, 3, 1, 2)))
    test = scale_images(pixels, 255.0, size, grayscale), torch.from_numpy(y[part].astype(np.int64))
    none = test[0][:0], test[1][:0]
    return ImageData(f"{name} with {corruption} {severity}", classes, *none, *none, *test)


def find_corrupted(name: str, root: str | os.PathLike[str] | None = None) -> list[Path]:
    """The files of the benchmark's fifteen corruptions and their labels, none of them read; arguments and errors are
    those of `load_corrupted`."""
    return [_file(name, stem, root) for stem in (*CORRUPTIONS, "labels")]


def _file(name: str, stem: str, root: str | os.PathLike[str] | None) -> Path:
    validation.one_of("name", name, _SOURCES)
    source = _SOURCES[name]
    path = data_root(root) / source.folder / f"{stem}.npy"
    if not path.is_file():
        how = f"unpack {source.folder}.tar of {source.address} into {data_root(root)}"
        fetch(f"{name}-c", str(path), how, None)
    return path
