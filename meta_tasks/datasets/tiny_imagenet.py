"""Tiny-ImageNet: 100,000 training and 10,000 validation images of 200 classes, 64×64 pixels, from its folder."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from meta_tasks.datasets.files import MOST_BYTES, decoded, fetch
from meta_tasks.datasets.images import RawSplits
from meta_tasks.datasets.npz import MOST_CLASSES

__all__ = ["read_tiny_imagenet"]

_FOLDER, _ARCHIVE = "tiny-imagenet-200", "http://cs231n.stanford.edu/tiny-imagenet-200.zip"


def read_tiny_imagenet(root: Path) -> RawSplits:
    """Tiny-ImageNet from <root>/tiny-imagenet-200; classes are numbered as in wnids.txt.

    Its validation images are the test split, as the labels of its test images were never published.

    Raises:
        FileNotFoundError: the folder, or a file that another one names, is missing.
        ValueError: a list is damaged, an image cannot be decoded, or one has another size than the others.
    """
    folder = root / _FOLDER
    if not (folder / "wnids.txt").is_file():
        fetch("tiny_imagenet", f"wnids.txt in {folder}", f"unpack {_ARCHIVE} in {root}", None)
    names = (folder / "wnids.txt").read_text().split()
    if not 2 <= len(names) <= MOST_CLASSES or len(set(names)) < len(names) or not all(map(_is_plain, names)):
        raise ValueError(f"{folder / 'wnids.txt'} must hold two or more names of classes, each once")
    training = []
    for label, name in enumerate(names):
        images = folder / "train" / name / "images"
        paths = sorted(images.glob("*.JPEG"))
        if not paths:
            raise FileNotFoundError(f"tiny_imagenet: {images} holds no JPEG files")
        training += [(path, label) for path in paths]
    validation = _annotated(folder / "val", {name: label for label, name in enumerate(names)})
    pixels, labels = _images(training + validation)
    n = len(training)
    return RawSplits(len(names), 255.0, train=(pixels[:n], labels[:n]), test=(pixels[n:], labels[n:]))


def _is_plain(name: str) -> bool:
    """True if a name stays in the folder that it is looked for in."""
    return Path(name).name == name and name not in (".", "..")


def _annotated(folder: Path, labels: dict[str, int]) -> list[tuple[Path, int]]:
    """The validation images with their labels: lines of a file name, a class and the corners of a box."""
    path, images = folder / "val_annotations.txt", []
    if not path.is_file():
        raise FileNotFoundError(f"tiny_imagenet: {path} is missing")
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        cells = line.split("\t")
        if len(cells) < 2 or not _is_plain(cells[0]) or cells[1] not in labels:
            raise ValueError(f"{path}, line {number}, must be a file name and a class of wnids.txt, got {line!r:.100}")
        images.append((folder / "images" / cells[0], labels[cells[1]]))
    if not images:
        raise ValueError(f"{path} is empty")
    return images


def _images(files: list[tuple[Path, int]]) -> tuple[Tensor, Tensor]:
    """Pixels (n, 3, H, W) in uint8 and labels (n,)."""
    pixels = torch.empty(0)
    for i, (path, _) in enumerate(files):
        if not path.is_file():
            raise FileNotFoundError(f"tiny_imagenet: {path} is missing")
        if (size := path.stat().st_size) > MOST_BYTES:
            raise ValueError(f"{path} has {size} bytes, an image at most {MOST_BYTES}")
        image = decoded(path.read_bytes(), str(path))
        if i == 0:
            pixels = torch.empty(len(files), *image.shape, dtype=torch.uint8)
        if image.shape != pixels.shape[1:]:
            height, width = pixels.shape[2:]
            raise ValueError(f"{path} has {image.shape[1]}×{image.shape[2]} pixels, the others {height}×{width}")
        pixels[i] = image
    return pixels, torch.tensor([label for _, label in files])
