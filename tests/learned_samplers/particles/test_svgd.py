"""SVGD and MT-SGD: the step is the pure rule, limits that coincide, laws."""

import pytest
import torch

from learned_samplers.particles import IMQ, MGDA, MTSGD, RBF, SVGD, Linear
from learned_samplers.particles.directions import repulsion, svgd_direction, target_weights, weighted
from tests.learned_samplers.particles.particle_problems import TwoHeads, energies, parameter

DOUBLE = torch.float64


def trunk_and_heads(net):
    """∇loss of the trunk, (2, M, d), and of each head by its own loss, (M, 4); the trunk's particles (M, d)."""
    losses = net.losses()
    shared, of_heads = [], []
    for k in range(2):
        grads = torch.autograd.grad(losses[k].sum(), [*net.trunk, *net.heads[k]], retain_graph=True)
        shared.append(torch.cat([g.flatten(1) for g in grads[:-1]], dim=1))
        of_heads.append(grads[-1])
    return torch.stack(shared), of_heads, torch.cat([p.detach().flatten(1) for p in net.trunk], dim=1)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("kernel", [RBF(), IMQ(0.5), Linear()])
def test_svgd_step_is_the_rule(kernel, temperature):
    x = parameter(5, 2, dtype=DOUBLE)
    before = x.detach().clone()
    sampler = SVGD([x], 0.3, num_data=10, kernel=kernel, temperature=temperature, prior_precision=2.0)
    returned = sampler.step(lambda: energies("SVGD", x))
    torch.testing.assert_close(returned, energies("SVGD", before))
    score = -(10 * (before - torch.tensor([1.0, 0.0], dtype=DOUBLE)) + 2 * before)
    matrix = kernel(before)
    phi = svgd_direction(score, repulsion(before, matrix), matrix, temperature)
    torch.testing.assert_close(x.detach(), before + 0.03 * phi)
    assert sampler.step_count == 1
    assert x.grad is None


@pytest.mark.parametrize("rule", ["exact", "gradients", "equal"])
def test_algorithm_two(rule):
    """MT-SGD on the trunk, SVGD on each head, each with the kernel of its own parameters, N and the prior in all."""
    net = TwoHeads(dtype=DOUBLE)
    gradients, of_heads, points = trunk_and_heads(net)
    heads = [h[0].detach().clone() for h in net.heads]
    sampler = MTSGD(net.groups(prior_precision=0.5), 0.1, num_data=20, target_weights=rule)
    sampler.step(net.losses)
    scores = -(20 * gradients + 0.5 * points)
    matrix = RBF()(points)
    push = repulsion(points, matrix)
    weights = target_weights(scores, push, matrix, rule=rule)
    moved = points + 0.1 / 20 * svgd_direction(weighted(scores, weights), push, matrix)
    torch.testing.assert_close(torch.cat([p.detach().flatten(1) for p in net.trunk], dim=1), moved)
    torch.testing.assert_close(sampler.weights, weights)
    for head, grad, parameter_ in zip(heads, of_heads, net.heads, strict=True):
        matrix = RBF()(head)
        phi = svgd_direction(-20 * grad, repulsion(head, matrix), matrix)
        torch.testing.assert_close(parameter_[0].detach(), head + 0.1 / 20 * phi)


@pytest.mark.parametrize(
    ("make", "losses", "make_limit", "count"),
    [
        (lambda x: MTSGD(x, 0.1, target_weights=(1.0, 0.0)), lambda x: energies("MTSGD", x), SVGD, 4),
        (lambda x: MTSGD(x, 0.1), lambda x: energies("SVGD", x)[None], SVGD, 4),
        (lambda x: MTSGD(x, 0.1), lambda x: energies("MGDA", x), MGDA, 1),
        (
            lambda x: MTSGD(x, 0.1, kernel_on="features", target_weights="gradients"),
            lambda x: (energies("MTSGD", x), x * 1.0),
            lambda x, lr: MTSGD(x, lr, target_weights="gradients"),
            4,
        ),
    ],
    ids=["fixed weights", "one target", "one particle", "features that are the parameters"],
)
def test_limits_that_coincide(make, losses, make_limit, count):
    x, y = parameter(count, 2), parameter(count, 2)
    make([x]).step(lambda: losses(x))
    make_limit([y], 0.1).step(lambda: energies("SVGD" if make_limit is SVGD else "several", y))
    torch.testing.assert_close(x, y)


def test_kernel_on_features_is_pulled_back():
    """Particle i is pushed along (∂zᵢ/∂θᵢ)ᵀ Σⱼ ∇k(zⱼ, zᵢ); heads that the features do not reach are not pushed."""
    net = TwoHeads(dtype=DOUBLE)
    gradients, of_heads, points = trunk_and_heads(net)
    heads = [h[0].detach().clone() for h in net.heads]
    z = net.latents().detach().flatten(1)
    matrix = RBF()(z)
    push = repulsion(z, matrix)
    pulled = torch.autograd.grad(net.latents(), net.trunk, push.view(3, 8, 4))
    push = torch.cat([g.flatten(1) for g in pulled], dim=1)
    sampler = MTSGD(net.groups(), 0.1, kernel_on="features", target_weights="equal")
    sampler.step(lambda: (net.losses(), net.latents()))
    phi = svgd_direction(-gradients.mean(0), push, matrix)
    torch.testing.assert_close(torch.cat([p.detach().flatten(1) for p in net.trunk], dim=1), points + 0.1 * phi)
    torch.testing.assert_close(net.heads[0][0].detach(), heads[0] - 0.1 * matrix.values @ of_heads[0] / 3)


def test_linear_kernel_has_the_exact_gaussian_as_its_fixed_point():
    mean = torch.tensor([0.5, -1.0], dtype=DOUBLE)
    covariance = torch.tensor([[1.0, 0.6], [0.6, 0.8]], dtype=DOUBLE)
    precision = torch.linalg.inv(covariance)

    def measure(factor):
        x = parameter(6, 2, dtype=DOUBLE)
        sampler = SVGD([x], 0.1, kernel=Linear(), temperature=factor)
        for _ in range(700):
            sampler.step(lambda: ((x - mean) @ precision * (x - mean)).sum(-1) / 2)
        return x.detach().mean(0), torch.cov(x.detach().T, correction=0)

    moments = measure(1.0)
    torch.testing.assert_close(moments[0], mean, rtol=0, atol=1e-8)
    torch.testing.assert_close(moments[1], covariance, rtol=0, atol=1e-8)
    # At temperature T the law is exp(−U/T): a factor T on the covariance. (And a wrong factor is seen.)
    torch.testing.assert_close(measure(0.5)[1], covariance / 2, rtol=0, atol=1e-8)
