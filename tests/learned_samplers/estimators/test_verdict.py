"""The verdict finds chains that have not settled."""

import numpy as np
import torch
from scipy.signal import lfilter

from learned_samplers.estimators import BayesianMLPClassifier
from learned_samplers.estimators.verdict import verdict


def chains(rho=0.0, draws=400, seed=0):
    noise = np.random.default_rng(seed).standard_normal((4, draws, 30))
    return lfilter([1], [1, -rho], noise, axis=1)


def test_settled_and_not():
    assert verdict(chains(0.5), 1.0).settled
    apart = chains(0.5) + 10 * np.arange(4)[:, None, None]
    assert verdict(apart, 1.0).settled  # modes of their own
    assert verdict(apart, 1.0).across > 2
    assert "differ" in verdict(apart, 1.0).text
    assert "differ" not in verdict(chains(0.5), 1.0).text
    drift = chains(0.5) + np.linspace(0, 5, 400)[:, None]
    faults = [(drift, 1.0, "drift"), (chains(0.5), 1.5, "temperature 1.50"), (chains(0.99, 60), 1.0, "n_steps")]
    faults += [
        (chains(draws=3), 1.0, "n_samples"),
        (chains(draws=8), 1.0, "n_samples"),
        (chains(), float("nan"), "temperature nan"),
    ]
    for values, temperature, named in faults:
        found = verdict(values, temperature)
        assert not found.settled
        assert named in found.text


def test_no_more_effective_samples_than_samples():
    assert verdict(chains(-0.9, 20), 1.0).effective == 80


def test_what_does_not_move_is_settled():
    found = verdict(np.full((4, 50, 30), 0.25), 1.0)
    assert (found.settled, found.within, found.across, found.effective) == (True, 1, 1, 200)


def test_a_classifiers_verdict_does_not_depend_on_the_order_of_its_labels():
    """Class 0 plays no part; every row drifts from class 1 to class 2: the judge that looked at class 0 saw nothing."""
    drift = torch.linspace(-3, 3, 50)[None, :, None] + 0.1 * torch.randn(4, 50, 30)
    logits = torch.stack([torch.full_like(drift, -6) + 0.3 * torch.randn(4, 50, 30), drift, -drift], -1)
    for order in ([0, 1, 2], [1, 0, 2], [2, 1, 0]):
        judged = BayesianMLPClassifier()._judged(logits[..., order].flatten(0, 1)).reshape(4, 50, 30)
        assert "drift" in verdict(judged, 1.0).text
