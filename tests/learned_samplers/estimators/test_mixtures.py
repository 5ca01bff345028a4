"""Mixtures: quantiles far out against SciPy's distributions."""

import numpy as np
import pytest
import torch
from scipy import stats

from learned_samplers.estimators.mixtures import FREEDOM, quantile


@pytest.mark.parametrize(("likelihood", "law"), [("gaussian", stats.norm()), ("student", stats.t(FREEDOM))])
@pytest.mark.parametrize("share", [1e-9, 1e-6, 0.3, 0.5, 1 - 1e-7])
def test_quantiles_of_one_component_are_the_law_s(likelihood, law, share):
    mean, scale = torch.tensor([[2.0]], dtype=torch.float64), torch.tensor([[3.0]], dtype=torch.float64)
    assert float(quantile(likelihood, mean, scale, share)) == pytest.approx(2 + 3 * law.ppf(share), rel=1e-6)


def test_that_of_a_mixture_lies_between():
    mean = torch.tensor([[-5.0], [5.0]], dtype=torch.float64)
    scale = torch.ones_like(mean)
    low = float(quantile("student", mean, scale, 1e-8))
    assert np.mean(stats.t.cdf(low - mean.numpy(), FREEDOM)) == pytest.approx(1e-8, rel=1e-4)
