"""Measurement sets, function-space priors and likelihoods: against `torch.distributions` and the law of draws."""

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal, Normal

from learned_samplers.particles import (
    FittedPrior,
    GaussianProcessPrior,
    classification_loss,
    measurement_set,
    network_draws,
    regression_loss,
    squared_exponential,
)

DOUBLE = torch.float64


@pytest.mark.parametrize("channels", [None, 3])
def test_gaussian_process_density(channels):
    x = torch.randn(6, 2, dtype=DOUBLE)
    outputs = torch.randn(4, 6, *([channels] if channels else []), dtype=DOUBLE)
    prior = GaussianProcessPrior(squared_exponential(0.8, 1.5), jitter=0.01)
    squared = (x[:, None] - x[None]).square().sum(-1)
    covariance = 1.5**2 * torch.exp(-squared / (2 * 0.8**2)) + 0.01 * torch.eye(6, dtype=DOUBLE)
    law = MultivariateNormal(torch.zeros(6, dtype=DOUBLE), covariance)
    expected = law.log_prob(outputs) if channels is None else law.log_prob(outputs.mT).sum(-1)
    torch.testing.assert_close(prior.log_density(x, outputs), expected)


def test_fitted_prior_approaches_the_law_of_the_draws():
    """Linear functions with N(0, 4) weights at three inputs: the Gaussian of covariance 4·XXᵀ."""
    x = torch.randn(3, 4, dtype=DOUBLE)
    network = nn.Linear(4, 2, bias=False, dtype=DOUBLE)
    prior = FittedPrior(network_draws(network, 2.0), num_draws=40_000, num_inputs=3)
    outputs = torch.randn(5, 3, 2, dtype=DOUBLE)
    law = MultivariateNormal(torch.zeros(3, dtype=DOUBLE), 4 * x @ x.T)
    expected = law.log_prob(outputs.mT).sum(-1)
    torch.testing.assert_close(prior.log_density(x, outputs), expected, rtol=0.03, atol=0.1)


def test_fitted_prior_has_a_floor_and_few_inputs():
    """Draws without spread: an isotropic Gaussian of the floor's variance about them, at num_inputs inputs."""
    prior = FittedPrior(lambda inputs, count: inputs[:, 0].expand(count, -1), num_inputs=2, floor=0.25)
    x = torch.tensor([[1.0], [2.0], [3.0]], dtype=DOUBLE)
    outputs = (x[:, 0] + 0.5).expand(4, 3)
    expected = 2 * Normal(0.0, 0.5).log_prob(torch.tensor(0.5, dtype=DOUBLE))
    torch.testing.assert_close(prior.log_density(x, outputs), expected.expand(4))


def test_measurement_set():
    batch, inputs = torch.zeros(3, 2), torch.ones(5, 2)
    inputs_drawn = measurement_set(batch, inputs, 400, scale=0.1, generator=torch.Generator().manual_seed(0))
    assert inputs_drawn.shape == (403, 2)
    assert torch.equal(inputs_drawn[:3], batch)
    assert inputs_drawn[3:].mean().item() == pytest.approx(1.0, abs=0.02)
    assert inputs_drawn[3:].std().item() == pytest.approx(0.1, rel=0.1)
    assert measurement_set(batch, inputs, 0, scale=0.1).shape == (3, 2)


def test_losses():
    outputs, y, log_noise = torch.randn(4, 6), torch.randn(6), torch.randn(4)
    expected = -Normal(outputs, log_noise.exp()[:, None]).log_prob(y).mean(1)
    torch.testing.assert_close(regression_loss(outputs, y, log_noise), expected)
    logits, labels = torch.randn(4, 6, 3), torch.randint(3, (6,))
    expected = torch.stack([nn.functional.cross_entropy(one, labels) for one in logits])
    torch.testing.assert_close(classification_loss(logits, labels), expected)
