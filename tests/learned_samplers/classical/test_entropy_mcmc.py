"""Entropy-MCMC: the joint law of weights and guide on Gaussians, by Lyapunov's equation and in closed form."""

import numpy as np
import pytest
import torch

from learned_samplers import EntropyMCMC
from learned_samplers.checks.linear import read_linear_step
from learned_samplers.classical.entropy_mcmc import entropy_mcmc_rule
from tests.harness import closure_for, flat, small_network

N = 100


def joint_covariance(k, h, eta, temperature):
    """T·H⁻¹(I − hH/2)⁻¹ of SGLD on the joint energy, H its Hessian."""
    hessian = np.array([[k + 1 / eta, -1 / eta], [-1 / eta, 1 / eta]])
    return temperature * np.linalg.inv(hessian) @ np.linalg.inv(np.eye(2) - h * hessian / 2)


@pytest.mark.parametrize("temperature", [1.0, 0.1])
@pytest.mark.parametrize(("k", "lr", "eta"), [(50.0, 0.1, 0.01), (200.0, 0.05, 0.1), (5.0, 0.1, 0.3)])
def test_weights_and_guide_have_the_joint_law(k, lr, eta, temperature):
    """Read off the running optimizer to 1e-9, with a prior of k/5; the marginals are T/k and T/k + ηT up to O(h)."""

    def make(p):
        return EntropyMCMC(p, lr, N, guide_variance=eta, temperature=temperature, prior_precision=0.2 * k)

    step = read_linear_step(make, 0.8 * k / N)
    assert step is not None
    assert step.names == ("theta", "guide")
    assert np.allclose(step.stationary_covariance(), joint_covariance(k, lr / N, eta, temperature), rtol=1e-9)
    fine = read_linear_step(make, 0.8 * k / N, rescale_lr=1e-4).stationary_covariance()
    limit = temperature * np.array([[1 / k, 1 / k], [1 / k, 1 / k + eta]])
    assert np.allclose(fine, limit, rtol=1e-3)


class _OneNoiseForBoth(EntropyMCMC):
    def noise_like(self, p):
        return super().noise_like(p)[..., :1].expand(*p.shape, 2)


class _TheGuideDoesNotPull(EntropyMCMC):
    @staticmethod
    def rule(x, g, noise, guide, *, ops, **settings):
        copies = [ops.map(torch.clone, tensors) for tensors in (x, g, x)]
        _, guide = entropy_mcmc_rule(*copies[:2], noise, guide, ops=ops, **settings)
        x, _ = entropy_mcmc_rule(x, g, noise, copies[2], ops=ops, **settings)
        return x, guide


@pytest.mark.parametrize("broken", [_OneNoiseForBoth, _TheGuideDoesNotPull])
def test_planted_faults_are_found(broken):
    step = read_linear_step(lambda p: broken(p, 0.1, N, guide_variance=0.01), 0.5)
    assert step is not None
    error = step.stationary_covariance() / joint_covariance(50.0, 1e-3, 0.01, 1.0) - 1
    assert np.abs(error).max() > 0.1, error


def test_at_guide_lends_the_guide_to_the_model():
    model = small_network()
    sampler = EntropyMCMC(model.parameters(), 0.1, N, guide_variance=0.1)
    for _ in range(3):
        sampler.step(closure_for(model, sampler))
    weights, guide = flat(model), torch.cat([sampler.state[p]["guide"].flatten() for p in model.parameters()])
    assert not torch.equal(weights, guide)
    with sampler.at_guide():
        assert torch.equal(flat(model), guide)
    assert torch.equal(flat(model), weights)
    with pytest.raises(RuntimeError, match="on the way"), sampler.at_guide():
        raise RuntimeError("on the way")
    assert torch.equal(flat(model), weights)
    sampler.state[[*model.parameters()][1]]["guide"] = torch.zeros(7)
    with pytest.raises(RuntimeError, match="size"), sampler.at_guide():  # the first parameter was written
        pass
    assert torch.equal(flat(model), weights)


def test_the_guide_starts_as_a_copy():
    p = torch.tensor([1.0, -2.0], requires_grad=True)
    sampler = EntropyMCMC([p], 1e-12, N, temperature=0)
    p.grad = torch.zeros(2)
    sampler.step()
    assert torch.allclose(sampler.state[p]["guide"], torch.tensor([1.0, -2.0]))


def test_a_rate_at_which_the_pair_swings_apart_is_refused_also_by_a_schedule():
    """N·η = 2: the law at 1.9 is finite, the chain at 2.1 is not."""
    model = small_network()
    sampler = EntropyMCMC(model.parameters(), 1.9, 20, guide_variance=0.1, temperature=0.0)
    sampler.step(closure_for(model, sampler))
    before = flat(model)
    sampler.param_groups[0]["lr"] = 2.1
    with pytest.raises(ValueError, match=r"num_data·guide_variance = 2,.*got 2\.1"):
        sampler.step(closure_for(model, sampler))
    assert torch.equal(flat(model), before)
