"""Scores of runs: what diverged, the effective sample size of a chain, mean temperatures."""

import numpy as np
import pytest
import torch
from experiments.harness.run_store import RunStore
from experiments.harness.runs.measures import mean_temperatures, median_ess, overall, score
from experiments.harness.runs.result import Result

from learned_samplers import diagnostics
from meta_tasks.datasets import ImageData


class Fake:
    """A single sample with given predictions of the test and then of the other inputs."""

    def __init__(self, *predictions):
        self.predictions = iter(predictions)

    def predict_samples(self, x):
        return next(self.predictions)[None]


@pytest.mark.parametrize(("other", "diverged"), [(0.5, None), (float("nan"), "the predictions are not finite")])
def test_predictions_of_other_images_count_too(tmp_path, other, diverged):
    x, y = torch.rand(6, 1, 2, 2), torch.arange(6) % 2
    data = ImageData("tiny", 2, x, y, x, y, x, y)
    result, store = Result("SGD", 0.1, 0, {}, validation_nll=0.7), RunStore(tmp_path)
    store.begin(result.name, "predictions")
    score(result, Fake(torch.full((6, 2), 0.5), torch.full((6, 2), other)), data, {"others": data}, store)
    assert result.diverged == diverged
    assert (result.validation_nll is None) == (result.scores == {}) == (diverged is not None)


def test_the_effective_size_is_that_of_the_true_labels_log_probability():
    labels, single = torch.arange(5) % 3, torch.randn(40, 5, 3).softmax(-1)
    draws = torch.stack([single[:, n, label].log() for n, label in enumerate(labels)], 1).numpy()
    assert median_ess(single, labels) == pytest.approx(np.median(diagnostics.ess(draws[None])))
    assert median_ess(single[:3], labels) is None


def test_temperatures_are_weighted_by_size_and_taken_after_burn_in():
    def point(step, first, second, sampling=True):
        groups = {"a": {"size": 1, "kinetic": first}, "b": {"size": 3, "kinetic": second, "configurational": None}}
        return {"step": step, "sampling": sampling, "groups": groups}

    points = [point(5, 100.0, 100.0), point(10, 1.0, 2.0), point(15, 3.0, 6.0), point(20, 50.0, 50.0, sampling=False)]
    assert overall(points[1]["groups"], "kinetic") == 1.75
    assert overall(points[1]["groups"], "configurational") is None
    assert mean_temperatures(points, after=5) == {"kinetic": {"all": 3.5, "a": 2.0, "b": 4.0}}
    assert mean_temperatures([], after=0) == {}
