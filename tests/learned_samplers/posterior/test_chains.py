"""Chains side by side: the same numbers as networks alone, each chain's own law, and a collection that knows them."""

import copy
from functools import partial

import pytest
import torch
from torch import nn

from learned_samplers import (
    HMC,
    L2E,
    MCLMC,
    SGHMC,
    AdaptedSGHMC,
    Chains,
    PosteriorSamples,
    Sampler,
    WhitenedSGHMC,
)
from learned_samplers.base import matrices
from learned_samplers.diagnostics import split_rhat
from tests.harness import SAMPLERS, UNBIASED
from tests.learned_samplers.posterior.common import Built, X, Y, ensemble, frozen, network, recurrent

K, N = 3, 20


def residual():
    shift = nn.Buffer(torch.arange(4.0))
    return Built(lambda m, x: x + m.inner(x + m.shift).tanh(), inner=nn.Linear(4, 4), shift=shift)


def sequence():
    return nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Unflatten(1, (2, 3)), nn.Linear(3, 2), nn.Flatten())


@pytest.mark.parametrize("build", [lambda: network(seed=None), residual, frozen, sequence])
def test_they_are_the_networks(build):
    networks = ensemble(build, K)
    chains = Chains(networks)
    torch.testing.assert_close(chains(X), torch.stack([member(X) for member in networks]))
    if build is frozen:
        assert chains.names == ["2.weight", "2.bias"]


def test_gradients_and_curvatures_are_those_of_the_networks():
    """Also of tanh, which is computed in another way; to 1e-12, in double precision."""
    networks = [member.double() for member in ensemble(count=K)]
    chains, x = Chains(networks), X.double()

    def derivatives(params, loss):
        first = torch.autograd.grad(loss, params, create_graph=True)
        return [*first, *torch.autograd.grad(sum(g.pow(3).sum() for g in first), params)]

    by_chain = derivatives(list(chains.parameters()), chains.losses(nn.functional.cross_entropy, chains(x), Y).sum())
    for k, member in enumerate(networks):
        alone = derivatives(list(member.parameters()), nn.functional.cross_entropy(member(x), Y))
        for derivative, stacked in zip(alone, by_chain, strict=True):
            torch.testing.assert_close(stacked[k], derivative, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU])
def test_gradients_by_hand_are_those_of_the_networks(activation, bias):
    """Gradients of weights and inputs; with more axes, twice of one graph, under autocast, of another precision."""
    networks = [nn.Sequential(nn.Linear(4, 6, bias), activation(), nn.Linear(6, 3, bias), activation()) for _ in "abc"]
    chains, x = Chains(networks), X.clone().requires_grad_()
    assert chains._batched_plan
    torch.testing.assert_close(chains(X.view(5, 4, 4)), torch.stack([member(X.view(5, 4, 4)) for member in networks]))
    loss = chains(x).pow(3).sum()
    alone = torch.autograd.grad(sum(member(x).pow(3).sum() for member in networks), x)
    for _ in range(2):
        torch.testing.assert_close(torch.autograd.grad(loss, x, retain_graph=True), alone)
    loss.backward()
    sum(member(X).pow(3).sum() for member in networks).backward()
    for name, stack in zip(chains.names, chains.tensors, strict=True):
        torch.testing.assert_close(stack.grad, torch.stack([member.get_parameter(name).grad for member in networks]))
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


#: Every sampler of the table, and those whose warm-up is another.
MAKERS = {
    **SAMPLERS,
    "AdaptedSGHMC-total": partial(AdaptedSGHMC, total_steps=16),
    "AdaptedSGHMC-L2E": partial(AdaptedSGHMC, warmup_steps=8, warmup=L2E),
}
#: Variants that are refused for tensors of all chains, though their class is not.
OF_ONE_CHAIN = {"AdaptedSGHMC-whitened", "AdaptedSGHMC-matrix", "AdaptedSGHMC-total", "AdaptedSGHMC-L2E"}


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
    """The largest distance of a weight in `Chains` from that of its network alone after 12 steps."""
    networks = [member.double() for member in ensemble(count=K)]
    chains = Chains(networks, separate=separate)
    x = X.double()

    def move(params, losses):
        sampler = make(params, num_data=N, prior_precision=1.0)

        def closure():
            sampler.zero_grad()
            values = losses()
            values.sum().backward()
            return values if sampler.reads_loss else values.sum()

        for _ in range(12):
            sampler.step(closure)

    move(list(chains.parameters()), lambda: chains.losses(nn.functional.cross_entropy, chains(x), Y))
    for member in networks:
        move(list(member.parameters()), lambda member=member: nn.functional.cross_entropy(member(x), Y))
    alone = [dict(member.named_parameters()) for member in networks]
    weights = chains.weights().items()
    return max((w[k] - parameters[name]).abs().max() for k, parameters in enumerate(alone) for name, w in weights)


@pytest.mark.parametrize("kind", ["stacked", "separate"])
@pytest.mark.parametrize("name", MAKERS)
def test_each_chain_moves_as_alone_or_the_sampler_is_refused(name, kind, same_noise):
    """To rounding; the length of `KineticL2E`'s difference quotient is of all chains. A copy is no way around it."""
    make, separate = MAKERS[name], kind == "separate"
    cls = getattr(make, "cls", AdaptedSGHMC)
    if kind not in cls.side_by_side or (name in OF_ONE_CHAIN and not separate):
        chains = copy.deepcopy(Chains(ensemble(), separate=separate))
        with pytest.raises(TypeError, match=r"Chains|mass='matrix'"):
            make(list(chains.parameters()), num_data=N)
    else:
        assert apart(make, separate) < (1e-3 if name == "KineticL2E" else 1e-9)


@pytest.mark.parametrize("name", ["WhitenedSGHMC", "L2E", "SGNHT"])
def test_samplers_that_are_refused_would_mix_the_chains(name, same_noise, monkeypatch):
    monkeypatch.setattr(SAMPLERS[name].cls, "side_by_side", ("stacked",))
    assert apart(SAMPLERS[name], separate=False) > 1e-3


def test_weights_that_are_loaded_in_place_of_others_are_chains_too():
    chains = nn.Sequential(Chains(ensemble(count=K)))
    chains.load_state_dict(copy.deepcopy(chains.state_dict()), assign=True)
    with pytest.raises(TypeError, match="WhitenedSGHMC"):
        WhitenedSGHMC(chains.parameters(), num_data=N)


@pytest.mark.parametrize("name", ["HMC", "MCLMC", "MetaSGMCMC"])
def test_one_loss_for_all_chains_is_refused(name):
    chains = Chains(ensemble())
    sampler = SAMPLERS[name](chains.parameters())

    def closure():
        loss = chains(X).square().mean()
        loss.backward()
        return loss

    with pytest.raises(ValueError, match=r"closure.*\(3,\)"):
        sampler.step(closure)


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
    "unbiased": (UNBIASED, 500, {"lr": 0.5, "momentum_decay": 0.2}),
    "HMC": (HMC, 100, {"lr": 0.5, "leapfrog_steps": 6}),
    "MCLMC": (MCLMC, 500, {"lr": 0.1, "momentum_decay": 0.2}),
}


@pytest.mark.parametrize("name", CASES)
def test_each_chain_has_its_own_law(name):
    """Means within 0.1 posterior standard deviations, and these within 8 %, of 40 chains each under three priors."""
    cls, steps, settings = CASES[name]
    by_prior = draws(sample(cls, steps, PRIORS.repeat_interleave(40), **settings)).view(3, -1, 3)
    for samples, prior in zip(by_prior, PRIORS.tolist()):
        mean, spread = moments(prior)
        assert ((samples.mean(0) - mean) / spread).abs().max() < 0.1
        assert (samples.std(0) / spread - 1).abs().max() < 0.08
    wrong, spread = moments(PRIORS[0].item())  # the fault that this finds: one prior for all
    assert ((by_prior[1].mean(0) - wrong) / spread).abs().max() > 0.3


def test_r_hat_knows_the_chains():
    settings = {"lr": 0.5, "momentum_decay": 0.2}
    same = sample(UNBIASED, 600, torch.ones(4), **settings)
    assert same.chains == [k for k in range(4) for _ in range(240)]
    assert split_rhat(same).max() < 1.05
    unequal = sample(UNBIASED, 300, torch.tensor([1.0, 1.0, 1.0, 20.0]), **settings)  # the planted fault
    assert split_rhat(unequal).max() > 1.2


@pytest.mark.parametrize("separate", [False, True])
def test_the_samples_are_saved_resumed_and_predict(tmp_path, separate):
    networks = ensemble(count=K)
    chains = Chains(networks, separate=separate)
    chains.precondition({name: torch.full((1,), 0.7) for name in chains.names})
    posterior = PosteriorSamples(chains, sampler := UNBIASED(chains.parameters(), lr=0.01, num_data=N), thinning=2)
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
    for collection in (again, plain):
        torch.testing.assert_close(collection.predict_samples(X, output="regression"), expected)
    run(chains, sampler, 3)  # the samples stay what they are
    torch.testing.assert_close(samples.predict_samples(X, output="regression"), expected)
    fresh.load_state_dict(chains.state_dict())
    torch.testing.assert_close(fresh(X), chains(X))


def test_losses_that_are_averaged_over_the_chains_are_told_once():
    chains = Chains([nn.Linear(2, 1) for _ in range(3)])
    x, y = torch.randn(5, 2), torch.randn(5, 1)

    def losses():
        return chains.losses(nn.functional.mse_loss, chains(x), y)

    losses().sum().backward()  # a warning is an error in these tests
    with pytest.warns(UserWarning, match="3 chains each count 1/3"):
        losses().mean().backward()
    losses().mean().backward()


def tied():
    parts = {"words": nn.Embedding(10, 6), "inner": nn.Linear(6, 6), "out": nn.Linear(6, 10, bias=False)}
    model = Built(lambda m, x: m.out(m.inner(m.words(x)).tanh()).mean(1), **parts)
    model.out.weight = model.words.weight
    return model


@pytest.mark.parametrize("separate", [False, True])
def test_tied_weights_stay_one(separate):
    networks, x = [tied() for _ in range(K)], torch.randint(10, (7, 5))
    chains = Chains(networks, separate=separate)
    posterior = PosteriorSamples(chains, sampler := SGHMC(chains.parameters(), lr=0.05, num_data=N))
    torch.testing.assert_close(chains(x), torch.stack([member(x) for member in networks]))
    chains.losses(nn.functional.cross_entropy, chains(x), torch.arange(7)).sum().backward()
    sampler.step()
    samples = chains.split(posterior)
    assert samples.model.out.weight is samples.model.words.weight
    torch.testing.assert_close(samples.predict_samples(x, output="regression"), chains(x).detach())


def test_networks_that_vmap_cannot_run_are_named():
    with pytest.raises(RuntimeError, match=r"vmap cannot run Built .*lstm.*join their samples"):
        Chains(ensemble(recurrent, K))(X)
    with pytest.raises(RuntimeError, match=r"^mat1 and mat2|size"):  # torch's own stay as they are
        Chains(ensemble(residual, K))(torch.randn(3, 5))


class Backbone(nn.Module):
    """A frozen convolution and norm whose statistics stay, and a head."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)).requires_grad_(False)
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        return self.head(self.body(x).relu())


def with_backbone(count=K):
    torch.manual_seed(0)
    body = Backbone().body
    body(torch.randn(30, 4) + 3)  # statistics that are not those of X
    networks = [Backbone() for _ in range(count)]
    for net in networks:
        net.body.load_state_dict(body.state_dict())
        net.body.eval()
    return networks


def test_frozen_running_statistics_are_shared_and_stay():
    networks = with_backbone()
    chains = Chains(networks)
    expected = torch.stack([net(X) for net in networks])
    for mode in (True, False):
        torch.testing.assert_close(chains.train(mode)(X), expected)
    chains.train()
    sampler = SGHMC(chains.parameters(), 0.05, N, prior_precision=1.0)
    posterior = PosteriorSamples(chains, sampler)
    before = {name: buffer.clone() for name, buffer in chains.named_buffers()}
    for _ in range(9):
        sampler.zero_grad()
        chains.losses(nn.functional.cross_entropy, chains(X), Y % 2).sum().backward()
        sampler.step()
    assert all(torch.equal(buffer, before[name]) for name, buffer in chains.named_buffers())
    samples = chains.split(posterior)
    last = torch.stack([samples.predict_samples(X, output=lambda z: z)[9 * k + 8] for k in range(K)])
    torch.testing.assert_close(last, chains(X).detach())


def test_statistics_that_would_move_or_differ_are_refused():
    with pytest.raises(ValueError, match=r"running statistics \('body.1.running_mean'\) that move in training"):
        Chains([Backbone().train()])
    networks = with_backbone()
    networks[1].body.train()
    with pytest.raises(ValueError, match=r"networks\[1\] has normalisation layers in another mode"):
        Chains(networks)
    networks = with_backbone()
    networks[2].body[1].running_mean += 1
    with pytest.raises(ValueError, match=r"networks\[2\]: 'body.1.running_mean' is not sampled and differs"):
        Chains(networks)
