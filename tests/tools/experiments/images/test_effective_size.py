"""The effective sample size of predictions: chains are told apart."""

import numpy as np
import pytest
import torch
from experiments.images.effective_size import median_ess

from learned_samplers import diagnostics


def apart(num_chains=4, draws=50):
    """Chains of independent draws, each around a mean of its own, in a row."""
    means = 10 * torch.arange(num_chains).double()
    return (means[:, None, None] + torch.randn(num_chains, draws, 3).double()).flatten(0, 1)


def test_chains_that_disagree_are_worth_few_draws():
    draws = apart()
    chains = [k // 50 for k in range(200)]
    found = median_ess(draws, chains)
    expected = np.median(diagnostics.ess(draws.numpy().reshape(4, 50, 3)))
    assert found == pytest.approx(expected)
    # The planted fault, all in one chain, is another number.
    assert median_ess(draws, [0] * 200) != pytest.approx(expected, rel=0.05)
    assert found < 10


def test_of_chains_of_different_lengths_the_latest_draws_count():
    draws = torch.randn(30, 3).double()
    found = median_ess(draws, [0] * 20 + [1] * 10)
    expected = np.median(diagnostics.ess(np.stack([draws[10:20], draws[20:]])))
    assert found == pytest.approx(expected)
    assert median_ess(draws, [0] * 28 + [1] * 2) is None
