"""What a table is like, and what is wrong with it: scales, rounding, and columns that are refused by name."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.base import BaseEstimator


def rounding(y: np.ndarray) -> float:
    """Standard deviation of what rounding has taken from these numbers, Δ/√12; 0 where they hardly ever repeat.

    Δ is the smallest difference of two of them. A network that has learned repeated rows would else claim to know
    integers as exactly as the floor lets it, and lose thousands of nats at a row that contradicts them.
    """
    distinct = np.unique(y)
    repeated = 1 < len(distinct) <= len(y) / 2
    return float(np.diff(distinct).min()) / math.sqrt(12) if repeated else 0.0


def location_and_scale(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations of columns; a constant one is only centred."""
    size = np.abs(values).max(0)
    size = np.where(size > 0, size, 1.0)  # of which squares neither overflow nor vanish
    mean, scale = (values / size).mean(0), (values / size).std(0)
    return mean * size, np.where(scale > 1e-12 * np.abs(mean), scale * size, 1.0)


@contextmanager
def as_before_on_error(model: BaseEstimator) -> Iterator[None]:
    """A fit that is refused or broken off leaves what was fitted before, or nothing."""
    before = dict(model.__dict__)
    try:
        yield
    except BaseException:
        model.__dict__.clear()
        model.__dict__.update(before)
        raise


@contextmanager
def columns_named(X: Any, y: Any = None) -> Iterator[None]:
    """Where a word, a date or a missing value is refused, name its column of X, or y, as NumPy does not."""
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
    kinds = np.ravel(np.asarray(getattr(table, "dtypes", getattr(table, "dtype", None)), dtype=object))
    if len(kinds) and all(getattr(kind, "kind", "") in ("m", "M") for kind in kinds):
        raise ValueError(f"{name} holds dates or times ({kinds[0]}): make numbers of them, days since the first say")


def _is_word(value: Any) -> bool:
    """Whether it is a string that is no number, or a date."""
    if isinstance(value, str):
        try:
            float(value)
        except ValueError:
            return True
    dates = datetime.date | datetime.timedelta | np.datetime64 | np.timedelta64
    return isinstance(value, dates) or type(value).__name__ == "Period"


def is_missing(value: Any) -> bool:
    """Whether it is None, pandas' NA or a number that is not finite."""
    return (
        value is None
        or type(value).__name__ in ("NAType", "NaTType")
        or (isinstance(value, float | np.floating) and not math.isfinite(value))
    )
