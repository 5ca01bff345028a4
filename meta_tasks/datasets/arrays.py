"""Data of a user's own, inputs of any shape: tables, series, tokens; classes or real numbers as targets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from meta_tasks.datasets.files import read_npz
from meta_tasks.datasets.images import SPLITS, ImageData, held_out

#: The arrays of a data set; those of validation may be absent.
KEYS = ("x_train", "y_train", "x_val", "y_val", "x_test", "y_test")


@dataclass(frozen=True, eq=False)
class ArrayData(ImageData):
    """Inputs (n, ...) of any shape, float32 or (tokens) int64, with classes or real numbers as targets.

    Classes are int64 (n,) in [0, num_classes); the targets of a regression are float32 (n, k), and num_classes is 0.

    Raises:
        TypeError, ValueError: a tensor of another type or shape, numbers that are not finite, a label out of range.
    """

    def __post_init__(self) -> None:
        for name in SPLITS:
            x, y = self.split(name)
            names = f"{name}_x and {name}_y"
            dtype = torch.float32 if self.is_regression else torch.int64
            if x.dtype not in (torch.float32, torch.int64) or y.dtype != dtype:
                raise TypeError(f"{names} must be float32 or int64, and {dtype}, got {x.dtype} and {y.dtype}")
            if len(x) != len(y) or x.shape[1:] != self.test_x.shape[1:] or y.shape[1:] != self.test_y.shape[1:]:
                raise ValueError(
                    f"{names} must be as many, and shaped as test_x {tuple(self.test_x.shape)} and test_y "
                    f"{tuple(self.test_y.shape)}, got {tuple(x.shape)} and {tuple(y.shape)}"
                )
            if not all(tensor.isfinite().all() for tensor in (x, y)):
                raise ValueError(f"{names} must be finite")
            if not self.is_regression:
                self._check_labels(name, y)

    @property
    def is_regression(self) -> bool:
        """True if the targets are real numbers."""
        return self.num_classes == 0


def arrays_in(path: Path) -> dict[str, np.ndarray] | None:
    """The arrays of an npz file for `array_data`; None if it is of another layout, or not there."""
    arrays = read_npz(path) if path.is_file() else {}
    return arrays if "x_train" in arrays else None


def array_data(
    arrays: Mapping[str, Any], name: str = "arrays", *, validation: float | int | None = None, seed: int = 0
) -> ArrayData:
    """Data from arrays or tensors ``x_train``, ``y_train``, ``x_test``, ``y_test``, and maybe ``x_val``, ``y_val``.

    Inputs are (n, ...): floats, or integers (tokens), taken as they are: standardise them before. Targets are integers
    from 0, (n,), which makes it a classification, or floats (n,) or (n, k), a regression.

    Args:
        arrays: by these names.
        name: for messages and tables.
        validation: fraction (a float below 1), or number, of training examples to hold out where there is no
            ``x_val``; None is a tenth.
        seed: of that choice.

    Raises:
        TypeError, ValueError: an array is missing or unknown, or cannot be used; the message names it.
    """
    if missing := [key for key in KEYS if key not in arrays and not key.endswith("_val")]:
        raise ValueError(f"{name} lacks {', '.join(missing)}; it has {', '.join(sorted(arrays)) or 'no arrays'}")
    if unknown := sorted(set(arrays) - set(KEYS)):
        raise ValueError(f"{name} has unknown arrays {', '.join(unknown)}; known are {', '.join(KEYS)}")
    if ("x_val" in arrays) != ("y_val" in arrays):
        raise ValueError(f"{name} has one of x_val and y_val without the other")
    tensors = {key: torch.as_tensor(np.asarray(value)) for key, value in arrays.items()}
    regression = tensors["y_train"].is_floating_point()
    splits = {}
    for split in ("train", "test", "val")[: len(tensors) // 2]:
        x = _inputs(f"x_{split} of {name}", tensors[f"x_{split}"])
        y = _targets(f"y_{split} of {name}", tensors[f"y_{split}"], regression)
        if len(x) != len(y) or not len(x):
            raise ValueError(f"x_{split} and y_{split} of {name} must be as many, got {len(x)} and {len(y)}")
        splits[split] = x, y
    if not regression:
        _refuse_missing_classes(name, {split: y for split, (_, y) in splits.items()})
    if "val" not in splits:
        splits["train"], splits["val"] = held_out(*splits["train"], validation, seed, stratified=not regression)
    elif validation is not None:
        raise ValueError(f"validation={validation} cannot be applied: {name} has {len(splits['val'][1])} of its own")
    classes = 0 if regression else 1 + max(int(y.max()) for _, y in splits.values() if len(y))
    return ArrayData(name, classes, *splits["train"], *splits["val"], *splits["test"])


def _refuse_missing_classes(name: str, labels: Mapping[str, Tensor]) -> None:
    """ValueError where the training labels leave a class out: labels that begin at 1, or a test class never seen."""
    classes = set(labels["train"].unique().tolist())
    for split, y in labels.items():
        if unseen := set(y[y >= 0].unique().tolist()) - classes:
            raise ValueError(f"y_{split} of {name} has class {min(unseen)}, of which y_train has no example")
    if classes and (absent := set(range(max(classes))) - classes):
        raise ValueError(f"y_train of {name} has no example of class {min(absent)}: number the classes from 0")


def _inputs(name: str, x: Tensor) -> Tensor:
    if x.dtype in (torch.uint8, torch.bool) or x.is_complex() or x.ndim < 1:
        raise TypeError(f"{name} must be floats, or integers that the network embeds, got {x.dtype}: convert it")
    return x.float() if x.is_floating_point() else x.long()


def _targets(name: str, y: Tensor, regression: bool) -> Tensor:
    if y.is_floating_point() != regression or y.dtype == torch.bool or y.is_complex():
        raise TypeError(f"{name} must be integers (classes) or floats (regression), alike in all parts, got {y.dtype}")
    if y.ndim == 1 and regression:
        y = y[:, None]
    if y.ndim != (2 if regression else 1):
        raise ValueError(f"{name} must have shape (n,){' or (n, k)' if regression else ''}, got {tuple(y.shape)}")
    return y.float() if regression else y.long()
