"""f-SVGD: its limits against SVGD, MAP and Bayesian linear regression; its cost; noise that is learned."""

from typing import NamedTuple

import pytest
import torch

from learned_samplers.particles import (
    FSVGD,
    RBF,
    SVGD,
    FittedPrior,
    GaussianProcessPrior,
    Linear,
    classification_loss,
    measurement_set,
    network_draws,
    regression_loss,
    squared_exponential,
)
from tests.learned_samplers.particles.particle_problems import energies, parameter, stacked_mlp

DOUBLE = torch.float64


class Returned(NamedTuple):
    losses: torch.Tensor
    outputs: torch.Tensor
    log_prior: torch.Tensor


@pytest.mark.parametrize("kernel", [RBF(), Linear()])
def test_outputs_that_are_the_parameters(kernel):
    """f(θ) = θ with the prior N(0, I/λ) on f is SVGD with that prior on θ."""
    outputs_moved, weights_moved = parameter(5, 2, dtype=DOUBLE), parameter(5, 2, dtype=DOUBLE)
    function = FSVGD([outputs_moved], 0.1, 10, kernel=kernel, temperature=0.7)
    weight = SVGD([weights_moved], 0.1, 10, kernel=kernel, temperature=0.7, prior_precision=3.0)

    def closure():
        outputs = outputs_moved * 1.0
        return Returned(
            energies("SVGD", outputs), outputs, -1.5 * outputs.square().sum(1)
        )  # a tuple of any kind will do

    for _ in range(5):
        assert not any(value.requires_grad for value in function.step(closure))
        weight.step(lambda: energies("SVGD", weights_moved))
    torch.testing.assert_close(outputs_moved, weights_moved)


def test_one_particle_is_the_function_space_map():
    network, params = stacked_mlp(1)
    x, y = torch.randn(12, 3), torch.randint(2, (8,))
    prior = GaussianProcessPrior(squared_exponential())

    def closure():
        outputs = torch.vmap(lambda p: torch.func.functional_call(network, p, (x,)))(params)
        return classification_loss(outputs[:, :8], y), outputs, prior.log_density(x, outputs)

    losses, _, log_prior = closure()
    grads = torch.autograd.grad((50 * losses - log_prior).sum(), list(params.values()))
    before = [p.detach().clone() for p in params.values()]
    FSVGD(params.items(), 0.1, 50).step(closure)
    for p, b, g in zip(params.values(), before, grads, strict=True):
        torch.testing.assert_close(p.detach(), b - 0.1 / 50 * g)


def linear_regression(kernel, particles, steps, lr, prior_scale=1.0):
    """Mean and covariance of the weights by f-SVGD, and those of the posterior."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(6, 2, generator=generator, dtype=DOUBLE)
    y = x @ torch.tensor([1.0, -0.5], dtype=DOUBLE) + torch.randn(6, generator=generator, dtype=DOUBLE)
    prior = GaussianProcessPrior(lambda a, b: prior_scale * a @ b.mT, jitter=1e-7)
    w = parameter(particles, 2, dtype=DOUBLE)
    log_noise = torch.zeros(particles, dtype=DOUBLE)
    sampler = FSVGD([w], lr, 6, kernel=kernel)

    def closure():
        outputs = w @ x.mT
        return regression_loss(outputs, y, log_noise), outputs, prior.log_density(x, outputs)

    for _ in range(steps):
        sampler.step(closure)
    precision = x.mT @ x + torch.eye(2, dtype=DOUBLE)
    covariance = torch.linalg.inv(precision)
    moments = w.detach().mean(0), torch.cov(w.detach().T, correction=0)
    return moments, (covariance @ x.mT @ y, covariance)


def test_linear_model_is_bayesian_linear_regression():
    """The linear kernel on the outputs, mean and covariance of the weights are the posterior's."""
    moments, expected = linear_regression(Linear(), 6, 400, 0.06)
    torch.testing.assert_close(moments[0], expected[0], rtol=1e-3, atol=5e-4)
    torch.testing.assert_close(moments[1], expected[1], rtol=1e-3, atol=5e-4)
    wrong, _ = linear_regression(Linear(), 6, 400, 0.06, prior_scale=0.1)  # the planted fault: another prior
    assert ((wrong[1] - expected[1]).abs() > 0.05 * expected[1].abs()).any()


class _Counted(torch.autograd.Function):
    """The identity, counting its backward passes."""

    count = 0

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        _Counted.count += 1
        return grad


def test_one_vector_jacobian_product():
    """The network is passed backward once a step, for all particles together."""
    w = parameter(4, 3)
    x, y = torch.randn(6, 3), torch.randn(4)
    log_noise = torch.zeros(4, requires_grad=True)
    sampler = FSVGD([{"params": [w]}, {"params": [log_noise], "likelihood": True}], 0.1, 20)
    prior = GaussianProcessPrior(squared_exponential())

    def closure():
        outputs = _Counted.apply(w) @ x.T
        return regression_loss(outputs[:, :4], y, log_noise), outputs, prior.log_density(x, outputs)

    sampler.step(closure)  # the first one also looks whether all of the loss passes through the outputs
    _Counted.count = 0
    sampler.step(closure)
    assert _Counted.count == 1


def test_noise_is_learned():
    """Each particle's log σ climbs its own likelihood: to the residuals' root mean square, nearly."""
    x = torch.linspace(-1, 1, 40, dtype=DOUBLE)[:, None]
    y = 0.3 * torch.randn(40, dtype=DOUBLE)
    w, log_noise = parameter(5, 1, dtype=DOUBLE), torch.zeros(5, dtype=DOUBLE, requires_grad=True)
    groups = [{"params": [w]}, {"params": [log_noise], "likelihood": True}]

    def closure():
        outputs = w @ x.T
        return regression_loss(outputs, y, log_noise), outputs

    before, gradient = log_noise.detach().clone(), torch.autograd.grad(closure()[0].sum(), log_noise)[0]
    FSVGD(groups, 0.02, 40).step(closure)
    torch.testing.assert_close(log_noise.detach(), before - 0.02 * gradient)
    sampler = FSVGD(groups, 0.02, 40, base_optimizer=torch.optim.Adam)
    for _ in range(400):
        sampler.step(closure)
    residual = (w.detach() @ x.T - y).square().mean(1).sqrt()
    torch.testing.assert_close(log_noise.detach().exp(), residual, rtol=0.02, atol=0)


def test_classification_with_a_fitted_prior_and_a_measurement_set():
    network, params = stacked_mlp(5)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 3, generator=generator)
    y = (x[:, 0] > 0).long()
    prior = FittedPrior(network_draws(network, 1.0, generator=generator), generator=generator)
    sampler = FSVGD(params.items(), 1e-2, 40, base_optimizer=torch.optim.Adam)

    def closure():
        batch = torch.randint(40, (16,), generator=generator)
        inputs = measurement_set(x[batch], x, 8, scale=0.1, generator=generator)
        outputs = torch.vmap(lambda p: torch.func.functional_call(network, p, (inputs,)))(params)
        return classification_loss(outputs[:, :16], y[batch]), outputs, prior.log_density(inputs, outputs)

    first = sampler.step(closure)[0]
    for _ in range(150):
        last = sampler.step(closure)[0]
    assert last.mean() < 0.5 * first.mean()
    outputs = torch.vmap(lambda p: torch.func.functional_call(network, p, (x,)))(params)
    assert outputs.std(0).mean() > 0.1  # the particles have not become one
