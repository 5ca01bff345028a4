"""Chains side by side: the same numbers as networks alone, each chain's own law, and a collection that knows them."""

import copy
import warnings
from functools import partial

import pytest
import torch
from torch import nn

import learned_samplers
from learned_samplers import (
    BAOA,
    HMC,
    L2E,
    MCLMC,
    PSGLD,
    SGHMC,
    SGLD,
    SGLRW,
    SGNHT,
    AdaptedSGHMC,
    Chains,
    CyclicalSGMCMC,
    EntropyMCMC,
    KineticL2E,
    MetaSGMCMC,
    PosteriorSamples,
    Sampler,
    WhitenedSGHMC,
)
from learned_samplers.approximations import IVON
from learned_samplers.base import matrices
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


def test_gradients_and_curvatures_are_those_of_the_networks():
    """Also of tanh, which is computed in another way; to 1e-12, in double precision."""
    networks = [each.double() for each in ensemble(count=K)]
    chains, x = Chains(networks), X.double()

    def derivatives(params, loss):
        first = torch.autograd.grad(loss, params, create_graph=True)
        return [*first, *torch.autograd.grad(sum(g.pow(3).sum() for g in first), params)]

    found = derivatives(list(chains.parameters()), chains.losses(nn.functional.cross_entropy, chains(x), Y).sum())
    for k, each in enumerate(networks):
        alone = derivatives(list(each.parameters()), nn.functional.cross_entropy(each(x), Y))
        for own, stacked in zip(alone, found, strict=True):
            torch.testing.assert_close(stacked[k], own, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU])
def test_gradients_by_hand_are_those_of_the_networks(activation, bias):
    """Of weights and inputs, twice of one graph, and under autocast, whose products have another precision."""
    networks = [nn.Sequential(nn.Linear(4, 6, bias), activation(), nn.Linear(6, 3, bias), activation()) for _ in "abc"]
    chains, x = Chains(networks), X.clone().requires_grad_()
    assert chains._batched_plan
    loss = chains(x).pow(3).sum()
    alone = torch.autograd.grad(sum(each(x).pow(3).sum() for each in networks), x)
    for _ in range(2):
        torch.testing.assert_close(torch.autograd.grad(loss, x, retain_graph=True), alone)
    loss.backward()
    sum(each(X).pow(3).sum() for each in networks).backward()
    for name, stack in zip(chains.names, chains.tensors, strict=True):
        torch.testing.assert_close(stack.grad, torch.stack([each.get_parameter(name).grad for each in networks]))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert chains(X).dtype == networks[0](X).dtype


@pytest.mark.filterwarnings("ignore:.*jit.script:FutureWarning")  # torch's own, of forward mode
def test_tanh_of_what_is_near_zero_is_not_rounded_to_zero():
    chains = Chains([nn.Sequential(nn.Linear(1, 1, bias=False), nn.Tanh())])
    with torch.no_grad():
        chains.tensors[0].fill_(1.0)
    size = torch.cat([torch.logspace(-30, 2, 2000), torch.tensor([0.0, torch.inf])])
    x = torch.cat([size, -size])[:, None]
    torch.testing.assert_close(chains(x)[0], x.tanh(), rtol=3e-5, atol=0.0)
    assert chains(torch.full((1, 1), torch.nan)).isnan()
    slopes = torch.func.jacfwd(chains)(x[:3]), torch.func.jacrev(chains)(x[:3])
    torch.testing.assert_close(*slopes)


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


# ------------------------------------------------------- every sampler moves each chain as it would alone, or refuses


#: Those that take tensors of all chains, and those that take tensors of one.
STACKED = {
    "SGLD": partial(SGLD, lr=0.05),
    "SGHMC": partial(SGHMC, lr=0.05),
    "BAOA": partial(BAOA, lr=0.05),
    "PSGLD": partial(PSGLD, lr=0.003),
    "PSGLD, probe": partial(PSGLD, lr=0.003, correction="probe"),
    "SGLRW": partial(SGLRW, lr=0.05),
    "EntropyMCMC": partial(EntropyMCMC, lr=0.05, guide_variance=0.1),
    "CyclicalSGMCMC": partial(CyclicalSGMCMC, lr=0.05, cycle_length=10),
    "AdaptedSGHMC": partial(AdaptedSGHMC, warmup_steps=15, mass="diagonal", warmup=torch.optim.Adam),
    "MetaSGMCMC": MetaSGMCMC,
    "HMC": partial(HMC, lr=0.05, leapfrog_steps=2),
    "MCLMC": partial(MCLMC, lr=0.05),
    "MCLMC, preconditioned": partial(MCLMC, lr=0.05, preconditioner="gradient_noise"),
    "IVON": partial(IVON, lr=0.05),
}
SEPARATE = {
    "SGHMC": partial(SGHMC, lr=0.05),
    "AdaptedSGHMC, matrix": partial(AdaptedSGHMC, warmup_steps=15, mass="matrix"),
    "AdaptedSGHMC, total_steps": partial(AdaptedSGHMC, total_steps=25),
    "AdaptedSGHMC, L2E": partial(AdaptedSGHMC, warmup_steps=15, warmup=L2E),
    "WhitenedSGHMC": WhitenedSGHMC,
    "L2E": L2E,
    "L2E, no matrices": partial(L2E, network="l2e"),
    "KineticL2E": partial(KineticL2E, lr=0.01),
    "SGNHT": partial(SGNHT, lr=0.05),
    "IVON": partial(IVON, lr=0.05),
}


@pytest.fixture
def same_noise(monkeypatch):
    """The n-th draw for a tensor is the same in every chain and for a network alone, and so are the turns of roots."""

    def noise(sampler, p):
        shape = p.shape[1:] if getattr(p, "side_by_side", None) == "stacked" else p.shape
        drawn = sampler.__dict__.setdefault("drawn", {})
        drawn[p] = drawn.get(p, 0) + 1
        generator = torch.Generator().manual_seed(97 * drawn[p] + 7 * len(shape) + sum(shape))
        return torch.randn(shape, generator=generator, dtype=p.dtype).expand(p.shape).clone()

    monkeypatch.setattr(Sampler, "noise_like", noise)
    monkeypatch.setattr(HMC, "_uniform", lambda self, like: torch.full_like(like, 0.7))
    monkeypatch.setattr(matrices, "ROOT_EVERY", 1)


def apart(make, separate):
    """The largest distance of a weight in `Chains` from that of its network alone after 25 steps."""
    networks = [each.double() for each in ensemble(count=K)]
    chains = Chains(networks, separate=separate)
    x = X.double()

    def move(params, losses):
        sampler = make(params, num_data=N, prior_precision=1.0)

        def closure():
            sampler.zero_grad()
            found = losses()
            found.sum().backward()
            return found if sampler.reads_loss else found.sum()

        for _ in range(25):
            sampler.step(closure)

    move(list(chains.parameters()), lambda: chains.losses(nn.functional.cross_entropy, chains(x), Y))
    for each in networks:
        move(list(each.parameters()), lambda each=each: nn.functional.cross_entropy(each(x), Y))
    alone = [dict(each.named_parameters()) for each in networks]
    return max((w[k] - own[name]).abs().max() for k, own in enumerate(alone) for name, w in chains.weights().items())


@pytest.mark.parametrize("name", STACKED)
def test_in_tensors_of_all_chains_each_moves_as_alone(name, same_noise):
    assert apart(STACKED[name], separate=False) < 1e-9


@pytest.mark.parametrize("name", SEPARATE)
def test_in_tensors_of_its_own_each_moves_as_alone(name, same_noise):
    """To rounding; the length of `KineticL2E`'s difference quotient is of all chains."""
    assert apart(SEPARATE[name], separate=True) < (1e-3 if name == "KineticL2E" else 1e-11)


@pytest.mark.parametrize("name", ["WhitenedSGHMC", "L2E", "SGNHT"])
def test_samplers_that_are_refused_would_mix_the_chains(name, same_noise, monkeypatch):
    monkeypatch.setattr(getattr(learned_samplers, name), "side_by_side", ("stacked",))
    assert apart(SEPARATE[name], separate=False) > 1e-3


def test_weights_that_are_loaded_in_place_of_others_are_chains_too():
    chains = nn.Sequential(Chains(ensemble(count=K)))
    chains.load_state_dict(copy.deepcopy(chains.state_dict()), assign=True)
    with pytest.raises(TypeError, match="WhitenedSGHMC"):
        WhitenedSGHMC(chains.parameters(), num_data=N)


def test_samplers_refuse_what_is_in_neither_table():
    """The whole of the public samplers; a copy of the chains is no way around it."""
    alone = {"stacked": STACKED, "separate": SEPARATE}
    known = {
        kind: {each.func if isinstance(each, partial) else each for each in alone[kind].values()} for kind in alone
    }
    found = [*map(learned_samplers.__dict__.get, learned_samplers.__all__), IVON]
    samplers = [each for each in found if isinstance(each, type) and issubclass(each, Sampler) and each is not Sampler]
    more = {CyclicalSGMCMC: {"cycle_length": 10}, AdaptedSGHMC: {"warmup_steps": 5}}
    for kind in alone:
        params = list(copy.deepcopy(Chains(ensemble(), separate=kind == "separate")).parameters())
        for cls in samplers:
            if kind in cls.side_by_side:
                cls(params, lr=0.001, num_data=N, **more.get(cls, {}))
                assert cls in known[kind] | known["stacked"], cls
            else:
                with pytest.raises((TypeError, ValueError), match=rf"{cls.__name__} .*Chains|particles"):
                    cls(params, lr=0.001, num_data=N, **more.get(cls, {}))
    params = list(Chains(ensemble()).parameters())
    for settings, named in [
        ({"mass": "matrix", "warmup_steps": 5}, "mass='matrix'"),
        ({"total_steps": 20}, "mass='matrix'"),
    ]:
        with pytest.raises(TypeError, match=named):
            AdaptedSGHMC(params, num_data=N, **settings)
    with pytest.raises(TypeError, match=r"WhitenedSGHMC .*Chains"):
        AdaptedSGHMC(params, num_data=N, total_steps=20, mass="diagonal")


@pytest.mark.parametrize("cls", [HMC, MCLMC, MetaSGMCMC])
def test_one_loss_for_all_chains_is_refused(cls):
    chains = Chains(ensemble())
    sampler = cls(chains.parameters(), lr=0.1, num_data=N)

    def closure():
        loss = chains(X).square().mean()
        loss.backward()
        return loss

    with pytest.raises(ValueError, match=r"closure.*\(3,\)"):
        sampler.step(closure)


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


@pytest.mark.parametrize("separate", [False, True])
def test_the_samples_are_saved_resumed_and_predict(tmp_path, separate):
    networks = ensemble(count=K)
    chains = Chains(networks, separate=separate)
    chains.precondition({name: torch.full((1,), 0.7) for name in chains.names})
    posterior = PosteriorSamples(chains, sampler := BAOA(chains.parameters(), lr=0.01, num_data=N), thinning=2)
    run(chains, sampler, 5)
    samples = chains.split(posterior)
    assert (len(samples), samples.chains, samples.steps) == (6, [0, 0, 1, 1, 2, 2], [2, 4] * 3)
    assert not any(p.is_meta for p in samples.model.parameters())
    posterior.save(tmp_path / "stacked.safetensors")
    samples.save(tmp_path / "one.safetensors")
    fresh = Chains(ensemble(count=K), separate=separate)
    again = fresh.split(PosteriorSamples.load(tmp_path / "stacked.safetensors", fresh))
    plain = PosteriorSamples.load(tmp_path / "one.safetensors", network())
    expected = samples.predict_samples(X, output="regression")
    for other in (again, plain):
        torch.testing.assert_close(other.predict_samples(X, output="regression"), expected)
    run(chains, sampler, 3)  # the samples stay what they are
    torch.testing.assert_close(samples.predict_samples(X, output="regression"), expected)
    fresh.load_state_dict(chains.state_dict())
    torch.testing.assert_close(fresh(X), chains(X))


def test_losses_that_are_averaged_over_the_chains_are_told_once():
    chains = Chains([nn.Linear(2, 1) for _ in range(3)])
    x, y = torch.randn(5, 2), torch.randn(5, 1)

    def losses():
        return chains.losses(nn.functional.mse_loss, chains(x), y)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        losses().sum().backward()
    with pytest.warns(UserWarning, match="3 chains each count 1/3"):
        losses().mean().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        losses().mean().backward()


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.inner = nn.Embedding(10, 6), nn.Linear(6, 6)
        self.out = nn.Linear(6, 10, bias=False)
        self.out.weight = self.words.weight

    def forward(self, x):
        return self.out(self.inner(self.words(x)).tanh()).mean(1)


@pytest.mark.parametrize("separate", [False, True])
def test_tied_weights_stay_one(separate):
    networks, x = [Tied() for _ in range(K)], torch.randint(10, (7, 5))
    chains = Chains(networks, separate=separate)
    posterior = PosteriorSamples(chains, sampler := SGHMC(chains.parameters(), lr=0.05, num_data=N))
    torch.testing.assert_close(chains(x), torch.stack([each(x) for each in networks]))
    chains.losses(nn.functional.cross_entropy, chains(x), torch.arange(7)).sum().backward()
    sampler.step()
    samples = chains.split(posterior)
    assert samples.model.out.weight is samples.model.words.weight
    torch.testing.assert_close(samples.predict_samples(x, output="regression"), chains(x).detach())


@pytest.mark.parametrize(
    ("second", "named"),
    [(nn.ReLU(), r"networks\[1\] has other layers.*ReLU"), (nn.Tanh(), r"networks\[1\]: '0.bias' is not sampled")],
)
def test_networks_of_other_layers_or_other_frozen_weights_are_refused(second, named):
    networks = [nn.Sequential(nn.Linear(3, 4), each, nn.Linear(4, 2)) for each in (nn.Tanh(), second)]
    networks[1][0].bias.requires_grad_(isinstance(second, nn.ReLU))
    with pytest.raises(ValueError, match=named):
        Chains(networks)


def test_networks_that_vmap_cannot_run_are_named():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.LSTM(4, 3)

        def forward(self, x):
            return self.cell(x)[0]

    with pytest.raises(RuntimeError, match=r"vmap cannot run Recurrent .*lstm.*join their samples"):
        Chains(ensemble(Recurrent, K))(X)
    with pytest.raises(RuntimeError, match=r"^mat1 and mat2|size"):  # torch's own stay as they are
        Chains(ensemble(Residual, K))(torch.randn(3, 5))
