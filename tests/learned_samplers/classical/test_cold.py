"""At temperature 0 a sampler is the torch optimizer that it is named after."""

from __future__ import annotations

import pytest
import torch

from learned_samplers import PSGLD, SGHMC, SGLD
from tests.harness import closure_for, flat, small_network


def _beside(sampler_of, optimizer_of, steps=30):
    ours, theirs = small_network(), small_network()
    a, b = sampler_of(ours.parameters()), optimizer_of(theirs.parameters())
    for _ in range(steps):
        closure_for(ours, a)(), closure_for(theirs, b)()
        a.step(), b.step()
    return flat(ours), flat(theirs)


def test_cold_sgld_is_sgd_bit_for_bit():
    ours, theirs = _beside(lambda p: SGLD(p, 0.3, 100, temperature=0), lambda p: torch.optim.SGD(p, 0.3))
    assert torch.equal(ours, theirs)


def test_cold_psgld_is_rmsprop_bit_for_bit():
    ours, theirs = _beside(
        lambda p: PSGLD(p, 0.01, 100, temperature=0, decay=0.9, eps=1e-6),
        lambda p: torch.optim.RMSprop(p, 0.01, alpha=0.9, eps=1e-6),
    )
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("decay", [0.05, 0.5, 1.0])
def test_cold_sghmc_is_sgd_with_momentum(decay):
    ours, theirs = _beside(
        lambda p: SGHMC(p, 0.1, 5000, temperature=0, momentum_decay=decay),
        lambda p: torch.optim.SGD(p, 0.1, momentum=1 - decay),
    )
    assert torch.allclose(ours, theirs, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("cls", [SGLD, SGHMC])
def test_the_prior_is_weight_decay_over_num_data(cls):
    momentum = {"momentum": 0.9} if cls is SGHMC else {}
    ours, theirs = _beside(
        lambda p: cls(p, 0.1, 50, temperature=0, prior_precision=2.0),
        lambda p: torch.optim.SGD(p, 0.1, weight_decay=2.0 / 50, **momentum),
    )
    assert torch.allclose(ours, theirs, atol=2e-6, rtol=1e-5)


def test_sghmc_without_memory_is_sgld():
    ours, theirs = _beside(
        lambda p: SGLD(p, 0.1, 50, temperature=0), lambda p: SGHMC(p, 0.1, 50, momentum_decay=1.0, temperature=0)
    )
    assert torch.allclose(ours, theirs, atol=1e-6)
    one = flat(_noisy(lambda p: SGLD(p, 0.1, 50)))
    other = flat(_noisy(lambda p: SGHMC(p, 0.1, 50, momentum_decay=1.0)))
    assert torch.allclose(one, other, atol=1e-5)


def _noisy(make):
    model = small_network()
    sampler = make(model.parameters())
    torch.manual_seed(2)
    for _ in range(5):
        sampler.step(closure_for(model, sampler))
    return model
