"""Arrays of a user's own as data: classes and real numbers, a validation split of their own or none."""

import numpy as np
import pytest
import torch

from meta_tasks.datasets import array_data
from meta_tasks.datasets.arrays import arrays_in

RANDOM = np.random.default_rng(0)
TABLE = {
    "x_train": RANDOM.normal(size=(30, 4)),
    "y_train": np.arange(30) % 3,
    "x_test": RANDOM.normal(size=(9, 4)),
    "y_test": np.arange(9) % 3,
}
NUMBERS = {**TABLE, "y_train": RANDOM.normal(size=30), "y_test": RANDOM.normal(size=9)}


def test_classes_and_a_stratified_tenth():
    data = array_data(TABLE)
    assert (data.num_classes, data.is_regression, data.input_shape) == (3, False, (4,))
    assert (data.num_data, data.val_y.bincount().tolist()) == (27, [1, 1, 1])
    assert data.train_x.dtype == torch.float32


def test_numbers_become_columns_and_tokens_stay_whole(tmp_path):
    tokens = {**NUMBERS, "x_train": np.arange(120).reshape(30, 4), "x_test": np.arange(36).reshape(9, 4)}
    np.savez(tmp_path / "mine.npz", **tokens)
    data = array_data(arrays_in(tmp_path / "mine.npz"), validation=0.5)
    assert (data.num_classes, data.is_regression, len(data.val_y)) == (0, True, 15)
    assert (data.test_y.shape, data.train_x.dtype) == ((9, 1), torch.int64)
    assert arrays_in(tmp_path / "none.npz") is None


def test_a_validation_split_of_its_own():
    data = array_data({**TABLE, "x_val": torch.ones(2, 4), "y_val": torch.tensor([0, 2])})
    assert (data.num_data, data.num_classes, data.val_y.tolist()) == (30, 3, [0, 2])


@pytest.mark.parametrize(
    ("arrays", "options", "error", "named"),
    [
        ({"x_test": None}, {}, ValueError, "x_test"),
        ({"z": TABLE["x_test"]}, {}, ValueError, "z"),
        ({"x_val": TABLE["x_test"]}, {}, ValueError, "y_val"),
        ({"x_train": TABLE["x_train"] > 0}, {}, TypeError, "x_train"),
        ({"y_test": NUMBERS["y_test"]}, {}, TypeError, "y_test"),
        ({"y_train": np.zeros((30, 2), int)}, {}, ValueError, "y_train"),
        ({"y_train": np.arange(29)}, {}, ValueError, "y_train"),
        ({"y_train": 1 + np.arange(30) % 2, "y_test": np.ones(9, int)}, {}, ValueError, "y_train.*class 0"),
        ({"y_test": np.full(9, 3)}, {}, ValueError, "y_test.*class 3"),
        ({"y_test": np.full(9, -1)}, {}, ValueError, "test_y"),
        ({"x_test": np.ones((9, 5))}, {}, ValueError, "test_x"),
        ({"x_test": np.full((9, 4), np.inf)}, {}, ValueError, "finite"),
        ({}, {"validation": 31}, ValueError, "validation"),
        ({"x_val": TABLE["x_test"], "y_val": TABLE["y_test"]}, {"validation": 3}, ValueError, "validation"),
    ],
)
def test_what_is_no_data_is_refused(arrays, options, error, named):
    arrays = {key: value for key, value in {**TABLE, **arrays}.items() if value is not None}
    with pytest.raises(error, match=named):
        array_data(arrays, **options)
