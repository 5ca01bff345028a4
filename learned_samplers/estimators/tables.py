"""Tables: their scales, their rounding, the weights of their rows, and columns that are refused by name."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from scipy.sparse import issparse
from sklearn.base import BaseEstimator
from sklearn.utils.validation import _check_sample_weight
from torch import Tensor


def rounding(y: np.ndarray) -> float:
    """Standard deviation of the error by which numbers were rounded, Δ/√12; 0 where they hardly ever repeat.

    Δ is the smallest difference of two of them. A network that has learned repeated rows would else claim to know
    integers as exactly as the floor lets it, and lose thousands of nats at a row that contradicts them.
    """
    distinct = np.unique(y)
    if len(distinct):  # 0.1 + 0.2 is 0.3, but for the last bit
        distinct = distinct[np.r_[True, np.diff(distinct) > 1e-12 * np.abs(distinct).max()]]
    repeated = 1 < len(distinct) <= len(y) / 2
    return float(np.diff(distinct).min()) / math.sqrt(12) if repeated else 0.0


def location_and_scale(values: np.ndarray, weights: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations of columns, of weighted rows; a constant column is only centred."""
    size = np.abs(values).max(0)
    size = np.where(size > 0, size, 1.0)  # of which squares neither overflow nor vanish
    mean = np.average(values / size, 0, weights)
    scale = np.sqrt(np.average((values / size - mean) ** 2, 0, weights))
    return mean * size, np.where(scale > 1e-12 * np.abs(mean), scale * size, 1.0)


class Standardised(NamedTuple):
    """Maps rows to a network's inputs: standardised, and in their span where a table has many more columns than rows.

    A table of n rows spans n directions at most. With a prior that is the same in every direction, a network of the
    coordinates in that span, and of the distance from it, has the same predictive distribution for each row as one of
    all columns: weights in directions that no row of `fit` has are those of the prior, whatever the data.
    """

    mean: np.ndarray
    scale: np.ndarray
    #: Orthonormal columns (features, directions); None where all columns are inputs.
    basis: np.ndarray | None = None

    @classmethod
    def of(cls, x: np.ndarray, weights: np.ndarray | None = None, *, by_feature: bool = False) -> Self:
        """Standardise a table (rows, features), with weights of its rows; ``by_feature`` where the prior is."""
        mean, scale = location_and_scale(x, weights)
        if by_feature or x.shape[1] < 2 * len(x):
            return cls(mean, scale)
        standard = (x - mean) / scale
        squares, directions = np.linalg.eigh(standard @ standard.T)
        chosen = squares > 1e-10 * max(squares[-1], 1e-300)
        return cls(mean, scale, standard.T @ (directions[:, chosen] / np.sqrt(squares[chosen])))

    def __call__(self, x: np.ndarray) -> np.ndarray:
        standard = (x - self.mean) / self.scale
        if self.basis is None:
            return standard
        inside = standard @ self.basis
        square = (standard**2).sum(1)
        distance = np.sqrt(np.maximum(square - (inside**2).sum(1), 0))
        return np.column_stack([inside, np.where(distance > 1e-4 * np.sqrt(square), distance, 0)])

    def lengths(self, products: np.ndarray) -> np.ndarray:
        """Squared length of the weights of each feature, (features,), from the products WᵀW (inputs, inputs)."""
        if self.basis is None:
            return products.diagonal()
        return np.einsum("fi,ij,fj->f", self.basis, products[:-1, :-1], self.basis, optimize=True)

    def of_tensor(self, x: Tensor) -> Tensor:
        """Inputs of a network as a tensor that gradients pass through, equal to those of the call."""
        basis = None if self.basis is None else x.new_tensor(self.basis)
        return inputs_of(x, x.new_tensor(self.mean), x.new_tensor(self.scale), basis)


def inputs_of(x: Tensor, mean: Tensor, scale: Tensor, basis: Tensor | None = None) -> Tensor:
    """Return the inputs of a network for rows, as `Standardised` of these does."""
    standard = (x - mean) / scale
    if basis is None:
        return standard
    inside = standard @ basis
    square = standard.square().sum(1)
    distance = (square - inside.square().sum(1)).clamp_min(torch.finfo(x.dtype).tiny).sqrt()
    return torch.column_stack([inside, torch.where(distance > 1e-4 * square.sqrt(), distance, 0.0)])


def on_cpu() -> AbstractContextManager[Any]:
    """Make new tensors on the CPU, whatever torch's default device is."""
    # The context costs time at each operation, and is entered where it is needed alone.
    return nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu")


@contextmanager
def as_before_on_error(model: BaseEstimator) -> Iterator[None]:
    """Leave what was fitted before, or nothing, where a fit is refused or broken off; unless Ctrl-C left samples."""
    before = dict(model.__dict__)
    try:
        with on_cpu():
            yield
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and model.__dict__.get("verdict_") is not before.get("verdict_"):
            raise
        model.__dict__.clear()
        model.__dict__.update(before)
        raise


@contextmanager
def columns_named(X: Any, y: Any = None) -> Iterator[None]:
    """Name the column of X, or y, where NumPy refuses a word, a date or a missing value without its place."""
    for name, table in (("X", X), ("y", y)):
        refuse_dates(name, table)
    try:
        yield
    except (ValueError, TypeError) as error:
        if "feature names should match" in str(error):
            raise  # other columns than those of fit, which scikit-learn names
        if issparse(X):
            raise TypeError(
                "X is a sparse matrix, dense data is required: OneHotEncoder(sparse_output=False), "
                "ColumnTransformer(sparse_threshold=0) or X.toarray() give it"
            ) from error
        values = np.asarray(X, dtype=object)
        columns = values.T if values.ndim == 2 else ()
        for name, column in zip(getattr(X, "columns", range(len(columns))), columns, strict=True):
            if (word := next(filter(_is_word, column), None)) is not None:
                raise ValueError(
                    f"X has a column {name!r} of words or dates ({word!r}): make numbers of them, words by "
                    "OneHotEncoder(sparse_output=False) say"
                ) from error
            if any(map(is_missing, column)):
                raise ValueError(
                    f"X has a column {name!r} with missing or infinite values: fill them in, by SimpleImputer say"
                ) from error
        targets = np.ravel(np.asarray(y, dtype=object)) if y is not None else ()
        if (word := next(filter(_is_word, targets), None)) is not None:
            raise ValueError(f"y holds words or dates ({word!r}): for classes take BayesianMLPClassifier") from error
        if any(map(is_missing, targets)):
            raise ValueError("y has missing or infinite values: leave these rows out") from error
        raise


def refuse_dates(name: str, table: Any) -> None:
    """ValueError if a whole table is of dates or times, of which NumPy makes numbers, also of a missing one."""
    dtypes = np.ravel(np.asarray(getattr(table, "dtypes", getattr(table, "dtype", None)), dtype=object))
    if len(dtypes) and all(getattr(dtype, "kind", "") in ("m", "M") for dtype in dtypes):
        raise ValueError(f"{name} holds dates or times ({dtypes[0]}): make numbers of them, days since the first say")


def _is_word(value: Any) -> bool:
    """True for a string that is no number, and for a date."""
    if isinstance(value, str):
        try:
            float(value)
        except ValueError:
            return True
    dates = datetime.date | datetime.timedelta | np.datetime64 | np.timedelta64
    return isinstance(value, dates) or type(value).__name__ == "Period"


def is_missing(value: Any) -> bool:
    """True for None, pandas' NA and a number that is not finite."""
    return (
        value is None
        or type(value).__name__ in ("NAType", "NaTType")
        or (isinstance(value, float | np.floating) and not math.isfinite(value))
    )


def weighted(sample_weight: Any, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return the rows, targets and weights of a table without its rows of weight 0, which are as if not there.

    Raises:
        ValueError: ``sample_weight`` is no number ≥ 0 a row, or above 0 for fewer than two of them.
    """
    if sample_weight is None:
        return x, y, None
    if (count := np.count_nonzero(np.asarray(sample_weight))) > 0:  # else scikit-learn's message has no name
        weights = _check_sample_weight(sample_weight, x, dtype=np.float64, ensure_non_negative=True)
        count = np.count_nonzero(weights)
    if count < 2:
        raise ValueError(f"sample_weight must be above zero for two rows at least, got {count} of {len(x)}")
    counted = weights > 0
    return x[counted], y[counted], weights[counted]
