"""Multi-MNIST, Multi-Fashion and Multi-Fashion+MNIST, made from MNIST and Fashion-MNIST.

The files that the multi-task literature shares (Sabour et al., NeurIPS 2017; Lin et al., NeurIPS 2019) cannot be had
any more. This is a re-creation with a fixed seed: numbers on it stand beside published ones, not in their place.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor

from learned_samplers.base.validation import integer, one_of
from meta_tasks.datasets.files import data_root
from meta_tasks.datasets.images import CHUNK, SPLITS, Examples, MultiTaskData, RawSplits, resize
from meta_tasks.datasets.torchvision_sets import read_idx_family

#: Name → what lies in the top-left corner, and what in the bottom-right one.
OVERLAID = {
    "multi_fashion_mnist": ("fashion_mnist", "mnist"),
    "multi_mnist": ("mnist", "mnist"),
    "multi_fashion": ("fashion_mnist", "fashion_mnist"),
}
TASKS = ("top left", "bottom right")
IMAGE, CANVAS, SHIFT = 28, 36, 4  # sides in pixels; how far at most an image lies from its corner, each way
_TEST_SEED = 2022  # the test images are the same for every seed


def load_overlaid(
    name: str,
    root: str | os.PathLike[str] | None = None,
    *,
    size: int = 28,
    validation: int = 6000,
    partners: int = 2,
    limit: int | None = None,
    limit_validation: int | None = None,
    limit_test: int | None = None,
    seed: int = 0,
    download: bool = True,
) -> MultiTaskData:
    """Two images on one canvas of 36×36 pixels, by their larger value at each pixel; the tasks are to name each.

    One image lies in the top-left corner, moved by 0 to 4 pixels down and to the right, the other in the bottom-right
    one, moved up and to the left, all at random. Every image of the source is the first of `partners` pairs, and the
    second of as many. The validation pairs are made of training images of the source that are in no training pair, the
    test pairs of its test images.

    Args:
        name: "multi_mnist", "multi_fashion", or "multi_fashion_mnist", where Fashion-MNIST lies top left.
        root: the data folder, as for `load`.
        size: side in pixels: 36 as they are made, or another, resized (bilinear with antialiasing).
        validation: number of the source's 60,000 training images that are held out for validation.
        partners: pairs that an image is the first of: with 2 there are 2·(60,000 − validation) training, 2·validation
            validation and 20,000 test pairs.
        limit, limit_validation, limit_test: number of pairs to make of each split, chosen at random; None makes all.
        seed: of the pairs, their places, and the images held out. The test pairs never change, but for how many
            there are.
        download: whether missing files may be downloaded.

    Raises:
        FileNotFoundError: as for `load`.
        ValueError, TypeError: an unknown name, or an argument out of range or of a wrong type.
    """
    one_of("name", name, OVERLAID)
    integer("size", size)
    integer("validation", validation, least=0)
    integer("partners", partners)
    limits = {"limit": limit, "limit_validation": limit_validation, "limit_test": limit_test}
    for argument, value in limits.items():
        if value is not None:
            integer(argument, value)
    folder = data_root(root)
    read = {source: read_idx_family(source, folder, download) for source in dict.fromkeys(OVERLAID[name])}
    first, second = (read[source] for source in OVERLAID[name])
    stream, test_stream = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(_TEST_SEED)
    held_out, kept = _held_out(first, second, validation, stream)
    sources = (torch.arange(len(first.test[1])), torch.arange(len(second.test[1])))
    pairs = {
        "train": _pairs(kept, partners, limit, "limit", stream),
        "val": _pairs(held_out, partners, limit_validation, "limit_validation", stream),
        "test": _pairs(sources, partners, limit_test, "limit_test", test_stream),
    }
    parts: list[Tensor] = []
    for split in SPLITS:
        upper, lower = (source.test if split == "test" else _training(source) for source in (first, second))
        parts += _render(upper, lower, pairs[split], size, test_stream if split == "test" else stream)
    return MultiTaskData(name, first.num_classes, *parts, tasks=TASKS)


def read_cluttered(root: str | os.PathLike[str] | None, download: bool) -> RawSplits:
    """Fashion-MNIST with a second of its images in the way: to be named is the one top left, as in "multi_fashion".

    Hard for its size: a network learns what to look past. A tenth of the source is for validation.
    """
    source = read_idx_family("fashion_mnist", data_root(root), download)
    held_out = len(_training(source)[1]) // 10
    data = load_overlaid(
        "multi_fashion", root, size=CANVAS, validation=held_out, partners=1, limit_test=len(source.test[1])
    )
    return RawSplits(data.num_classes, 255.0, **{name: (x, y[:, 0]) for name in SPLITS for x, y in [data.split(name)]})


Indices = tuple[Tensor, Tensor]  # of images of the first source, and of the second


def _training(source: RawSplits) -> Examples:
    assert source.train is not None
    return source.train


def _held_out(first: RawSplits, second: RawSplits, count: int, stream: torch.Generator) -> tuple[Indices, Indices]:
    """Indices into the two sources for validation, and for training; one source used twice is divided in one way."""
    total, partners = (len(_training(source)[1]) for source in (first, second))
    if count >= min(total, partners):
        raise ValueError(f"validation must leave some of {min(total, partners)} training images, got {count}")
    order = torch.randperm(total, generator=stream)
    orders = (order, order if first is second else torch.randperm(partners, generator=stream))
    return (orders[0][:count], orders[1][:count]), (orders[0][count:], orders[1][count:])


def _pairs(sources: Indices, partners: int, limit: int | None, argument: str, stream: torch.Generator) -> Indices:
    """Indices of the pairs: each image of the first source with `partners` of the second, in random order."""
    first, second = sources
    total = partners * len(first)
    if limit is not None and limit > total:
        raise ValueError(f"{argument}={limit} exceeds the {total} pairs that there are")
    rounds = [second[torch.randperm(len(second), generator=stream)[: len(first)]] for _ in range(partners)]
    order = torch.randperm(total, generator=stream)[:limit]
    return first.repeat(partners)[order], torch.cat(rounds)[order]


def _render(first: Examples, second: Examples, pairs: Indices, size: int, stream: torch.Generator) -> Examples:
    """Images (n, 1, size, size) in uint8, and labels (n, 2)."""
    shifts = torch.randint(SHIFT + 1, (len(pairs[0]), 4), generator=stream)
    parts = []
    for a, b, shift in zip(pairs[0].split(CHUNK), pairs[1].split(CHUNK), shifts.split(CHUNK), strict=True):
        canvas = overlay(first[0][a, 0], second[0][b, 0], shift)[:, None]
        parts.append(canvas if size == CANVAS else (resize(canvas.float() / 255, size) * 255).round().to(torch.uint8))
    return torch.cat(parts), torch.stack([first[1][pairs[0]], second[1][pairs[1]]], 1)


def overlay(top_left: Tensor, bottom_right: Tensor, shifts: Tensor) -> Tensor:
    """The larger of two images at each pixel of a canvas, (n, 36, 36), of images (n, 28, 28).

    Args:
        shifts: (n, 4): pixels down and to the right of the first from its corner, up and to the left of the second.
    """
    canvas = top_left.new_zeros(len(top_left), CANVAS, CANVAS)
    far = CANVAS - IMAGE
    for images, shift, sign in ((top_left, shifts[:, :2], 1), (bottom_right, shifts[:, 2:], -1)):
        corner = shift if sign == 1 else far - shift
        for place in corner.unique(dim=0):
            chosen = (corner == place).all(1).nonzero()[:, 0]
            rows, columns = (slice(int(start), int(start) + IMAGE) for start in place)
            canvas[chosen, rows, columns] = torch.maximum(canvas[chosen, rows, columns], images[chosen])
    return canvas
