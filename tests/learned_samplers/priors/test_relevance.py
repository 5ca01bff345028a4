"""A precision for each input, sampled with the weights: the joint law against numerical integration."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from learned_samplers import HMC, MCLMC, SGHMC, AdaptedSGHMC, Chains
from learned_samplers.base.prior import BY_INPUT
from learned_samplers.priors import Relevance
from tests.harness import UNBIASED, closure_for, flat, small_network


def test_of_chains_side_by_side_each_first_layer_has_precisions_of_its_own():
    chains = Chains([small_network() for _ in range(3)], separate=True)
    sampler = SGHMC(chains.named_parameters(), lr=0.01, num_data=50, prior_precision=Relevance(every=1))
    for p in chains.parameters():
        p.grad = torch.zeros_like(p)
    sampler.step()
    drawn = [BY_INPUT in group for group in sampler.param_groups if group["params"][0].dim() > 1]
    assert drawn == [True] * 3 + [False] * (len(drawn) - 3)


CURVATURE, SHAPE, RATE = 4.0, 2.0, 0.5
BEST = torch.tensor([0.0, 0.5, 1.0, 2.0], dtype=torch.float64)
#: Inputs of each best value: their weights are independent, and so are as many chains.
COPIES = 8


def exact_moments(temperature):
    """Means and deviations of p(w) ∝ exp(−½c(w − ŵ)²/T)·(rate + w²/(2T))^(−shape − ½), by a sum over a grid."""
    w = np.linspace(-4, 6, 20_001)[:, None]
    fit = -0.5 * CURVATURE * (w - BEST.numpy()) ** 2 / temperature
    density = fit - (SHAPE + 0.5) * np.log(RATE + w**2 / (2 * temperature))
    weights = np.exp(density - density.max(0))
    weights /= weights.sum(0)
    mean = (weights * w).sum(0)
    return mean, np.sqrt((weights * (w - mean) ** 2).sum(0))


def errors(prior, temperature, steps=3_300):
    """Largest errors of means and of deviations, in exact deviations, and the configurational temperature over T."""
    weight = torch.zeros(1, 4 * COPIES, dtype=torch.float64, requires_grad=True)
    generator = torch.Generator().manual_seed(0)
    sampler = UNBIASED([weight], 0.05, 1.0, temperature=temperature, prior_precision=prior, generator=generator)
    states, virial = [], []
    for step in range(steps):
        weight.grad = CURVATURE * (weight.detach() - BEST.repeat(COPIES))
        if step >= 300 and step % 4 == 0:
            virial.append(sampler.temperatures()[0]["configurational"])
        sampler.step()
        if step >= 300:
            states.append(weight.detach()[0].clone())
    drawn = torch.stack(states).view(-1, 4).numpy()
    mean, deviation = exact_moments(temperature)
    shift = np.abs((drawn.mean(0) - mean) / deviation).max()
    return shift, np.abs(drawn.std(0) / deviation - 1).max(), np.mean(virial) / temperature


@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_weights_have_the_joint_law_at_any_temperature(temperature):
    shift, width, virial = errors(Relevance(SHAPE, RATE, every=4), temperature)
    assert shift < 0.15
    assert width < 0.12
    assert virial == pytest.approx(1, abs=0.1)


class OneForAll(Relevance):
    """Planted: the pull is that of the smallest precision, for all inputs."""

    def draw(self, sampler, group):
        super().draw(sampler, group)
        group[BY_INPUT] = [0.0] * len(group[BY_INPUT])


class Untempered(Relevance):
    """Planted: drawn as if T were 1."""

    def draw(self, sampler, group):
        temperature, group["temperature"] = group["temperature"], 1.0
        super().draw(sampler, group)
        group["temperature"] = temperature


@pytest.mark.parametrize(("fault", "temperature"), [(OneForAll, 1.0), (Untempered, 0.1)])
def test_planted_faults_are_seen(fault, temperature):
    shift, width, _ = errors(fault(SHAPE, RATE, every=4), temperature)
    assert max(shift / 0.15, width / 0.12) > 1.3


@pytest.mark.parametrize("cls", [SGHMC, AdaptedSGHMC])
def test_the_first_layer_alone_has_precisions_by_input_and_a_chain_resumes_bit_for_bit(cls):
    def chain(model):
        settings = {"warmup_steps": 4} if cls is AdaptedSGHMC else {}
        return cls(model.named_parameters(), 0.01, 100, prior_precision=Relevance(others=2.0, every=3), **settings)

    model = small_network()
    sampler = chain(model)
    torch.manual_seed(0)
    for _ in range(7):
        sampler.step(closure_for(model, sampler))
    first, *others = sampler.param_groups
    inputs = first["params"][0].shape[1]
    assert len(set(first[BY_INPUT])) == inputs
    assert min(first[BY_INPUT]) == 0.0
    assert all(group["prior_precision"] == 2.0 and BY_INPUT not in group for group in others)
    saved, weights = copy.deepcopy((sampler.state_dict(), model.state_dict()))
    twin = small_network(seed=9)
    resumed = chain(twin)
    twin.load_state_dict(weights)
    resumed.load_state_dict(saved)
    for net, one in ((model, sampler), (twin, resumed)):
        torch.set_rng_state(saved["sampler"]["rng"]["cpu"])
        for _ in range(5):
            one.step(closure_for(net, one))
    assert torch.equal(flat(model), flat(twin))
    assert first[BY_INPUT] == resumed.param_groups[0][BY_INPUT]


def test_channels_of_a_convolution_are_inputs():
    layer = nn.Conv2d(3, 5, 2)
    sampler = SGHMC(layer.parameters(), 0.01, 100, prior_precision=Relevance(every=1))
    for _ in range(2):
        sampler.zero_grad()
        layer(torch.ones(1, 3, 4, 4)).square().mean().backward()
        sampler.step()
    assert len(sampler.param_groups[0][BY_INPUT]) == 3


@pytest.mark.parametrize("cls", [HMC, MCLMC])
def test_samplers_that_read_energies_refuse_it(cls):
    with pytest.raises(ValueError, match=f"prior_precision of {cls.__name__}"):
        cls(small_network().parameters(), 0.01, 100, prior_precision=Relevance())


@pytest.mark.parametrize("values", [3.0, [1.0, -1.0], [float("nan")] * 2])
def test_a_damaged_state_is_refused(values):
    weight = torch.ones(2, 2, requires_grad=True)
    sampler = SGHMC([weight], 0.01, 100, prior_precision=Relevance(every=1))
    weight.grad = torch.ones(2, 2)
    sampler.step()
    saved = sampler.state_dict()
    saved["param_groups"][0][BY_INPUT] = values
    with pytest.raises((ValueError, TypeError), match=BY_INPUT):
        sampler.load_state_dict(saved)
