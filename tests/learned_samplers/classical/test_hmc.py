"""HMC against quadrature on a banana and an anisotropic Gaussian; adaptation, chains, divergences."""

import math
import warnings
from functools import cache

import numpy as np
import pytest
import torch

from learned_samplers import HMC, PosteriorSamples
from tests.harness import closure_for, small_network


def banana_energy(x: torch.Tensor) -> torch.Tensor:
    """Rosenbrock-like: a unit Gaussian in x₀, and x₁ around x₀² − 1; (M, 2) → (M,)."""
    return 0.5 * x[:, 0] ** 2 + 0.5 * (x[:, 1] - x[:, 0] ** 2 + 1) ** 2


@cache
def moments_by_quadrature(energy, temperature):
    a, b = np.meshgrid(np.linspace(-8, 8, 500), np.linspace(-8, 40, 1500), indexing="ij")
    u = energy(torch.tensor(np.stack([a.ravel(), b.ravel()], 1))).numpy().reshape(a.shape)
    p = np.exp(-(u - u.min()) / temperature)
    p /= p.sum()
    return [(p * f).sum() for f in (a, b, a * a, b * b, a * a * b)]


def closure_of(sampler, *params, energy, clears=True):
    def closure():
        if clears:
            sampler.zero_grad()
        losses = energy(*params)
        losses.sum().backward()
        return losses

    return closure


def run_chains(energy, start, steps, *, num_data=10.0, cls=HMC, **settings):
    """M chains side by side; the closure returns a mean loss a chain."""
    x = start.clone().requires_grad_()
    sampler = cls([x], num_data=num_data, **settings)
    closure, draws = closure_of(sampler, x, energy=lambda x: energy(x) / num_data), []
    for _ in range(steps):
        sampler.step(closure)
        draws.append(x.detach().clone())
    return torch.stack(draws), sampler


def test_banana_against_quadrature():
    torch.manual_seed(0)
    temperature = 0.3
    start = torch.randn(8000, 2, dtype=torch.float64) * temperature**0.5 - torch.tensor([0.0, 1.0])
    settings = dict(leapfrog_steps=12, adapt_steps=50, target_acceptance=0.9, temperature=temperature)
    draws, sampler = run_chains(banana_energy, start, 150, lr=1.0, **settings)
    a, b = draws[50:].reshape(-1, 2).T
    measured = [f.mean() for f in (a, b, a**2, b**2, a**2 * b)]
    expected = moments_by_quadrature(banana_energy, temperature)
    for m, e in zip(measured, expected, strict=True):
        assert m.item() == pytest.approx(e, abs=0.02 * max(1, abs(e)))
    assert 0.8 < sampler.acceptance_rate < 0.98


def test_the_banana_catches_a_sampler_that_always_accepts():
    class AlwaysAccepts(HMC):
        def _uniform(self, like):
            return torch.zeros_like(like) if like.dim() else super()._uniform(like)

    torch.manual_seed(0)
    draws, _ = run_chains(
        banana_energy, torch.randn(1000, 2, dtype=torch.float64), 150, cls=AlwaysAccepts, lr=1.0, leapfrog_steps=12
    )
    expected = moments_by_quadrature(banana_energy, 1.0)
    second = (draws[50:].reshape(-1, 2)[:, 1] ** 2).mean().item()
    assert not abs(second - expected[3]) < 0.02 * expected[3]


def test_the_prior_enters_the_energy():
    """Likelihood of precision 3, prior of precision 5: variance 1/8."""
    torch.manual_seed(2)
    start = torch.randn(2000, 1, dtype=torch.float64)
    draws, _ = run_chains(lambda x: 1.5 * (x[:, 0] - 1) ** 2, start, 300, lr=0.5, leapfrog_steps=8, prior_precision=5.0)
    x = draws[50:].flatten()
    assert x.var().item() == pytest.approx(1 / 8, rel=0.02)
    assert x.mean().item() == pytest.approx(3 / 8, abs=0.01)


@pytest.mark.parametrize("target", [0.6, 0.9])
def test_the_step_size_is_adapted_to_the_wanted_acceptance(target):
    torch.manual_seed(3)
    for first in (1e-4, 1e4):
        draws, sampler = run_chains(
            lambda x: 0.5 * x.square().sum(1),
            torch.randn(50, 20, dtype=torch.float64),
            400,
            lr=first,
            leapfrog_steps=5,
            adapt_steps=200,
            target_acceptance=target,
        )
        assert sampler.acceptance_rate == pytest.approx(target, abs=0.12)
        assert draws[250:].var().item() == pytest.approx(1, rel=0.05)


def test_one_chain_with_a_scalar_loss_and_two_groups():
    torch.manual_seed(4)
    a, b = torch.zeros(60, requires_grad=True), torch.zeros(40, requires_grad=True)
    sampler = HMC([{"params": [a]}, {"params": [b], "lr": 2.0}], 1.0, 10, leapfrog_steps=6, adapt_steps=100)
    closure = closure_of(sampler, a, b, energy=lambda a, b: (0.5 * a.square().sum() + 2 * (b - 1).square().sum()) / 10)
    draws = []
    for _ in range(500):
        sampler.step(closure)
        draws.append((a.detach().clone(), b.detach().clone()))
    x, y = (torch.stack(values) for values in zip(*draws[100:], strict=True))
    assert (x.var().item(), y.var().item()) == pytest.approx((1, 0.25), rel=0.1)
    assert (x.mean().item(), y.mean().item()) == pytest.approx((0, 1), abs=0.05)
    assert 0.5 < sampler.acceptance_rate <= 1
    assert [group["lr"] for group in sampler.param_groups] == [1.0, 2.0]
    assert sampler.lr_factor != 1


def test_a_scheduler_that_writes_lr_does_not_undo_the_adaptation():
    torch.manual_seed(5)
    x = torch.randn(50, requires_grad=True)
    sampler, again = (HMC([x], 1e-4, 1.0, leapfrog_steps=5, adapt_steps=60) for _ in range(2))
    scheduler = torch.optim.lr_scheduler.LambdaLR(sampler, lambda step: 1.0)
    for _ in range(160):
        sampler.step(closure_of(sampler, x, energy=lambda x: 0.5 * x.square().sum()))
        scheduler.step()
    assert 0.6 < sampler.acceptance_rate < 0.95
    assert 0.05 < sampler.param_groups[0]["lr"] * sampler.lr_factor < 1
    again.load_state_dict(sampler.state_dict())
    assert again.lr_factor == sampler.lr_factor


def test_a_loss_that_is_a_number_keeps_double_precision(monkeypatch):
    hamiltonians, original = [], HMC._hamiltonian

    def recorded(*inputs):
        hamiltonians.append(original(*inputs))
        return hamiltonians[-1]

    monkeypatch.setattr(HMC, "_hamiltonian", recorded)
    for convert in (lambda loss: loss.detach(), lambda loss: loss.item()):
        x = torch.ones(3, dtype=torch.float64, requires_grad=True)
        sampler = HMC([x], 1.0, 1e6, leapfrog_steps=3)
        closure = closure_of(sampler, x, energy=lambda x: 1 + x.square().sum() / 7e6)
        torch.manual_seed(7)
        sampler.step(lambda: convert(closure()))  # noqa: B023
    assert len(hamiltonians) == 4
    assert hamiltonians[:2] == hamiltonians[2:]


def test_divergent_trajectories_are_rejected_counted_and_leave_the_chain_where_it_was():
    x = torch.ones(1, requires_grad=True)
    sampler = HMC([x], 1e12, 1.0, leapfrog_steps=20)
    assert math.isnan(HMC([x], 0.1, 10, adapt_steps=5).acceptance_rate), "unknown before the first step"
    for _ in range(3):
        sampler.step(closure_of(sampler, x, energy=lambda x: x.pow(4).sum()))
    assert (x.item(), sampler.divergences, sampler.acceptance_rate) == (1.0, 3, 0.0)


def test_a_snapshot_of_hmc_in_memory_stays_as_it_was():
    model = small_network()
    sampler = HMC(model.parameters(), 0.1, 100, adapt_steps=5)
    sampler.step(closure_for(model, sampler))
    snapshot = sampler.state_dict()["param_groups"][0]["tally"]
    before = dict(snapshot)
    sampler.step(closure_for(model, sampler))
    assert snapshot == before


def test_draws_of_the_adaptation_are_no_samples():
    model = small_network()
    sampler = HMC(model.parameters(), 0.01, 20, adapt_steps=5, leapfrog_steps=2, prior_precision=1.0)
    posterior = PosteriorSamples(model, sampler)
    for _ in range(8):
        sampler.step(closure_for(model, sampler))
    assert posterior.steps == [6, 7, 8]


def test_a_chain_that_accepts_nothing_is_told_once():
    x = torch.ones(3, requires_grad=True)
    sampler = HMC([x], lr=1e4, num_data=10)
    closure = closure_of(sampler, x, energy=lambda x: x.square().sum() / 20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(19):
            sampler.step(closure)
    with pytest.warns(UserWarning, match="smaller lr than 1e"):
        sampler.step(closure)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sampler.step(closure)


def test_a_gradient_that_goes_missing_on_the_way_is_refused_and_the_chain_stays():
    torch.manual_seed(0)  # with its momentum a becomes negative
    a, b = (torch.tensor([w], requires_grad=True) for w in (0.01, 1.0))
    sampler = HMC([("a", a), ("b", b)], 1.0, 1, missing_gradient="skip")

    def closure():
        sampler.zero_grad()
        loss = 0.5 * (a.square() + (b.square() if a.item() > 0 else 0)).sum()
        loss.backward()
        return loss

    before = a.item(), b.item()
    with pytest.raises(ValueError, match="'b' had a gradient where the trajectory began and has none"):
        sampler.step(closure)
    assert (a.item(), b.item()) == before
    assert not sampler.broken_off


def test_a_target_that_is_a_tensor_is_resumed():
    w = torch.ones(3, requires_grad=True)

    def make():
        return HMC([w], 0.1, 1, adapt_steps=5, target_acceptance=torch.tensor(0.8))

    sampler = make()
    sampler.step(closure_of(sampler, w, energy=lambda w: 0.5 * w.square().sum()))
    make().load_state_dict(sampler.state_dict())
