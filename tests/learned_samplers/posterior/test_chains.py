"""Chains side by side: the same numbers as networks alone, each chain's own law, and a collection that knows them."""

import pytest
import torch
from torch import nn

from learned_samplers import BAOA, HMC, MCLMC, SGHMC, Chains, PosteriorSamples
from learned_samplers.diagnostics import split_rhat
from tests.learned_samplers.posterior.common import X, Y, ensemble, frozen, network

K, N = 3, 20


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.register_buffer("shift", torch.arange(4.0))

    def forward(self, x):
        return x + self.inner(x + self.shift).tanh()


def sequence():
    return nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Unflatten(1, (2, 3)), nn.Linear(3, 2), nn.Flatten())


@pytest.mark.parametrize("build", [lambda: network(seed=None), Residual, frozen, sequence])
def test_they_are_the_networks(build):
    networks = ensemble(build, K)
    chains = Chains(networks)
    torch.testing.assert_close(chains(X), torch.stack([each(X) for each in networks]))
    if build is frozen:
        assert chains.names == ["2.weight", "2.bias"]


def test_inputs_of_more_axes_and_layers_without_bias():
    networks = [nn.Sequential(nn.Linear(4, 2, bias=False), nn.ReLU()) for _ in range(K)]
    x = torch.randn(5, 6, 4)
    torch.testing.assert_close(Chains(networks)(x), torch.stack([each(x) for each in networks]))


def run(chains, sampler, steps):
    def closure():
        sampler.zero_grad()
        losses = chains.losses(nn.functional.cross_entropy, chains(X), Y) + chains.prior_energy() / N
        losses.sum().backward()
        return losses if sampler.reads_loss else losses.sum()

    for _ in range(steps):
        sampler.step(closure)


def test_every_chain_moves_as_alone_at_its_own_step_size_and_prior():
    networks = ensemble(count=K)
    factor, prior = torch.tensor([1.0, 2.0, 0.5]), torch.tensor([0.0, 1.0, 3.0])
    chains = Chains(networks, prior_precision=prior)
    before = chains(X)
    scales = {name: factor.sqrt().view(K, *[1] * (w.dim() - 1)) for name, w in chains.weights().items()}
    chains.precondition(scales)
    torch.testing.assert_close(chains(X), before)
    run(chains, SGHMC(chains.parameters(), lr=0.1, num_data=N, temperature=0.0), 20)
    for k, alone in enumerate(networks):
        lr = 0.1 * factor[k].item()
        sampler = SGHMC(alone.parameters(), lr=lr, num_data=N, temperature=0.0, prior_precision=prior[k].item())
        for _ in range(20):
            sampler.zero_grad()
            nn.functional.cross_entropy(alone(X), Y).backward()
            sampler.step()
        torch.testing.assert_close(chains(X)[k], alone(X), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(chains(X)[0], chains(X)[1])


# ------------------------------------------------------- the law: Bayesian linear regression, under a prior a chain

INPUTS = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
TARGETS = INPUTS @ torch.tensor([[1.0], [-2.0]]) + 0.3
PRIORS = torch.tensor([0.1, 4.0, 20.0])


def moments(prior):
    """Mean and standard deviations of weights (2) and bias under unit noise, in closed form."""
    design = torch.cat([INPUTS, torch.ones(20, 1)], 1).double()
    covariance = torch.linalg.inv(design.T @ design + prior * torch.eye(3).double())
    return covariance @ design.T @ TARGETS[:, 0].double(), covariance.diagonal().sqrt()


def sample(cls, steps, priors, **settings):
    """Chains under these priors; steps and masses differ from weight to weight and from chain to chain."""
    torch.manual_seed(0)
    chains = Chains([nn.Linear(2, 1) for _ in priors], prior_precision=priors)
    scale = torch.linspace(0.8, 1.0, len(priors))
    chains.precondition({"weight": scale.view(-1, 1, 1) * torch.tensor([1.0, 0.9]), "bias": scale.view(-1, 1)})
    sampler = cls(chains.parameters(), num_data=N, generator=torch.Generator().manual_seed(1), **settings)
    posterior = PosteriorSamples(chains, sampler, burn_in=steps // 5, thinning=2)

    def closure():
        sampler.zero_grad()
        losses = 0.5 * (chains(INPUTS) - TARGETS).square().mean((1, 2)) + chains.prior_energy() / N
        losses.sum().backward()
        return losses if sampler.reads_loss else losses.sum()

    for _ in range(steps):
        sampler.step(closure)
    return chains.split(posterior)


def draws(samples):
    """(chain, draw, 3)."""
    flat = torch.stack([torch.cat([s["weight"].flatten(), s["bias"]]) for s in samples])
    return flat.view(len(set(samples.chains)), -1, 3).double()


CASES = {
    "BAOA": (BAOA, 500, {"lr": 0.5, "momentum_decay": 0.2}),
    "HMC": (HMC, 100, {"lr": 0.5, "leapfrog_steps": 6}),
    "MCLMC": (MCLMC, 500, {"lr": 0.1, "momentum_decay": 0.2}),
}


@pytest.mark.parametrize("name", CASES)
def test_each_chain_has_its_own_law(name):
    """Means within 0.1 posterior standard deviations, and these within 8 %, of 40 chains each under three priors."""
    cls, steps, settings = CASES[name]
    found = draws(sample(cls, steps, PRIORS.repeat_interleave(40), **settings)).view(3, -1, 3)
    for own, prior in zip(found, PRIORS.tolist()):
        mean, spread = moments(prior)
        assert ((own.mean(0) - mean) / spread).abs().max() < 0.1
        assert (own.std(0) / spread - 1).abs().max() < 0.08
    wrong, spread = moments(PRIORS[0].item())  # the fault that this finds: one prior for all
    assert ((found[1].mean(0) - wrong) / spread).abs().max() > 0.3


def test_r_hat_knows_the_chains():
    same = sample(HMC, 200, torch.ones(4), lr=0.5)
    assert same.chains == [k for k in range(4) for _ in range(80)]
    assert split_rhat(same).max() < 1.05
    other = sample(HMC, 200, torch.tensor([1.0, 1.0, 1.0, 20.0]), lr=0.5)  # the planted fault
    assert split_rhat(other).max() > 1.2


def test_the_samples_are_saved_resumed_and_predict(tmp_path):
    networks = ensemble(count=K)
    chains = Chains(networks)
    chains.precondition({name: torch.full((1,), 0.7) for name in chains.names})
    posterior = PosteriorSamples(chains, sampler := BAOA(chains.parameters(), lr=0.01, num_data=N), thinning=2)
    run(chains, sampler, 5)
    samples = chains.split(posterior)
    assert (len(samples), samples.chains, samples.steps) == (6, [0, 0, 1, 1, 2, 2], [2, 4] * 3)
    assert not any(p.is_meta for p in samples.model.parameters())
    posterior.save(tmp_path / "stacked.safetensors")
    samples.save(tmp_path / "one.safetensors")
    fresh = Chains(ensemble(count=K))
    again = fresh.split(PosteriorSamples.load(tmp_path / "stacked.safetensors", fresh))
    plain = PosteriorSamples.load(tmp_path / "one.safetensors", network())
    expected = samples.predict_samples(X, output="regression")
    for other in (again, plain):
        torch.testing.assert_close(other.predict_samples(X, output="regression"), expected)
    run(chains, sampler, 3)  # the samples stay what they are
    torch.testing.assert_close(samples.predict_samples(X, output="regression"), expected)
    fresh.load_state_dict(chains.state_dict())
    torch.testing.assert_close(fresh(X), chains(X))
