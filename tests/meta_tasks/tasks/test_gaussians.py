"""Gaussian tasks: the loss, its gradient and its noise."""

import torch

from meta_tasks.tasks import GaussianFamily


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
