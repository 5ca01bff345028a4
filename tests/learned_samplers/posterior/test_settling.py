"""R̂ and effective samples are those of ArviZ and of closed forms."""

import numpy as np
import pytest

from learned_samplers.diagnostics import split_rhat
from learned_samplers.posterior.settling import effective_size, rhat
from tests.learned_samplers.estimators.test_verdict import chains


def test_rhat_is_arviz_s():
    values = chains(0.9)
    halves = np.stack([values[:, :200], values[:, 200:]], 1).reshape(8, 200, -1)
    np.testing.assert_allclose(rhat(halves), split_rhat(values, "split"), rtol=1e-9)
    np.testing.assert_array_equal(rhat(np.ones((2, 5, 1))), 1)


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_effective_size_of_an_autoregressive_chain(rho):
    """n(1−ρ)/(1+ρ) within 15 %, on average over 120 chains of 4,000."""
    size = np.mean([effective_size(chain).mean() for chain in chains(rho, 4000)])
    assert size == pytest.approx(4000 * (1 - rho) / (1 + rho), rel=0.15)
