"""The sine: against Bayesian linear regression, where the networks have no hidden layer."""

from __future__ import annotations

import pytest
import torch
from experiments.function_space.sine import SineProblem, SineRuns, worst_rhat

LINEAR = SineProblem(
    data=12,
    noise=0.3,
    hidden=(),
    variance=2.0,
    particles=100,
    steps=700,
    chains=20,
    burn_in=30,
    trajectories=100,
    thinning=2,
    leapfrog_steps=10,
)


def exact(runs):
    """Mean and deviation of f on the grid: weights N(0, 2), features (x, 1)/√2, noise as it is."""
    design, grid = (torch.cat([x, torch.ones_like(x)], dim=1) / 2**0.5 for x in (runs.x, runs.grid))
    noise = runs.problem.noise
    precision = design.mT @ design / noise**2 + torch.eye(2) / runs.problem.variance
    covariance = torch.linalg.inv(precision)
    mean = grid @ covariance @ design.mT @ runs.y / noise**2
    return mean, (grid @ covariance * grid).sum(1).sqrt()


@pytest.mark.parametrize(
    ("method", "mean_tolerance", "tolerance"),
    # HMC: 1,000 draws that are nearly independent. f-SVGD with 100 particles and the median bandwidth has a law of its
    # own; the ensemble has no law, which is the planted fault.
    [("HMC", 0.15, 0.1), ("FSVGD", 0.1, 0.4), ("DeepEnsemble", 0.1, None)],
)
def test_linear_regression(method, mean_tolerance, tolerance):
    runs = SineRuns(LINEAR, 0)
    values, accepted = runs.functions(method, 0)
    mean, deviation = exact(runs)
    assert ((values.mean(0) - mean) / deviation).abs().max() < mean_tolerance
    ratio = values.std(0) / deviation
    if tolerance is None:
        assert ratio.max() < 0.2
    else:
        assert (ratio - 1).abs().max() < tolerance
    assert (accepted is not None) == (method == "HMC")


def test_chains_that_disagree_are_seen():
    draws = torch.randn(50, 4, 241, dtype=torch.double)
    assert worst_rhat(draws.view(200, 241), 4) < 1.1
    draws[:, 0] += 2  # planted: one chain elsewhere
    assert worst_rhat(draws.view(200, 241), 4) > 1.3
    assert worst_rhat(draws[:3].reshape(12, 241), 4) is None
