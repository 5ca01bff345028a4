"""A precision that is sampled with the weights: the joint law, at any temperature, against numerical integration."""

import copy

import numpy as np
import pytest
import torch

from learned_samplers import HMC, L2E, SGHMC, AdaptedSGHMC, CyclicalSchedule, PosteriorSamples
from learned_samplers.priors import GammaHyperprior
from tests.harness import UNBIASED, closure_for, flat, small_network

CURVATURE, SHAPE, RATE = 4.0, 4.0, 2.0
TARGET = torch.linspace(-1.5, 1.5, 6, dtype=torch.float64)


def exact_moments(temperature, curvature=CURVATURE):
    """Mean and standard deviation of log λ: p(λ|y) ∝ Gamma(λ)·Π N(yᵢ; 0, T/k + T/λ), by a sum over a grid."""
    logs = np.linspace(-6.0, 7.0, 20_001)
    precision = np.exp(logs)
    variance = temperature / precision
    if curvature:
        variance = variance + temperature / curvature
        fit = -0.5 * (np.log(variance) * len(TARGET) + (TARGET.numpy() ** 2).sum() / variance)
    else:  # no data: the prior itself
        fit = 0.0
    density = SHAPE * logs - RATE * precision + fit
    weights = np.exp(density - density.max())
    weights /= weights.sum()
    mean = (weights * logs).sum()
    return mean, np.sqrt((weights * (logs - mean) ** 2).sum())


def logs_of_precision(temperature, prior, curvature=CURVATURE, steps=8000):
    """log λ along a chain without bias on Gaussians, on the energy ½k‖θ − y‖² of six weights."""
    theta = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    generator = torch.Generator().manual_seed(3)
    sampler = UNBIASED([theta], 0.1, 1.0, temperature=temperature, prior_precision=prior, generator=generator)
    logs = []
    for step in range(steps):
        theta.grad = curvature * (theta.detach() - TARGET)
        sampler.step()
        if step >= 400 and step % prior.every == 0:
            logs.append(np.log(sampler.param_groups[0]["prior_precision"]))
    return np.array(logs)


def error_of_mean(x):
    """Standard error by means of twenty blocks, which are longer than the chain remembers."""
    blocks = x[: len(x) // 20 * 20].reshape(20, -1).mean(1)
    return blocks.std(ddof=1) / 20**0.5


def agrees(logs, temperature, curvature=CURVATURE):
    mean, deviation = exact_moments(temperature, curvature)
    near = abs(logs.mean() - mean) < 4 * error_of_mean(logs) + 0.01
    return near and abs(logs.std() / deviation - 1) < 0.08


@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_the_precision_has_the_joint_law_at_any_temperature(temperature):
    assert agrees(logs_of_precision(temperature, GammaHyperprior(SHAPE, RATE, every=4)), temperature)


class Tempered(GammaHyperprior):
    """Planted: the whole joint density to the power 1/T."""

    def draw(self, sampler, group):
        (theta,), t = group["params"], group["temperature"]
        shape = torch.tensor((self.shape - 1 + theta.numel() / 2) / t + 1, dtype=torch.float64)
        rate = (self.rate + theta.detach().square().sum().item() / 2) / t
        group["prior_precision"] = torch._standard_gamma(shape, generator=sampler.generator).item() / rate


class WithoutWeights(GammaHyperprior):
    """Planted: λ is drawn from the hyperprior, whatever the weights are."""

    def draw(self, sampler, group):
        shape = torch.tensor(self.shape, dtype=torch.float64)
        drawn = torch._standard_gamma(shape, generator=sampler.generator).item() / self.rate
        group["prior_precision"] = drawn


@pytest.mark.parametrize(("fault", "temperature"), [(Tempered, 0.1), (WithoutWeights, 1.0)])
def test_planted_faults_are_seen(fault, temperature):
    assert not agrees(logs_of_precision(temperature, fault(SHAPE, RATE, every=4)), temperature)


def test_without_data_the_precision_follows_its_prior_also_where_it_is_cold():
    logs = logs_of_precision(0.1, GammaHyperprior(SHAPE, RATE, every=4), curvature=0.0, steps=12_000)
    mean, _ = exact_moments(0.1, curvature=0.0)
    assert logs.mean() == pytest.approx(mean, abs=4 * error_of_mean(logs) + 0.02)


def test_each_tensor_has_a_precision_of_its_own_and_a_chain_resumes_bit_for_bit():
    def chain(model):
        return SGHMC(model.named_parameters(), 0.05, 100, prior_precision=GammaHyperprior(every=3))

    model = small_network()
    sampler = chain(model)
    torch.manual_seed(0)
    for _ in range(7):
        sampler.step(closure_for(model, sampler))
    saved, weights = copy.deepcopy((sampler.state_dict(), model.state_dict()))
    assert len({group["prior_precision"] for group in sampler.param_groups}) == len(list(model.parameters()))
    twin = small_network(seed=9)
    resumed = chain(twin)
    twin.load_state_dict(weights)
    resumed.load_state_dict(saved)
    for net, one in ((model, sampler), (twin, resumed)):
        torch.set_rng_state(saved["sampler"]["rng"]["cpu"])
        for _ in range(5):
            one.step(closure_for(net, one))
    assert torch.equal(flat(model), flat(twin))
    assert [g["prior_precision"] for g in sampler.param_groups] == [g["prior_precision"] for g in resumed.param_groups]


def test_hmc_takes_it_and_samples_are_collected():
    model = small_network()
    sampler = HMC(model.parameters(), 0.01, 16, leapfrog_steps=3, prior_precision=GammaHyperprior(every=2))
    posterior = PosteriorSamples(model, sampler, burn_in=2)
    torch.manual_seed(0)
    for _ in range(6):
        sampler.step(closure_for(model, sampler))
    assert len(posterior) == 4
    assert len({group["prior_precision"] for group in sampler.param_groups}) == 4


def test_while_a_cycle_explores_nothing_is_drawn():
    p = torch.ones(3, requires_grad=True)
    sampler = SGHMC([p], 0.1, 10, prior_precision=GammaHyperprior(every=1))
    schedule = CyclicalSchedule(sampler, 10, exploration_ratio=0.5)
    precisions = []
    for _ in range(10):
        p.grad = torch.ones(3)
        sampler.step()
        precisions.append(sampler.param_groups[0]["prior_precision"])
        schedule.step()
    assert set(precisions[:5]) == {1.0}
    assert len(set(precisions[5:])) == 5


def test_a_groups_own_precision_is_not_drawn():
    model = small_network()
    groups = [{"params": list(model[0].parameters()), "prior_precision": 0.5}, {"params": list(model[2].parameters())}]
    sampler = SGHMC(groups, 0.05, 100, prior_precision=GammaHyperprior(every=1))
    torch.manual_seed(0)
    for _ in range(3):
        sampler.step(closure_for(model, sampler))
    assert [len(group["params"]) for group in sampler.param_groups] == [2, 1, 1]
    assert sampler.param_groups[0]["prior_precision"] == 0.5
    assert sampler.param_groups[1]["prior_precision"] != 1.0
    assert copy.deepcopy(sampler).prior.every == 1


def test_a_state_of_another_prior_says_so():
    model = small_network()
    sampler = SGHMC(model.parameters(), 0.05, 100, prior_precision=GammaHyperprior(every=3))
    target = SGHMC(small_network().parameters(), 0.05, 100, prior_precision=GammaHyperprior(rate=9.0))
    with pytest.warns(UserWarning, match=r"rate=0.1.*rate=9"):
        target.load_state_dict(sampler.state_dict())


def test_the_warm_up_takes_it_and_resumes_without_a_word():
    def chain(model):
        prior = GammaHyperprior(every=2)
        return AdaptedSGHMC(model.parameters(), num_data=16, total_steps=40, warmup=L2E, prior_precision=prior)

    model = small_network()
    sampler = chain(model)
    torch.manual_seed(0)
    for _ in range(5):  # while L2E explores
        sampler.step(closure_for(model, sampler))
    assert sampler.explorer is not None
    saved, weights = copy.deepcopy((sampler.state_dict(), model.state_dict()))
    twin = small_network(seed=4)
    resumed = chain(twin)
    twin.load_state_dict(weights)
    resumed.load_state_dict(saved)
    for net, one in ((model, sampler), (twin, resumed)):
        torch.set_rng_state(saved["sampler"]["rng"]["cpu"])
        for _ in range(25):
            one.step(closure_for(net, one))
    assert torch.equal(flat(model), flat(twin))
