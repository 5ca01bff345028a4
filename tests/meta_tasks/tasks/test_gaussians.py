"""Gaussian tasks: the loss, its gradient and its noise, and the divergence of samples."""

import pytest
import torch

from meta_tasks.random_streams import generator
from meta_tasks.rules.base import Hyperparameters
from meta_tasks.tasks import GaussianFamily, GaussianTask


def test_gaussian_tasks_are_what_they_say():
    family = GaussianFamily(dimensions=(3,), num_data=1000, noise=0.5, correlated=True)
    made = family.task(0, 1, 2)
    again = family.task(0, 1, 2)
    assert torch.equal(made.precision, again.precision)
    index = torch.arange(1000).unsqueeze(0)
    theta = torch.randn(1, 3, requires_grad=True)
    loss, gradient = made.loss_and_gradient(theta, index)
    torch.testing.assert_close(torch.autograd.grad(loss.sum(), theta)[0], gradient.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradient, (theta - made.mean) @ made.precision, rtol=1e-4, atol=1e-5)
    single = made.loss_and_gradient(theta.detach().expand(1000, -1), index.T)[1]
    b = (1000 * single).var(0) / 1000
    assert (b <= 0.55).all()
    assert (b > 0).all()
    assert b.max() / b.min() < 1.3


def test_the_divergence_is_that_of_gaussians():
    basis = torch.linalg.qr(torch.randn(3, 3, generator=generator(0), dtype=torch.float64))[0]
    precision = basis @ torch.diag(torch.linspace(0.5, 2.0, 3, dtype=torch.float64)) @ basis.T
    made = GaussianTask(torch.full((3,), 0.1, dtype=torch.float64), precision, Hyperparameters(lr=0.1, num_data=100))
    factor = torch.linalg.cholesky(made.covariance)
    draws = torch.randn(50_000, 3, generator=generator(3), dtype=torch.float64)
    assert made.divergence(made.mean + draws @ factor.T) == pytest.approx(0.0, abs=1e-3)
    # Twice the standard deviation: ½·d·(4 − 1 − ln 4); a shift by one in whitened units adds ½.
    expected = 1.5 * (3 - torch.tensor(4.0).log().item()) + 0.5
    shift = factor @ torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    assert made.divergence(made.mean + shift + 2 * draws @ factor.T) == pytest.approx(expected, rel=0.02)
    with pytest.raises(ValueError, match="more than d=3 samples, got 3"):
        made.divergence(draws[:3])
