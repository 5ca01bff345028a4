"""MedMNIST, and any npz file in its layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from learned_samplers.base.optional import require
from meta_tasks.datasets.files import fetch, find, read_npz
from meta_tasks.datasets.images import SPLITS, Examples, RawSplits

#: A network has an output for each class: larger labels are something else than classes.
MOST_CLASSES = 2**16


def medmnist_info() -> dict[str, dict[str, Any]]:
    """MedMNIST's own table of data sets, by flag."""
    return require("medmnist", "meta").INFO  # slow to import: it pulls in pandas and scikit-image


def medmnist_flags() -> list[str]:
    """The two-dimensional MedMNIST data sets with one label per image."""
    return [flag for flag, info in medmnist_info().items() if "3d" not in flag and "multi-label" not in info["task"]]


def read_medmnist(flag: str, root: Path, download: bool) -> RawSplits:
    """Read a MedMNIST data set at 28×28 from <root>/medmnist/<flag>.npz or <root>/<flag>.npz.

    Binary and ordinal tasks (breastmnist, pneumoniamnist, retinamnist) are read as classification.

    Raises:
        ValueError: the data set has several labels per image, or is made of volumes.
    """
    info = medmnist_info()[flag]
    if flag not in medmnist_flags():
        contents = "volumes" if "3d" in flag else f"a {info['task']} task"
        raise ValueError(f"name={flag!r} is {contents}; only images with one label each can be loaded")
    folder = root / "medmnist"
    path = find([folder / f"{flag}.npz", root / f"{flag}.npz"]) or folder / f"{flag}.npz"

    def get() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        getattr(require("medmnist", "meta"), info["python_class"])(split="train", download=True, root=str(folder))

    if not path.is_file():
        how = (
            f'on a machine with network, python -c "import medmnist; medmnist.{info["python_class"]}'
            f"(split='train', download=True, root='{folder}')\", or download {info['url']} and save it there"
        )
        fetch(flag, str(path), how, get if download else None)
    return read_splits(path, len(info["label"]))


def read_splits(path: Path, num_classes: int | None = None) -> RawSplits:
    """The splits of an npz in MedMNIST layout.

    Keys: train_images and test_images, (n, H, W) or (n, H, W, 1 or 3), uint8, or floats in [0, 1]; train_labels and
    test_labels, (n,) or (n, 1), integers from 0; val_images and val_labels may be absent.

    Args:
        path: the file.
        num_classes: number of classes; None takes the largest label plus one.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a key is missing, or an array has another shape, dtype or range.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no file {path}; npz:FILE needs one with x_train, y_train, x_test and y_test, or in MedMNIST "
            "layout"
        )
    arrays = read_npz(path)
    required = [f"{split}_{array}" for split in ("train", "test") for array in ("images", "labels")]
    if absent := [key for key in required if key not in arrays]:
        raise ValueError(f"{path} lacks {', '.join(absent)}; it has {', '.join(sorted(arrays)) or 'no arrays'}")
    if ("val_images" in arrays) != ("val_labels" in arrays):
        raise ValueError(f"{path} has one of val_images and val_labels without the other")
    splits = {
        name: _pixels_and_labels(path, name, arrays[f"{name}_images"], arrays[f"{name}_labels"])
        for name in SPLITS
        if f"{name}_images" in arrays
    }
    floating = {x.is_floating_point() for x, _ in splits.values()}
    if len(floating) > 1:
        raise ValueError(f"{path} mixes uint8 and floating-point images")
    if num_classes is None:
        num_classes = 1 + max(int(y.max()) for _, y in splits.values())
    return RawSplits(num_classes, 1.0 if floating == {True} else 255.0, **splits)


def _pixels_and_labels(path: Path, split: str, images: np.ndarray, labels: np.ndarray) -> Examples:
    shape, named = images.shape, f"{split}_images of {path}"
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim != 4 or images.shape[-1] not in (1, 3) or not len(images):
        raise ValueError(f"{named} must be (n, H, W) or (n, H, W, 1 or 3) with n > 0, got {shape}")
    if images.dtype != np.uint8:
        if not np.issubdtype(images.dtype, np.floating):
            raise ValueError(f"{named} must be uint8 or floats in [0, 1], got {images.dtype}")
        if not (images.min() >= 0 and images.max() <= 1):
            raise ValueError(f"{named} are floats and must lie in [0, 1], got {images.min()} to {images.max()}")
        images = images.astype(np.float32)
    named = f"{split}_labels of {path}"
    if labels.shape not in ((len(images),), (len(images), 1)):
        raise ValueError(f"{named} must be ({len(images)},), one label per image, got {labels.shape}")
    if not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"{named} must be integers, got {labels.dtype}")
    if not 0 <= labels.min() <= labels.max() < MOST_CLASSES:
        raise ValueError(f"{named} must lie in [0, {MOST_CLASSES}), got {labels.min()} to {labels.max()}")
    pixels = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
    return pixels, torch.from_numpy(labels.reshape(-1).astype(np.int64))
