"""Particles of classifiers: the prior on functions, the averaged prediction, runs on small digits."""

from __future__ import annotations

import pytest
import torch
from experiments.function_space.images import METHODS, PRIOR_VARIANCE, ImageProtocol, train
from experiments.function_space.networks import StackedMLP, infinite_width

from meta_tasks.datasets import load

PROTOCOL = ImageProtocol(particles=3, hidden=(16,), epochs=15, tuning_epochs=1, batch=50, rates=(1e-2, 3e-2))


@pytest.fixture(scope="module")
def digits():
    return load("digits", validation=200)


@pytest.mark.parametrize("hidden", [(), (1000,), (200, 200)])
def test_prior_is_that_of_wide_networks(hidden):
    """Covariance of the outputs of drawn networks, within four standard errors of 4,000 draws and the finite width."""
    x = torch.tensor([[1.0, 0.0], [0.6, 0.8], [-1.0, 0.2], [0.1, 0.1]])
    mlp = StackedMLP((2, *hidden, 1))
    draws = torch.cat([mlp([PRIOR_VARIANCE**0.5 * p for p in mlp.draw(100)], x)[..., 0] for _ in range(40)])
    measured = (draws.mT @ draws / len(draws)).double()
    expected = infinite_width(len(hidden), PRIOR_VARIANCE)(x, x)
    tolerance = 4 * (2 / 4000) ** 0.5 * expected.diagonal().max() + 0.01
    assert (measured - expected).abs().max() < tolerance
    assert torch.linalg.eigvalsh(expected)[0] > -1e-9
    # Planted: another variance of the weights is another prior.
    assert (measured - infinite_width(len(hidden), 1.0)(x, x)).abs().max() > tolerance


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns(method, digits):
    networks, _ = train(method, digits, 3e-2, PROTOCOL, 0)
    right = networks.predict(digits.test_x).mean(0).argmax(-1) == digits.test_y
    assert right.double().mean() > 0.85
    again, _ = train(method, digits, 3e-2, PROTOCOL, 0)
    assert all(torch.equal(a, b) for a, b in zip(networks.params, again.params, strict=True))
