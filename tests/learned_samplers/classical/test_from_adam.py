"""AdaptedSGHMC.from_optimizer: a trained model's Adam as the warm-up; the law, and what is taken over."""

import math

import pytest
import torch

from learned_samplers import AdaptedSGHMC
from learned_samplers.priors import FanIn, GammaHyperprior
from tests.harness import closure_for, flat, small_network
from tests.learned_samplers.classical.chains_of_adapted import N


def trained(cls=torch.optim.Adam, **settings):
    model = small_network()
    first, second = list(model[0].named_parameters()), list(model[2].named_parameters())
    adam = cls([{"params": first, "lr": 0.02, "betas": (0.8, 0.99)}, {"params": second}], 0.01, **settings)
    for _ in range(20):
        closure_for(model, adam)()
        adam.step()
    return model, adam


@pytest.mark.parametrize("amsgrad", [False, True])
def test_a_warm_start_keeps_groups_names_and_the_mass(amsgrad):
    model, adam = trained(weight_decay=0.02, amsgrad=amsgrad)
    saved = flat(model)
    sampler = AdaptedSGHMC.from_optimizer(adam, N, temperature=0.5)
    named = ("param_names", "lr", "momentum_decay", "prior_precision")
    (names, lrs, decays, priors) = ([g[name] for g in sampler.param_groups] for name in named)
    assert (names, lrs, priors) == ([["weight", "bias"]] * 2, [0.02, 0.01], [2.0, 2.0])
    assert decays == pytest.approx([0.2, 0.1])
    for group, decay, a in zip(adam.param_groups, (0.99, 0.999), (0.2, 0.1), strict=True):
        for p in group["params"]:
            moment = adam.state[p]["max_exp_avg_sq" if amsgrad else "exp_avg_sq"] / (1 - decay**20)
            expected = a / (moment.sqrt() + math.sqrt(2.0 * 0.5) / N + 1e-5)
            torch.testing.assert_close(sampler.state[p]["mass"].square(), expected)
    assert torch.equal(flat(model), saved)
    assert not sampler.is_sampling
    sampler.step(closure_for(model, sampler))
    assert sampler.is_sampling
    twin = AdaptedSGHMC.from_optimizer(adam, N, temperature=0.5)
    twin.load_state_dict(sampler.state_dict())
    assert twin.step_count == 1
    _, adam = trained(torch.optim.AdamW, weight_decay=0.01)
    settings = dict(prior_precision=3.0, lr=0.5, momentum_decay=0.3)
    sampler = AdaptedSGHMC.from_optimizer(adam, N, **settings)
    assert all(g[name] == value for g in sampler.param_groups for name, value in settings.items())


@pytest.mark.parametrize(
    "schedule",
    [
        lambda adam: torch.optim.lr_scheduler.CosineAnnealingLR(adam, 30, eta_min=1e-7),
        lambda adam: torch.optim.lr_scheduler.OneCycleLR(adam, max_lr=0.01, total_steps=31),
    ],
)
def test_a_rate_that_a_schedule_has_brought_down_is_not_taken_over(schedule):
    """A chain at Adam's last rate would stand still, and its samples be copies of each other."""
    model = small_network()
    adam = torch.optim.Adam(model.parameters(), 0.01)
    annealed = schedule(adam)
    for _ in range(30):
        closure_for(model, adam)()
        adam.step()
        annealed.step()
    with pytest.raises(ValueError, match=r"lr must be given"):
        AdaptedSGHMC.from_optimizer(adam, N)
    assert AdaptedSGHMC.from_optimizer(adam, N, lr=0.005).param_groups[0]["lr"] == 0.005


def test_cold_it_moves_as_adam_with_that_mass():
    """θ ← θ − lr·(m + m′)/(2(√v̂ + eps)), m′ = β₁·m with m Adam's first moment over β₁: half a move before it decays."""
    torch.manual_seed(0)
    p = torch.randn(5, dtype=torch.float64).requires_grad_()
    adam = torch.optim.Adam([p], 0.01, betas=(0.8, 0.99))
    p.grad = torch.randn(5, dtype=torch.float64)
    adam.step()
    v = adam.state[p]["exp_avg_sq"] / (1 - 0.99)
    sampler = AdaptedSGHMC.from_optimizer(adam, N, temperature=0.0, eps=1e-3)
    theta, m = p.detach().clone(), torch.zeros(5, dtype=torch.float64)
    for _ in range(10):
        p.grad = torch.randn(5, dtype=torch.float64)
        m = m + 0.2 * p.grad
        theta = theta - 0.01 * (m + 0.8 * m) / 2 / (v.sqrt() + 1e-3)
        m = 0.8 * m
        sampler.step()
        assert torch.allclose(p.detach(), theta, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("prior", [FanIn(), {"*weight": 3.0, "*": 0.5}, GammaHyperprior(every=2)])
def test_it_takes_priors_and_their_groups_keep_rate_and_mass(prior):
    model, adam = trained()
    plain = AdaptedSGHMC.from_optimizer(adam, N, prior_precision=1.0)
    sampler = AdaptedSGHMC.from_optimizer(adam, N, prior_precision=prior)
    assert len(sampler.param_groups) == 4
    for group in sampler.param_groups:
        for p in group["params"]:
            theirs = next(g for g in plain.param_groups if any(p is q for q in g["params"]))
            assert (group["lr"], group["momentum_decay"]) == (theirs["lr"], theirs["momentum_decay"])
            roots = [
                one.hyper(g)["momentum_decay"] / one.state[p]["mass"].square() - one.hyper(g)["floor"]
                for one, g in ((sampler, group), (plain, theirs))
            ]
            assert torch.allclose(*roots, rtol=1e-3), "the root of v̂"
    torch.manual_seed(0)
    for _ in range(4):
        sampler.step(closure_for(model, sampler))
    assert flat(model).isfinite().all()
