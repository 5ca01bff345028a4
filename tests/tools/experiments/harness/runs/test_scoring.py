"""Scores of runs: what diverged, the effective sample size of several chains, mean temperatures."""

import numpy as np
import pytest
import torch
from experiments.harness.runs.likelihood import Classification, Regression
from experiments.harness.runs.measures import mean_temperatures, overall
from experiments.harness.runs.result import Result
from experiments.harness.runs.runner import store_for
from experiments.harness.runs.scoring import median_ess, score
from torch import nn

from learned_samplers import diagnostics
from meta_tasks.datasets import ImageData, array_data


class Fake:
    """Samples with given predictions of the test and the other inputs."""

    chains = (0,)

    def __init__(self, single, other=None):
        self.single, self.other = single, other

    def predict_samples(self, x, output=None):
        return self.single[None]

    def predict(self, x):
        return torch.full((len(x), 2), self.other)


def scored(tmp_path, samples, data, likelihood):
    result, store = Result("SGD", 0.1, 0, {}, validation_nll=0.7), store_for(tmp_path, data)
    store.begin(result.name, "predictions")
    score(result, samples, data, {} if samples.other is None else {"others": data}, store, likelihood)
    return result


@pytest.mark.parametrize(("other", "diverged"), [(0.5, None), (float("nan"), "the predictions are not finite")])
def test_predictions_of_other_images_count_too(tmp_path, other, diverged):
    x, y = torch.rand(6, 1, 2, 2), torch.arange(6) % 2
    data = ImageData("tiny", 2, x, y, x, y, x, y)
    result = scored(tmp_path, Fake(torch.full((6, 2), 0.5), other), data, Classification())
    assert result.diverged == diverged
    assert (result.validation_nll is None) == (result.scores == {}) == (diverged is not None)


def test_a_regression_with_a_target_out_of_all_proportion_has_diverged(tmp_path):
    x, y = np.zeros((40, 3)), np.zeros((40, 1))
    y[-1] = 1e20  # whose square single precision does not have
    data = array_data({"x_train": x, "y_train": y, "x_test": x, "y_test": y}, "data")
    moments = torch.stack([torch.zeros(40, 1), torch.ones(40, 1)], -1)
    result = scored(tmp_path, Fake(moments), data, Regression(1.0))
    assert (result.diverged, result.scores) == ("the test scores are not finite", {})


def test_a_network_may_give_the_noise():
    wide, x, y = nn.Linear(3, 2), torch.randn(5, 3), torch.randn(5, 1)
    mean, log_variance = wide(x).chunk(2, 1)
    expected = nn.functional.gaussian_nll_loss(mean, y, log_variance.exp(), full=True)
    torch.testing.assert_close(Regression(None).loss(wide(x), y), expected)


def test_chains_that_disagree_are_worth_few_draws():
    means = 10 * torch.arange(4).double()
    draws = (means[:, None, None] + torch.randn(4, 50, 3).double()).flatten(0, 1)
    found = median_ess(draws, [k // 50 for k in range(200)])
    expected = np.median(diagnostics.ess(draws.numpy().reshape(4, 50, 3)))
    assert found == pytest.approx(expected)
    # The planted fault, all in one chain, is another number.
    assert median_ess(draws, [0] * 200) != pytest.approx(expected, rel=0.05)
    assert found < 10


def test_of_chains_of_different_lengths_the_latest_draws_count():
    draws = torch.randn(30, 3).double()
    found = median_ess(draws, [0] * 20 + [1] * 10)
    assert found == pytest.approx(np.median(diagnostics.ess(np.stack([draws[10:20], draws[20:]]))))
    assert median_ess(draws, [0] * 28 + [1] * 2) is None


def test_temperatures_are_weighted_by_size_and_taken_after_burn_in():
    def point(step, first, second, sampling=True):
        groups = {"a": {"size": 1, "kinetic": first}, "b": {"size": 3, "kinetic": second, "configurational": None}}
        return {"step": step, "sampling": sampling, "groups": groups}

    points = [point(5, 100.0, 100.0), point(10, 1.0, 2.0), point(15, 3.0, 6.0), point(20, 50.0, 50.0, sampling=False)]
    assert overall(points[1]["groups"], "kinetic") == 1.75
    assert overall(points[1]["groups"], "configurational") is None
    assert mean_temperatures(points, after=5) == {"kinetic": {"all": 3.5, "a": 2.0, "b": 4.0}}
    assert mean_temperatures([], after=0) == {}
