"""A prior that is centred on given weights: the same chain, moved; saved with the state; refused where unknown."""

import pytest
import torch

from learned_samplers import PSGLD, SGHMC, SGLD
from tests.harness import NEED_CLOSURE, NEED_DRAWS, SAMPLERS, flat, small_network

N = 100
TAKING = [name for name in SAMPLERS if SAMPLERS[name].cls.takes_prior_mean]


def pulled(make, theta, shift=0.0, steps=40, **settings):
    """A chain on the mean loss ½·Σ(θ − shift)²."""
    sampler = make([theta], **settings)
    torch.manual_seed(4)
    for _ in range(steps):

        def closure():
            theta.grad = theta.detach() - shift
            return 0.5 * theta.grad.square().sum()

        sampler.step(closure)
    return theta.detach().clone()


@pytest.mark.parametrize("name", [name for name in TAKING if name not in NEED_DRAWS | NEED_CLOSURE])
@pytest.mark.parametrize("foreach", [None, False])
def test_a_prior_at_mu_is_the_chain_of_a_prior_at_zero_moved_by_mu(name, foreach):
    """Data and prior moved alike move the chain alike, whatever the rule makes of its parameter."""
    mu = torch.tensor([3.0, -2.0, 0.5], dtype=torch.float64)
    start = torch.tensor([0.2, 0.1, -0.4], dtype=torch.float64)
    settings = dict(prior_precision=70.0, foreach=foreach, lr=0.1)
    at_zero = pulled(SAMPLERS[name], start.clone().requires_grad_(), **settings)
    theta = (start + mu).requires_grad_()

    def make(params, **more):
        return SAMPLERS[name]([{"params": params, "prior_mean": [mu]}], **more)

    moved = pulled(make, theta, mu, **settings)
    assert torch.allclose(moved - mu, at_zero, atol=1e-9)
    assert not torch.allclose(at_zero, start)


@pytest.mark.parametrize("cls", [SGLD, SGHMC, PSGLD])
def test_cold_the_chain_ends_between_data_and_prior(cls):
    """λ(θ−μ) + N(θ−c) = 0 at θ = (Nc + λμ)/(N + λ)."""
    theta = torch.full((3,), 5.0, requires_grad=True)
    settings = dict(lr=0.1, num_data=N, prior_precision=300.0, prior_mean="initial", temperature=0.0)
    end = pulled(lambda p, **more: cls(p, **more), theta, 1.0, steps=2000, **settings)
    assert torch.allclose(end, torch.tensor((N * 1.0 + 300.0 * 5.0) / (N + 300.0)), atol=1e-3)


def test_the_configurational_temperature_knows_the_mean():
    """The draws are exact, of ½λ(θ − μ)² alone at T = 1."""
    theta = (2.0 + torch.randn(20_000) / 50**0.5).requires_grad_()
    sampler = SGHMC([theta], 0.1, N, prior_precision=50.0, prior_mean=[torch.full((20_000,), 2.0)])
    theta.grad = torch.zeros_like(theta)
    assert sampler.temperatures()[0]["configurational"] == pytest.approx(1.0, rel=0.05)


def test_a_prior_without_precision_does_nothing():
    def run(**settings):
        model = small_network().double()
        sampler = SGLD(model.parameters(), 0.1, N, **settings)
        torch.manual_seed(1)
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        sampler.step()
        return flat(model)

    assert torch.allclose(run(), run(prior_mean="initial"), atol=1e-12)


def test_frozen_parameters_and_groups_have_their_own_means():
    model = small_network()
    model[0].weight.requires_grad_(False)
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "prior_mean": None}]
    sampler = SGLD(groups, 0.1, N, prior_precision=10.0, prior_mean="initial", temperature=0.0)
    frozen, start = model[0].weight.clone(), model[0].bias.detach().clone()
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    for _ in range(3):
        sampler.step()
    assert torch.equal(model[0].weight, frozen)
    assert torch.allclose(model[0].bias, start)  # at its prior's mean nothing pulls
    assert sampler.param_groups[1]["prior_mean"] is None
