"""WhitenedSGHMC: its formula written a second time in plain torch, its limits, and how far it is from a law."""

import math

import pytest
import torch

from learned_samplers import SGHMC, WhitenedSGHMC, check_sampler
from learned_samplers.base import matrices

N, SHAPES = 900, [(4, 1, 3, 3), (4,), (12, 30), (30, 12), (1, 6), ()]


def orthogonal(x):
    """U·Vᵀ as five Newton–Schulz iterations have it, root mean square about 1."""
    longer = math.sqrt(max(x.shape))
    if min(x.shape) == 1:
        return x / x.norm() * longer
    x = x / x.norm()
    for _ in range(5):
        x = 3.4445 * x - 4.7750 * x @ x.T @ x + 2.0315 * x @ x.T @ x @ x.T @ x
    return longer * x


def by_the_formula(start, gradients, noise, *, lr, prior, a=0.1, temperature=1.0, scale=10.0, attenuates=True):
    """Where the chain ends, one tensor after the other, in double precision."""
    ends, epsilon, number = [], math.sqrt(lr / N), 0
    for i, theta in enumerate(start):
        theta, r, m = theta.double().clone(), torch.zeros_like(theta).double(), torch.zeros_like(theta).double()
        rows = theta.shape[0] if theta.dim() > 1 else 1
        covariance, root = 0.0, None
        for step, g in enumerate(gradient[i].double() for gradient in gradients):
            m = 0.9 * m + 0.1 * g
            ahead, plain = (0.9 * m + 0.1 * g).reshape(rows, -1), g.reshape(rows, -1)
            direction = ahead
            if min(ahead.shape) > 1:
                covariance = 0.95 * covariance + 0.05 * plain.T @ plain
                direction = ahead if root is None else ahead @ root
                if (step - number) % 10 == 0:
                    values, vectors = torch.linalg.eigh(covariance / covariance.norm())
                    root = vectors @ torch.diag((values + 1e-4) ** -0.5) @ vectors.T
            direction = orthogonal(direction).reshape(theta.shape)
            if prior and attenuates:
                direction = direction * ahead.norm() / torch.hypot(ahead.norm(), prior / N * theta.norm())
            r = (1 - a) * r - epsilon * (N * g + prior * theta)
            r = r + math.sqrt(2 * a * temperature) * noise[step][i].double()
            theta = theta + epsilon * (r - scale * math.sqrt(N / 50_000) * direction)
        ends.append(theta)
        number += min(rows, theta.numel() // rows) > 1
    return torch.cat([end.flatten() for end in ends])


def chain(dtype, prior, *, steps=30, monkeypatch=None, cls=WhitenedSGHMC, **settings):
    """Where 30 steps with given gradients lead; the start, gradients and noise."""
    stream = torch.Generator().manual_seed(0)

    def drawn():
        return [torch.randn(shape, generator=stream, dtype=torch.float64).to(dtype) for shape in SHAPES]

    start, gradients, noise = (
        drawn(),
        [[0.1 * g for g in drawn()] for _ in range(steps)],
        [drawn() for _ in range(steps)],
    )
    params = [torch.nn.Parameter(p.clone()) for p in start]
    sampler = cls(params, num_data=N, prior_precision=prior, **settings)
    for gradient, xi in zip(gradients, noise, strict=True):
        queue = iter(xi)
        sampler.noise_like = lambda _, queue=queue: next(queue).clone()
        for p, g in zip(params, gradient, strict=True):
            p.grad = g.clone()
        sampler.step()
    return torch.cat([p.detach().flatten() for p in params]).double(), (start, gradients, noise)


@pytest.mark.parametrize("prior", [0.0, 20.0])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_it_is_its_formula(dtype, error, prior):
    end, inputs = chain(dtype, prior, lr=0.002)
    expected = by_the_formula(*inputs, lr=0.002, prior=prior)
    assert (end - expected).norm() < error * expected.norm()
    if prior:  # the planted fault
        without = by_the_formula(*inputs, lr=0.002, prior=prior, attenuates=False)
        assert (end - without).norm() > 1e-3 * expected.norm()


def test_without_its_direction_it_is_sghmc():
    ours, _ = chain(torch.float64, 20.0, lr=0.002, direction_scale=0.0)
    theirs, _ = chain(torch.float64, 20.0, lr=0.002, cls=SGHMC)
    assert torch.equal(ours, theirs)


def test_the_direction_is_as_long_for_few_data_as_for_many():
    moved = []
    for num_data in (100, 10_000):
        p = torch.nn.Parameter(torch.zeros(20, 30))
        sampler = WhitenedSGHMC([p], 0.002, num_data, temperature=0.0)
        p.grad = 1e-3 * torch.randn(20, 30, generator=torch.Generator().manual_seed(0))
        sampler.step()
        moved.append(p.detach().square().mean().sqrt().item())
    assert moved == pytest.approx([10 * math.sqrt(0.002 / 50_000)] * 2, rel=0.35)


def test_the_pure_rule_is_the_step():
    torch.manual_seed(0)
    p = torch.nn.Parameter(torch.randn(6, 4))
    sampler = WhitenedSGHMC([p], num_data=N, prior_precision=3.0)
    state = [torch.zeros(6, 4), torch.zeros(6, 4), torch.zeros(2, 1, 4, 4)]
    theta = p.detach().clone()
    for _ in range(12):
        gradient, noise = 0.1 * torch.randn(6, 4), torch.randn(6, 4)
        sampler.noise_like = lambda _, noise=noise: noise.clone()
        hyper = sampler.hyper(sampler.param_groups[0])
        p.grad, before = gradient, [x.clone() for x in (theta, *state)]
        theta_new, *state_new = sampler.rule(theta, gradient, noise, *state, **hyper)
        assert all(torch.equal(x, y) for x, y in zip((theta, *state), before, strict=True)), "changed in place"
        theta, state = theta_new, state_new
        sampler.step()
        torch.testing.assert_close(p.detach(), theta)


def test_one_that_joins_moves_along_its_momentum_until_its_turn():
    first, late = (torch.nn.Parameter(torch.zeros(4, 3)) for _ in range(2))
    sampler = WhitenedSGHMC([first, late], num_data=N, temperature=0.0, missing_gradient="skip")
    for step in range(12):
        first.grad = torch.randn(4, 3, generator=torch.Generator().manual_seed(step))
        sampler.step()
    late.grad = torch.randn(4, 3, generator=torch.Generator().manual_seed(99))
    sampler.step()
    (direction,) = matrices.orthogonal([late.grad])
    expected = -0.0005 * late.grad - 10 * math.sqrt(0.0005 / 50_000) * direction
    torch.testing.assert_close(late.detach(), expected)


def test_what_check_sampler_finds_is_what_the_docstring_says():
    """The variance is 1.7 times the target's at lr·k/N = 0.05 and 7.8 times at 0.2; of fewer coordinates here."""
    settings = dict(stiffness=(0.05, 0.2), coordinates=(20, 22), refinement=1.1)
    report = check_sampler(lambda params: WhitenedSGHMC(params, num_data=50_000), **settings)
    assert not report.passed
    assert WhitenedSGHMC.badge == "heuristic"
    assert [r.bias for r in report.results] == pytest.approx([0.69, 6.8], rel=0.3)


def test_users_are_told_where_it_is_slow():
    with pytest.warns(UserWarning, match=r"WhitenedSGHMC moves along .*billion operations a step") as caught:
        WhitenedSGHMC([torch.nn.Parameter(torch.zeros(6000, 6000))], num_data=N)
    assert caught[0].filename == __file__
