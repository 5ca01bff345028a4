"""The differentiable twin of MetaSGMCMC."""

from __future__ import annotations

import copy

import higher
import pytest
import torch
from torch import nn

import learned_samplers.differentiable  # noqa: F401  (makes the samplers known to higher)
from tests.harness import flat, small_data, small_network
from tests.learned_samplers.learned.flat_keywords import MetaSGMCMC
from tests.learned_samplers.learned.meta_sgmcmc.meta_sgmcmc_cases import N, network


def unrolled(module, lr, steps=5, twin_options=None):
    """A later loss as a function of the learning rate and of the network's weights."""
    model = small_network().double()
    x, y = small_data()
    sampler = MetaSGMCMC(model.parameters(), 0.1, N, network=module, prior_precision=1.0, energy_scale=3.0)
    torch.manual_seed(4)
    with higher.innerloop_ctx(model, sampler, override={"lr": [lr]}) as (fast, twin):
        for _ in range(steps):
            twin.step(nn.functional.cross_entropy(fast(x.double()), y), **(twin_options or {}))
        return nn.functional.cross_entropy(fast(x.double().flip(0)), y)


def test_the_twin_is_differentiable_in_the_learning_rate_and_in_the_weights():
    module, h = network(3), 1e-6
    lr = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    parameters = list(module.parameters())
    by_lr, *by_weights = torch.autograd.grad(unrolled(module, lr), [lr, *parameters])
    difference = (unrolled(module, lr.detach() + h) - unrolled(module, lr.detach() - h)) / (2 * h)
    assert by_lr.item() == pytest.approx(difference.item(), rel=1e-4)
    generator = torch.Generator().manual_seed(1)
    direction = [torch.randn(p.shape, generator=generator, dtype=p.dtype) * (p != 0) for p in parameters]
    ahead, behind = copy.deepcopy(module), copy.deepcopy(module)
    with torch.no_grad():
        for p, q, d in zip(ahead.parameters(), behind.parameters(), direction, strict=True):
            p.add_(d, alpha=h)
            q.sub_(d, alpha=h)
    difference = (unrolled(ahead, lr.detach()) - unrolled(behind, lr.detach())) / (2 * h)
    slope = sum((g * d).sum() for g, d in zip(by_weights, direction, strict=True))
    assert slope.item() == pytest.approx(difference.item(), rel=1e-4)
    detached = torch.autograd.grad(unrolled(module, lr, twin_options={"detach_inputs": True}), parameters)
    assert all(g.isfinite().all() for g in detached)
    assert max((a - b).abs().max() for a, b in zip(detached, by_weights, strict=True)) > 1e-6


@pytest.mark.parametrize("feature_set", ["energy", "energy_rms"])
def test_the_twin_makes_the_same_chain(feature_set):
    model = small_network().double()
    x, y = small_data()
    sampler = MetaSGMCMC(
        [{"params": model[0].parameters(), "prior_precision": 2.0}, {"params": model[2].parameters()}],
        0.1,
        N,
        network=network(),
        feature_set=feature_set,
        energy_scale=3.0,
    )

    def closure():
        sampler.zero_grad()
        loss = nn.functional.cross_entropy(model(x.double()), y)
        loss.backward()
        return loss

    sampler.step(closure)  # so that there is state to take over
    torch.manual_seed(8)
    with higher.innerloop_ctx(model, sampler, copy_initial_weights=False) as (fast, twin):
        for _ in range(5):
            twin.step(nn.functional.cross_entropy(fast(x.double()), y))
        unrolled = torch.cat([p.detach().flatten() for p in fast.parameters()])
    torch.manual_seed(8)
    for _ in range(5):
        sampler.step(closure)
    torch.testing.assert_close(unrolled, flat(model), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("feature_set", ["energy", "energy_rms"])
def test_an_empty_parameter_is_left_alone_and_changes_nothing_for_others(feature_set):
    class Weights(nn.Module):  # higher cannot patch nn.Module itself
        pass

    def model(empty):
        torch.manual_seed(0)
        made = Weights()
        made.weight = nn.Parameter(torch.randn(3, dtype=torch.float64))
        if empty:
            made.nothing = nn.Parameter(torch.zeros(0, 2, dtype=torch.float64))
        return made

    def loss(made):
        return made.weight.square().sum() + sum(p.sum() for p in made.parameters() if not p.numel())

    def sampler(made):
        return MetaSGMCMC(made.parameters(), 0.1, N, network=network(3), feature_set=feature_set, temperature=0.0)

    found = []
    for empty in (False, True):
        made = model(empty)
        own = sampler(made)

        def closure(made=made, own=own):
            own.zero_grad()
            value = loss(made)
            value.backward()
            return value

        own.step(closure)
        twin_of = model(empty)
        with higher.innerloop_ctx(twin_of, sampler(twin_of)) as (fast, twin):
            twin.step(loss(fast))
            found += [made.weight.detach(), fast.weight.detach()]
    assert not torch.equal(found[0], model(False).weight)
    for other in found[1:]:
        torch.testing.assert_close(other, found[0])
