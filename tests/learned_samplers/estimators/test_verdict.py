"""The verdict finds chains whose predictions are not those of a longer run."""

import re

import numpy as np
import pytest
import torch
from scipy.signal import lfilter

from learned_samplers.estimators import BayesianMLPClassifier
from learned_samplers.estimators.verdict import verdict


def chains(rho=0.0, draws=400, seed=0):
    noise = np.random.default_rng(seed).standard_normal((4, draws, 30))
    return lfilter([1], [1, -rho], noise, axis=1)


def judge(values, temperature=1.0, spread=3.0):
    """The verdict on means of Gaussian predictions of this standard deviation, of targets that are 0."""
    return verdict(values[..., None], np.full((30, 1), spread**2), -0.5 * (values / spread) ** 2, temperature)


def test_settled_and_sampled():
    good = judge(chains(0.5))
    assert good.settled
    assert good.sampled
    assert "differ" not in good.text
    apart = judge(chains(0.5) + 0.8 * np.arange(4)[:, None, None])  # modes of their own, near each other
    assert apart.sampled
    assert apart.across > 1.2
    assert "modes that differ" in apart.text


@pytest.mark.parametrize(("values", "temperature"), [(chains(0.5), 0.7), (chains(0.99, 60) / 10, 1.0)])
def test_predictions_may_have_settled_before_the_weights(values, temperature):
    """A temperature below 1, or few effective samples, of predictions that another run would hardly change."""
    result = judge(values, temperature)
    assert result.settled
    assert not result.sampled
    assert "average over trajectories" in result.text
    assert not result.advice


@pytest.mark.parametrize(
    ("values", "temperature", "advice"),
    [
        (chains(0.5) + np.linspace(0, 3, 400)[:, None], 1.0, "still change: raise n_steps"),
        (chains(0.5) + 5 * np.arange(4)[:, None, None], 1.0, "chains differ.*raise n_chains"),
        (chains(0.5), 1.5, "hotter"),
        (chains(), float("nan"), "hotter"),
        (chains(), 0.5, "hardly left.*n_steps"),
        (chains(draws=3), 1.0, "n_samples"),
    ],
)
def test_not_settled(values, temperature, advice):
    result = judge(values, temperature)
    assert not result.settled
    assert not result.sampled
    assert re.search(advice, result.advice)
    assert result.advice in result.text


@pytest.mark.parametrize("count", [4, 1])
def test_the_error_is_that_of_another_run(count):
    """Independent draws of unit variance: the mean of n has an error of 1/√n; of one chain it is told by its draws."""
    errors = [judge(chains(draws=100, seed=seed)[:count], spread=0.5).error for seed in range(20)]
    assert np.mean(errors) == pytest.approx(1 / np.sqrt(100 * count) / 0.5, rel=0.15)


def test_no_more_effective_samples_than_samples():
    assert judge(chains(-0.9, 20)).effective == 80


def test_what_does_not_move_is_settled():
    result = judge(np.full((4, 50, 30), 0.25))
    assert (result.sampled, result.within, result.across, result.effective) == (True, 1, 1, 200)


def test_a_classifiers_verdict_does_not_depend_on_the_order_of_its_labels():
    """Class 0 plays no part; every row drifts from class 1 to class 2: the judge that looked at class 0 saw nothing."""
    drift = torch.linspace(-3, 3, 50)[None, :, None] + 0.1 * torch.randn(4, 50, 30)
    logits = torch.stack([torch.full_like(drift, -6) + 0.3 * torch.randn(4, 50, 30), drift, -drift], -1).double()
    for order in ([0, 1, 2], [1, 0, 2], [2, 1, 0]):
        targets = torch.full((30,), order.index(2))
        assert "still change" in BayesianMLPClassifier()._verdict(logits[..., order], targets, 1.0).text
