"""Chains one after the other: fresh weights, numbered samples, resumed bit for bit."""

import copy
from functools import partial

import pytest
import torch
from torch import nn

from learned_samplers import L2E, SGHMC, AdaptedSGHMC, PosteriorSamples, Restarts
from learned_samplers.classical.restarts import Restarts as Implementation

X, Y = torch.linspace(-1, 1, 80).view(20, 4), torch.arange(20) % 3


def network(*, norm=False, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), *([nn.BatchNorm1d(6)] if norm else []), nn.Tanh(), nn.Linear(6, 3))


def restarts(model, *, chains=3, total_steps=92, seed=1, make=AdaptedSGHMC, **settings):
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    return Restarts(model, chains, make, total_steps=total_steps, num_data=20, generator=generator, **settings)


def train(model, sampler, steps):
    for _ in range(steps):
        sampler.zero_grad()
        nn.functional.cross_entropy(model(X), Y).backward()
        sampler.step()


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_a_prior_by_name_gets_names():
    sampler = restarts(network(), prior_precision={"*.weight": 2.0, "*": 1.0})
    assert [group["prior_precision"] for group in sampler.param_groups] == [2.0, 1.0]


def test_samples_know_their_chain_and_are_as_many_in_each():
    model = network()
    sampler = restarts(model)
    posterior = PosteriorSamples(model, sampler, thinning=sampler.thinning(9))
    train(model, sampler, 92)
    assert sampler.length == 30
    assert posterior.chains == [k for k in range(3) for _ in range(len(posterior) // 3)]
    assert len(posterior) >= 9
    assert [len(chain) for chain in posterior.split()] == [len(posterior) // 3] * 3
    assert len({entry // 31 for entry in posterior.steps}) == 3
    assert posterior._settings["origin"]["sampler"] == "AdaptedSGHMC"
    assert posterior._settings["origin"]["samples"]


@pytest.mark.parametrize("seed", [1, None])
@pytest.mark.parametrize("warmup", [None, L2E, partial(torch.optim.Adam, lr=0.01)])
def test_resumes_bit_for_bit_in_the_middle_of_the_second_chain(seed, warmup):
    model = network(norm=True)
    sampler = restarts(model, seed=seed, warmup=warmup)
    posterior = PosteriorSamples(model, sampler, thinning=2, buffers="snapshot")
    train(model, sampler, 45)
    assert sampler.chain == 1
    saved = copy.deepcopy((model.state_dict(), sampler.state_dict(), posterior.state_dict()))
    train(model, sampler, 47)

    resumed = network(norm=True, seed=5)
    again = restarts(resumed, seed=None if seed is None else 9, warmup=warmup)
    collected = PosteriorSamples(resumed, again, thinning=2, buffers="snapshot")
    resumed.load_state_dict(saved[0])
    again.load_state_dict(saved[1])
    collected.load_state_dict(saved[2])
    train(resumed, again, 47)
    assert torch.equal(weights(model), weights(resumed))
    assert again.chain == 2
    assert posterior.chains == collected.chains
    assert posterior.steps == collected.steps
    for first, second in zip(posterior, collected, strict=True):
        assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_chain_is_what_its_sampler_makes_of_the_fresh_weights():
    model, generator = network(), torch.Generator().manual_seed(1)
    sampler = Restarts(model, 2, AdaptedSGHMC, total_steps=61, num_data=20, generator=generator)
    train(model, sampler, 31)
    alone, noise = copy.deepcopy(model), torch.Generator()
    noise.set_state(generator.get_state())
    single = AdaptedSGHMC(alone.parameters(), num_data=20, total_steps=30, generator=noise)
    train(model, sampler, 30)
    train(alone, single, 30)
    assert torch.equal(weights(model), weights(alone))


def correlation(model, sampler):
    """Correlation of the weights at the end of the first chain with those at the start of the second."""
    train(model, sampler, sampler.length)
    before = weights(model)
    train(model, sampler, 1)
    return torch.corrcoef(torch.stack([before, weights(model)]))[0, 1].item()


def test_the_second_chain_begins_afresh(monkeypatch):
    wide = nn.Sequential(nn.Linear(4, 200), nn.Tanh(), nn.Linear(200, 3))
    assert abs(correlation(wide, restarts(wide))) < 0.2
    # The planted fault, weights that are kept, is found by the same number.
    sampler = restarts(wide)
    monkeypatch.setattr(Implementation, "_freshen", lambda self: None)
    assert correlation(wide, sampler) > 0.99


def test_suggest():
    assert [Restarts.suggest(epochs) for epochs in (0.3, 5, 15, 26, 50)] == [1, 1, 2, 3, 5]
    with pytest.raises(ValueError, match="epochs must be greater than 0, got 0"):
        Restarts.suggest(0)


def test_buffers_begin_afresh_and_frozen_layers_stay():
    model = network(norm=True)
    model[0].requires_grad_(False)
    frozen = model[0].weight.clone()
    sampler = restarts(model, chains=2, total_steps=61)
    train(model, sampler, 30)
    assert model[1].num_batches_tracked == 30
    assert model[1].running_mean.any()
    train(model, sampler, 1)
    assert model[1].num_batches_tracked == 0
    assert not model[1].running_mean.any()
    assert torch.equal(model[0].weight, frozen)


def test_making_it_changes_nothing():
    model, generator = network(norm=True), torch.Generator().manual_seed(3)
    before, noise, state = copy.deepcopy(model.state_dict()), torch.get_rng_state(), generator.get_state()
    Restarts(model, 2, AdaptedSGHMC, total_steps=61, num_data=20, generator=generator)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), noise)
    assert torch.equal(generator.get_state(), state)


def test_init_and_attention():
    model = network()
    pretrained = copy.deepcopy(network(seed=7).state_dict())
    sampler = restarts(model, init=lambda network: network.load_state_dict(pretrained))
    train(model, sampler, 31)
    assert torch.equal(model[0].weight, pretrained["0.weight"])
    attention = nn.TransformerEncoderLayer(4, 2, 8)
    Restarts(attention, 2, AdaptedSGHMC, total_steps=61, num_data=20)


def test_a_sampler_without_warmup_has_a_burn_in_in_each_chain():
    model = network()
    sampler = restarts(model, make=SGHMC, lr=0.01, burn_in=10)
    posterior = PosteriorSamples(model, sampler, thinning=sampler.thinning(12))
    train(model, sampler, 92)
    assert posterior.steps == [15, 20, 25, 30, 46, 51, 56, 61, 77, 82, 87, 92]
    assert posterior.chains == [0] * 4 + [1] * 4 + [2] * 4


def test_a_scheduler_runs_on():
    model = network()
    sampler = restarts(model, make=SGHMC, lr=0.1, burn_in=10)
    scheduler = torch.optim.lr_scheduler.StepLR(sampler, 40, gamma=0.5)
    for _ in range(92):
        train(model, sampler, 1)
        scheduler.step()
    assert sampler.param_groups[0]["lr"] == pytest.approx(0.025)


class Shampoo(torch.optim.Optimizer):
    """An optimizer in the shape of other packages': nested state, ``step`` that returns the loss, no ``foreach``."""

    def __init__(self, params, lr=0.01, **keywords):
        super().__init__(params, {"lr": lr, **keywords})

    def step(self, closure=None):
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["step"], state["pre_cond"] = 0, [1e-4 * torch.eye(size).to(p) for size in p.shape]
                state["step"] += 1
                update = p.grad
                for axis, statistics in enumerate(state["pre_cond"]):
                    flat = p.grad.movedim(axis, 0).flatten(1) if p.dim() > 1 else p.grad[:, None]
                    statistics += flat @ flat.T
                    values, vectors = torch.linalg.eigh(statistics)
                    root = vectors @ torch.diag(values.clamp_min(1e-6) ** (-0.5 / p.dim())) @ vectors.T
                    update = torch.tensordot(root, update, ([1], [axis])).movedim(0, axis)
                p.data.add_(update, alpha=-group["lr"])
        return loss


def test_an_ensemble_by_another_package_s_optimizer():
    model = network()
    sampler = restarts(model, warmup=partial(Shampoo, lr=0.02))
    posterior = PosteriorSamples(model, sampler, thinning=sampler.thinning(6))
    train(model, sampler, 40)
    saved = copy.deepcopy((model.state_dict(), sampler.state_dict()))
    train(model, sampler, 52)
    assert sorted(set(posterior.chains)) == [0, 1, 2]
    resumed = network(seed=4)
    again = restarts(resumed, seed=8, warmup=partial(Shampoo, lr=0.02))
    resumed.load_state_dict(saved[0])
    again.load_state_dict(saved[1])
    train(resumed, again, 52)
    assert torch.equal(weights(model), weights(resumed))


class Scaled(nn.Module):
    """A layer that nothing makes anew."""

    def __init__(self):
        super().__init__()
        self.inner, self.scale = nn.Linear(4, 3), nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.scale * self.inner(x)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"chains": 0}, "chains"),
        ({"total_steps": 5}, "total_steps"),
        ({"make": 3}, "make"),
        ({"init": 3}, "init"),
        ({"make": SGHMC, "lr": 0.1}, "burn_in must be given for SGHMC"),
        ({"burn_in": 3}, "burn_in must be 0 for AdaptedSGHMC"),
        ({"make": SGHMC, "lr": 0.1, "burn_in": 30}, "burn_in must be less than the 30 steps"),
        ({"init": lambda model: None}, "'0.weight' anew"),
        ({"make": lambda params, total_steps, num_data: None, "seed": None}, "must make a torch.optim.Optimizer"),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        restarts(network(), **arguments)


def test_refusals_of_networks_states_and_groups():
    with pytest.raises(ValueError, match=r"'scale' anew"):
        restarts(Scaled())
    half = network()
    half[0].bias.requires_grad_(False)
    with pytest.raises(ValueError, match=r"'0.bias', which is frozen"):
        restarts(half)
    model = network()
    sampler = restarts(model)
    with pytest.raises(ValueError, match="num_samples"):
        sampler.thinning(1000)
    with pytest.raises(ValueError, match="param_group"):
        sampler.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    with pytest.raises(ValueError, match="not of Restarts"):
        sampler.load_state_dict(sampler.current.state_dict())
    with pytest.raises(ValueError, match=r"\[4, "):
        sampler.load_state_dict(restarts(network(), chains=4).state_dict())
    cut = {**sampler.state_dict()}
    cut["restarts"] = {"plan": cut["restarts"]["plan"]}
    with pytest.raises(ValueError, match=r"lacks.*buffers.*of Restarts"):
        sampler.load_state_dict(cut)
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.deepcopy(sampler)


@pytest.mark.parametrize(
    ("key", "value", "error", "message"),
    [
        ("rng", None, ValueError, "rng must be the state of a generator"),
        ("rng", torch.zeros(3, dtype=torch.uint8), ValueError, "rng must be the state of a generator"),
        ("own_generator", False, ValueError, "generator of their own"),
        ("buffers", None, ValueError, "buffers of another network"),
        ("step_count", "a", TypeError, "step_count must be an integer"),
        ("chain", 7, ValueError, "chain 7 of 3"),
        ("begun", 100, ValueError, "begun at 100"),
    ],
)
def test_a_header_that_cannot_be_is_refused_and_nothing_changes(key, value, error, message):
    model = network()
    sampler = restarts(model)
    train(model, sampler, 8)
    state = copy.deepcopy(sampler.state_dict())
    state["restarts"][key] = value
    other = restarts(network())
    before = other.current
    with pytest.raises(error, match=message):
        other.load_state_dict(state)
    assert other.current is before
    assert before.step_count == other.step_count == 0
