"""The verdict: its numbers are those of ArviZ and of closed forms, and it finds chains that have not settled."""

import numpy as np
import pytest
from scipy.signal import lfilter

from learned_samplers.diagnostics import split_rhat
from learned_samplers.estimators.verdict import effective_size, rhat, verdict


def chains(rho=0.0, draws=400, seed=0):
    noise = np.random.default_rng(seed).standard_normal((4, draws, 30))
    return lfilter([1], [1, -rho], noise, axis=1)


def test_rhat_is_arviz_s():
    values = chains(0.9)
    halves = np.stack([values[:, :200], values[:, 200:]], 1).reshape(8, 200, -1)
    np.testing.assert_allclose(rhat(halves), split_rhat(values, "split"), rtol=1e-9)
    np.testing.assert_array_equal(rhat(np.ones((2, 5, 1))), 1)


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_effective_size_of_an_autoregressive_chain(rho):
    """n(1−ρ)/(1+ρ) within 15 %, on average over 120 chains of 4,000."""
    found = np.mean([effective_size(chain).mean() for chain in chains(rho, 4000)])
    assert found == pytest.approx(4000 * (1 - rho) / (1 + rho), rel=0.15)


def test_settled_and_not():
    assert verdict(chains(0.5), 1.0).settled
    apart = chains(0.5) + 10 * np.arange(4)[:, None, None]
    assert verdict(apart, 1.0).settled  # modes of their own
    assert verdict(apart, 1.0).across > 2
    drift = chains(0.5) + np.linspace(0, 5, 400)[:, None]
    faults = [(drift, 1.0, "drift"), (chains(0.5), 1.5, "temperature 1.50"), (chains(0.99, 60), 1.0, "n_steps")]
    faults += [(chains(draws=3), 1.0, "n_steps"), (chains(), float("nan"), "temperature nan")]
    for values, temperature, named in faults:
        found = verdict(values, temperature)
        assert not found.settled
        assert named in found.text
