"""The tables: their files, and the rows for training and testing."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn import datasets
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from experiments.harness import uci_data

#: Most telling first.
REGRESSIONS = (
    *("concrete", "energy", "bostonHousing", "yacht", "airfoil", "wine-quality-red", "power-plant", "kin8nm"),
    *("naval-propulsion-plant", "bike", "protein-tertiary-structure", "diabetes", "friedman1", "cars"),
)
CLASSIFICATIONS = ("iris", "wine", "breast_cancer", "digits", "moons", "mushrooms")
SPLITS = tuple(map(str, range(20)))
#: Splits that a file says, where they are fewer.
FEWER = {"protein-tertiary-structure": 5}
#: Those with words or holes, which have no gap splits.
MIXED = ("cars", "mushrooms")
#: Rows for training and testing, where the rest is left out.
SIZES = {"mushrooms": (200, 1000)}
GAPS = ("gap0", "gap1", "gap2")
#: Files of the package bde, and the columns of features and target.
SHIPPED = {
    "airfoil": ("airfoil.csv", (0, 1, 2, 3, 4), 5),
    "bike": ("bike_sharing_dataset/hour.csv", (*range(2, 14),), 16),
}


@dataclass(frozen=True)
class Table:
    """Features (N, d), targets (N,) and, where a file says them, the test rows of splits.

    With words or holes the features are a frame of pandas.
    """

    name: str
    x: Any
    y: np.ndarray
    test_index: np.ndarray | None = None

    @property
    def classes(self) -> bool:
        return self.name in CLASSIFICATIONS

    def numbers(self, train: np.ndarray) -> np.ndarray:
        """Features (N, columns) as numbers: holes are filled in and words become columns, as the rows ``train`` say."""
        if isinstance(self.x, np.ndarray):
            return self.x
        words = make_pipeline(
            SimpleImputer(strategy="constant", fill_value="missing"),
            OneHotEncoder(handle_unknown="ignore", sparse_output=False),
        )
        columns = make_column_transformer(
            (SimpleImputer(strategy="median"), make_column_selector(dtype_include="number")),
            (words, make_column_selector(dtype_exclude="number")),
        )
        return columns.fit(self.x.iloc[train]).transform(self.x)

    def split(self, split: str) -> dict[str, np.ndarray]:
        """The rows of ``train`` and of the test parts: ``test``, or ``gap`` and ``data``."""
        if split.startswith("gap"):
            return self._gap(int(split.removeprefix("gap")))
        number, rows = int(split), np.arange(len(self.y))
        if self.test_index is None:
            share, classes = (0.2, self.y) if self.classes else (0.1, None)
            size, share = SIZES.get(self.name, (None, share))
            options: Any = {"train_size": size, "test_size": share, "random_state": 1000 + number}
            train, test = train_test_split(rows, stratify=classes, **options)
            return {"train": np.sort(train), "test": test}
        test = np.asarray(self.test_index[number])
        return {"train": np.setdiff1d(rows, test), "test": test}

    def _gap(self, number: int) -> dict[str, np.ndarray]:
        distinct = [len(np.unique(column)) for column in self.x.T]
        feature = sorted(range(len(distinct)), key=lambda k: -distinct[k])[number]
        order, third = np.argsort(self.x[:, feature], kind="stable"), len(self.y) // 3
        gap = order[third : len(order) - third]
        train, data = train_test_split(np.setdiff1d(order, gap), test_size=0.1, random_state=1000 + number)
        return {"train": train, "gap": gap, "data": data}


def load(name: str, root: str | os.PathLike[str] | None, bde_python: str) -> Table:
    """The table of that name."""
    if name == "mushrooms":
        return _mushrooms(root)
    if name in CLASSIFICATIONS:
        made = name == "moons"
        x, y = datasets.make_moons(1000, noise=0.3, random_state=0) if made else _bundled(name)
        return Table(name, x, y)
    if name == "diabetes":
        return Table(name, *_bundled(name))
    if name == "friedman1":  # five inputs of ten matter
        return Table(name, *datasets.make_friedman1(1000, noise=1.0, random_state=0))
    if name == "cars":
        return _cars()
    if name in SHIPPED:
        file, features, target = SHIPPED[name]
        rows = np.genfromtxt(bde_folder(bde_python) / "data" / file, delimiter=",", skip_header=1)
        return Table(name, rows[:, features], rows[:, target])
    data = uci_data.load(name, root)
    return Table(name, data.x.numpy(), data.y.numpy(), data.test_index.numpy())


def _cars() -> Table:
    """Miles per gallon of 398 cars (UCI's Auto MPG): the origin is a word, the horsepower of six is missing."""
    import pandas

    try:
        from vega_datasets import data
    except ImportError as error:
        raise FileNotFoundError("cars: no package vega_datasets; install learned-samplers[rivals]") from error
    rows = pandas.DataFrame(json.loads(Path(data.cars.filepath).read_text())).dropna(subset="Miles_per_Gallon")
    rows["Year"] = rows["Year"].str[:4].astype(int)
    return Table("cars", rows.drop(columns=["Name", "Miles_per_Gallon"]), rows["Miles_per_Gallon"].to_numpy())


def _mushrooms(root: str | os.PathLike[str] | None) -> Table:
    """Poisonous or not: 22 words, one of which 2,480 of 8,124 lack."""
    import pandas

    rows = pandas.read_csv(uci_data.mushroom_file(root), header=None, na_values="?", dtype=object).rename(columns=str)
    return Table("mushrooms", rows.drop(columns="0"), (rows["0"] == "p").to_numpy().astype(np.int64))


def _bundled(name: str) -> tuple[np.ndarray, np.ndarray]:
    return getattr(datasets, f"load_{name}")(return_X_y=True)


def bde_folder(python: str) -> Path:
    """Folder in which that Python has bde."""
    code = (
        "from importlib.util import find_spec as f; s = f('bde'); print(s.submodule_search_locations[0] if s else '')"
    )
    folder = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    if not folder:
        raise FileNotFoundError(
            f"{python} has no package bde; install sklearn-contrib-bde, or name another --bde-python"
        )
    return Path(folder)
