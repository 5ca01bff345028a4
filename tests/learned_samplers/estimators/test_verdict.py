"""The verdict finds chains that have not settled."""

import numpy as np
from scipy.signal import lfilter

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
