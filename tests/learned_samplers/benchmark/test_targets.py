"""References against what can be computed otherwise, and losses against their formulas."""

import numpy as np
import pytest
import torch

from learned_samplers.benchmark.targets import NETWORKS, SHAPES, TARGETS, digits, schools


def test_the_regression_is_that_of_its_normal_equations():
    """The reference's mean is where the gradient of U vanishes; its precision is U's second derivative."""
    target = TARGETS["regression"]()
    mean, deviation = target.reference()
    rows = torch.arange(100)

    def energy(w):
        return 100 * target.loss([w], rows) + target.prior_precision * w.square().sum() / 2

    at = torch.tensor(mean, dtype=torch.float32)
    assert torch.autograd.functional.jacobian(energy, at).abs().max() < 0.05
    covariance = np.linalg.inv(torch.autograd.functional.hessian(energy, at).numpy())
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), deviation, rtol=1e-3)


def test_the_deep_linear_reference_is_that_of_another_quadrature():
    """One weight is integrated in closed form: given a and b, c has a Gaussian law."""
    target = TARGETS["deep linear"]()
    mean, _ = target.reference()
    rows = torch.arange(50)
    loss = [float(target.loss([torch.tensor([1.0, 1.0, c])], rows)) * 50 for c in (0.0, 1.0, -1.0)]
    curvature, slope = loss[1] + loss[2] - 2 * loss[0], (loss[1] - loss[2]) / 2

    a, b = np.meshgrid(np.linspace(-6, 6, 1201), np.linspace(-6, 6, 1201))
    k, s = (a * b) ** 2 * curvature + 1, a * b * slope
    weight = np.exp(s**2 / (2 * k) - (a**2 + b**2) / 2 - slope**2 / (2 * curvature)) / np.sqrt(k)
    assert mean[0] == pytest.approx(np.average(-a * b * s / k, weights=weight), abs=2e-3)
    assert mean[1] == pytest.approx(np.average(a**2, weights=weight), abs=5e-3)


def test_eight_schools_by_importance_sampling():
    target, numbers = schools(), np.random.default_rng(0)
    mean, deviation = target.reference()
    draws = 200_000
    centre, scale = numbers.normal(0, 5, draws), np.abs(numbers.normal(0, 5, draws))
    theta = centre[:, None] + scale[:, None] * numbers.standard_normal((draws, 8))
    effects, errors = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
    weights = np.exp(-(((effects - theta) / errors) ** 2).sum(1) / 2)
    weights /= weights.sum()
    values = np.column_stack([centre, np.log(scale), theta])
    expected = weights @ values
    np.testing.assert_allclose(mean, expected, atol=0.06)
    np.testing.assert_allclose(deviation, np.sqrt(weights @ (values - expected) ** 2), rtol=0.03)


def test_the_schools_energy_is_the_one_of_the_reference():
    """Differences of U between two states, against the densities written out."""
    from scipy import stats

    target = schools()

    def logarithm(m, s, eta):
        effects, errors = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
        prior = stats.norm.logpdf(5 * m, 0, 5) + stats.halfnorm.logpdf(np.exp(s), 0, 5) + s
        return prior + stats.norm.logpdf(eta).sum() + stats.norm.logpdf(effects, 5 * m + np.exp(s) * eta, errors).sum()

    numbers = np.random.default_rng(1)
    states = numbers.standard_normal((2, 10))
    energies = [8 * float(target.loss([torch.tensor(z, dtype=torch.float32)], torch.arange(8))) for z in states]
    expected = [-logarithm(z[0], z[1], z[2:]) for z in states]
    assert energies[0] - energies[1] == pytest.approx(expected[0] - expected[1], rel=1e-4)


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_take_chains_side_by_side_and_have_references(name):
    params = [torch.randn(3, *shape) for shape in SHAPES[name]]
    images = digits()[2]
    together = NETWORKS[name](params, images)
    alone = torch.stack([NETWORKS[name]([p[i] for p in params], images) for i in range(3)])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
    target = TARGETS[name]()
    mean, deviation = target.reference()
    assert mean.shape == deviation.shape == (1000,)
    np.testing.assert_allclose(mean.reshape(100, 10).sum(1), 1, atol=1e-4)


def test_the_cnn_is_that_of_torch():
    kernel, bias, second, last = (torch.randn(shape) for shape in SHAPES["digits CNN"])
    images = digits()[2][:5]
    maps = torch.nn.functional.conv2d(images[:, None], kernel.T.view(4, 1, 3, 3), bias).tanh()
    pooled = torch.nn.functional.avg_pool2d(maps, 2).permute(0, 2, 3, 1).flatten(1)
    torch.testing.assert_close(NETWORKS["digits CNN"]([kernel, bias, second, last], images), pooled @ second + last)
