"""The UCI regression sets with their usual splits, from npz files, and the mushrooms."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from meta_tasks.datasets import data_root
from meta_tasks.datasets.files import fetch, read_npz

#: Smallest first.
NAMES = (
    *("yacht", "bostonHousing", "energy", "concrete", "wine-quality-red", "kin8nm", "power-plant"),
    *("naval-propulsion-plant", "protein-tertiary-structure"),
)


@dataclass(frozen=True)
class RegressionData:
    """Inputs (N, d), targets (N,) in their own units, and the rows of every split's test part, (splits, T)."""

    name: str
    x: Tensor
    y: Tensor
    test_index: Tensor

    def train_index(self) -> Tensor:
        """The other rows of every split, in order, (splits, N − T)."""
        rows = torch.arange(len(self.y))
        return torch.stack([rows[~torch.isin(rows, test)] for test in self.test_index])


@dataclass(frozen=True)
class Standardised:
    """G splits of equal size in single precision, rows first: x (n, G, d), y (n, G), both standardised.

    Mean and standard deviation, (G,) of the target, are those of the training rows; an input that is constant there is
    divided by one.
    """

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    mean: Tensor
    deviation: Tensor

    @property
    def groups(self) -> int:
        return self.train_y.shape[1]

    @property
    def num_data(self) -> int:
        return len(self.train_y)


def load(name: str, root: str | os.PathLike[str] | None = None) -> RegressionData:
    """The set of that name, from ``uci/<name>.npz`` below the data root (see `meta_tasks.datasets`).

    The file holds x (N, d), y (N,) and test_index (splits, T): rows of the test part; all others are for training.
    """
    path = data_root(root) / "uci" / f"{name}.npz"
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is missing; put the UCI sets there as npz files with x, y and test_index, or name another data "
            "root by LEARNED_SAMPLERS_DATA"
        )
    arrays = read_npz(path)
    for key, dimensions, letters in (("x", 2, "f"), ("y", 1, "f"), ("test_index", 2, "iu")):
        array = arrays.get(key)
        if array is None or array.ndim != dimensions or array.dtype.kind not in letters or 0 in array.shape:
            numbers = "real numbers" if letters == "f" else "integers"
            what = "nothing" if array is None else f"{array.dtype} {array.shape}"
            raise ValueError(f"{path}, key {key!r}: expected {dimensions} axes of {numbers}, got {what}")
        if not np.isfinite(array).all():
            raise ValueError(f"{path}, key {key!r}: some values are not finite")
    x, y, test = arrays["x"], arrays["y"], arrays["test_index"]
    if len(x) != len(y):
        raise ValueError(f"{path}, key 'y': {len(y)} targets for {len(x)} rows of 'x'")
    if test.min() < 0 or test.max() >= len(y):
        raise ValueError(f"{path}, key 'test_index': rows must lie in [0, {len(y)}), got {test.min()} to {test.max()}")
    if test.shape[1] >= len(y) - 1 or any(len(np.unique(rows)) < len(rows) for rows in test):
        raise ValueError(f"{path}, key 'test_index': a split names a row twice or leaves no two rows to train on")
    tensors = (torch.from_numpy(a.astype(t)) for a, t in ((x, np.float64), (y, np.float64), (test, np.int64)))
    return RegressionData(name, *tensors)


def standardise(data: RegressionData, train: Tensor, test: Tensor) -> Standardised:
    """The rows ``train`` (G, n) and ``test`` (G, T), by mean and deviation of the former."""
    x, y = data.x[train.T], data.y[train.T]
    centre, scale = x.mean(0), x.std(0, correction=0)
    scale = torch.where(scale > 1e-12 * (1 + centre.abs()), scale, 1.0)
    mean, deviation = y.mean(0), y.std(0, correction=0)
    if not (deviation > 0).all():
        raise ValueError(f"{data.name}: the training targets of a split are all the same")
    inputs = [((rows - centre) / scale).float() for rows in (x, data.x[test.T])]
    targets = [((rows - mean) / deviation).float() for rows in (y, data.y[test.T])]
    return Standardised(inputs[0], targets[0], inputs[1], targets[1], mean, deviation)


def validation_folds(data: RegressionData, folds: int) -> tuple[Tensor, Tensor]:
    """Rows to fit and to validate on, (folds, n) and (folds, T): disjoint fifths of the training part of split 0.

    The test rows of split 0 are in neither.
    """
    rows = data.train_index()[0]
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
    size = len(rows) // 5
    parts = [(torch.cat([rows[: k * size], rows[(k + 1) * size :]]), rows[k * size :][:size]) for k in range(folds)]
    return torch.stack([fit for fit, _ in parts]), torch.stack([held for _, held in parts])


def mushroom_file(root: str | os.PathLike[str] | None = None) -> Path:
    """UCI's file of the mushrooms, under the data root."""
    path = data_root(root) / "mushroom" / "agaricus-lepiota.data"
    if not path.is_file():
        where = "take agaricus-lepiota.data from https://archive.ics.uci.edu/dataset/73/mushroom"
        fetch("mushroom", str(path), where, None)
    return path
