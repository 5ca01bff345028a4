"""Sources that need no download, because scikit-learn ships them: handwritten digits, and patches of photographs."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from learned_samplers.base.optional import require
from meta_tasks.datasets.images import RawSplits, resize, stratified_split, to_grayscale

DIGITS_TEST = 899  # images of the fixed test split: the half that scikit-learn's own examples test on, but stratified
PHOTO_PATCHES = 2000
PHOTO_SIZE = 32


def read_digits() -> RawSplits:
    """scikit-learn's 1,797 handwritten digits, 8×8 with 17 grey levels (UCI optical recognition of digits).

    The 899 test images are always the same stratified choice, whatever the seed of the validation split.
    """
    bunch = require("sklearn.datasets", "meta").load_digits()
    x = torch.from_numpy(bunch.images).to(torch.uint8)[:, None]
    y = torch.from_numpy(bunch.target).long()
    test, train = stratified_split(y, DIGITS_TEST, seed=0, argument="test")
    return RawSplits(10, 16.0, train=(x[train], y[train]), test=(x[test], y[test]))


def read_photos(size: int | None, grayscale: bool) -> RawSplits:
    """2,000 square patches, in colour or grey, of scikit-learn's two photographs, an out-of-distribution test set.

    The side of a patch is log-uniform between `size` (default 32) and 8·size pixels (at most 256); it is resized to
    `size` and its contrast stretched to [0, 1], so that brightness alone does not tell it from other images; nearly
    uniform patches are left out. The label is the index of the photograph. The patches are always the same.
    """
    side = PHOTO_SIZE if size is None else size
    images = require("sklearn.datasets", "meta").load_sample_images().images
    photographs = [torch.from_numpy(image.copy()).permute(2, 0, 1)[None] / 255 for image in images]
    if grayscale:
        photographs = [to_grayscale(photograph) for photograph in photographs]
    height, width = photographs[0].shape[-2:]
    if side > min(height, width):
        raise ValueError(f"size={size} is larger than the photographs, {height}×{width} pixels")
    random = np.random.default_rng(0)
    largest = max(side, min(8 * side, 256))
    patches: list[Tensor] = []
    labels: list[int] = []
    while len(patches) < PHOTO_PATCHES:
        label = len(patches) % len(photographs)
        cut = round(math.exp(random.uniform(math.log(side), math.log(largest))))
        top, left = random.integers(height - cut + 1), random.integers(width - cut + 1)
        patch = resize(photographs[label][..., top : top + cut, left : left + cut], side)
        low, high = patch.min(), patch.max()
        if high - low < 0.1:  # a featureless patch of sky: stretching would show only quantisation
            continue
        patches.append((patch - low) / (high - low))
        labels.append(label)
    return RawSplits(len(photographs), 1.0, test=(torch.cat(patches), torch.tensor(labels)))
