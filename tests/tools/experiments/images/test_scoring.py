"""Runs whose test scores are not finite have diverged, and the comparison goes on."""

import numpy as np
import pytest
import torch
from experiments.images.from_python import compare
from experiments.images.likelihood import Classification
from experiments.images.result import Result
from experiments.images.runner import store_for
from experiments.images.scoring import score
from torch import nn

from meta_tasks.datasets import ImageData


@pytest.fixture(autouse=True)
def _restore_threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_a_regression_with_a_target_out_of_all_proportion_has_diverged(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 3))
    y = x[:, :1].copy()
    y[-1] = 1e20  # whose square single precision does not have
    data = {"x_train": x[:80], "y_train": y[:80], "x_test": x[80:], "y_test": y[80:]}
    few = dict(steps=20, batch_size=20, num_samples=4, tries=1, grid=1, extensions=0, tune_seeds=1, seeds=2)
    found = compare(lambda: nn.Linear(3, 1), data, ["SGD"], noise=1.0, out=tmp_path, **few)
    assert "SGD (2 of 2 diverged)" in str(found)
    (numbers,) = found.numbers
    assert [run["diverged"] for run in numbers["methods"]["SGD"]["runs"]] == ["the test scores are not finite"] * 2


class Fake:
    """Samples with given predictions of the test and the other images."""

    chains = (0,)

    def __init__(self, other):
        self.other = other

    def predict_samples(self, x):
        return torch.full((1, len(x), 2), 0.5)

    def predict(self, x):
        return torch.full((len(x), 2), self.other)


@pytest.mark.parametrize(("other", "diverged"), [(0.5, None), (float("nan"), "the predictions are not finite")])
def test_predictions_of_other_images_count_too(tmp_path, other, diverged):
    x, y = torch.rand(6, 1, 2, 2), torch.arange(6) % 2
    data = ImageData("tiny", 2, x, y, x, y, x, y)
    result, store = Result("SGD", 0.1, 0, {}, validation_nll=0.7), store_for(tmp_path, data)
    store.begin(result.name, "predictions")
    score(result, Fake(other), data, {"others": data}, store, Classification())
    assert result.diverged == diverged
    assert (result.validation_nll is None) == (result.scores == {}) == (diverged is not None)
