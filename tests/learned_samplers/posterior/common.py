"""Small networks, chains and collections that the tests of this folder share."""

import copy
from pathlib import Path

import torch
from torch import nn

from learned_samplers import SGHMC, PosteriorSamples, SampleCollection

X, Y = torch.linspace(-1, 1, 80).view(20, 4), torch.arange(20) % 3


def network(hidden=8, norm=False, seed=0):
    if seed is not None:
        torch.manual_seed(seed)
    layers = [nn.Linear(4, hidden), *([nn.BatchNorm1d(hidden)] if norm else []), nn.Tanh(), nn.Linear(hidden, 3)]
    return nn.Sequential(*layers)


class Built(nn.Module):
    """A network of these parts, whose forward is a function of it and of its input."""

    def __init__(self, compute, **parts):
        super().__init__()
        self.compute = compute
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.compute(self, x)


def recurrent():
    """A network that vmap cannot run."""
    layers = {"lstm": nn.LSTM(4, 5, batch_first=True), "head": nn.Linear(5, 3)}
    return Built(lambda m, x: m.head(m.lstm(x.unsqueeze(1))[0][:, -1]), **layers)


def frozen(seed=0):
    """A network of which only the last layer is sampled."""
    model = network(seed=seed)
    model[0].requires_grad_(False)
    return model


def sgd(model, lr=0.3):
    return torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=lr)


def sghmc(model, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return SGHMC([p for p in model.parameters() if p.requires_grad], lr=0.01, num_data=20, generator=generator)


def train(model, sampler, steps, x=X, y=Y):
    for _ in range(steps):
        sampler.zero_grad()
        nn.functional.cross_entropy(model(x), y[: len(x)]).backward()
        sampler.step()


def collect(model=None, steps=6, make=sgd, **options):
    """Model, optimizer and collector after some steps."""
    model = model if model is not None else network()
    sampler = make(model)
    posterior = PosteriorSamples(model, sampler, **options)
    train(model, sampler, steps)
    return model, sampler, posterior


def one_of_many(**options):
    """A network with weights of its own at every call."""
    return network(seed=None, **options)


def ensemble(build=one_of_many, count=3):
    torch.manual_seed(1)
    return [build() for _ in range(count)]


def collection(members):
    return SampleCollection.from_samples(copy.deepcopy(members[0]), [member.state_dict() for member in members])


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def copied(tensors):
    return {name: tensor.clone() for name, tensor in tensors.items()}


def equal(first, second):
    """Two collections hold the same samples of the same steps."""
    assert (first.steps, first.cycles) == (second.steps, second.cycles)
    assert all(same(a, b) for a, b in zip(first, second, strict=True))


def files(folder):
    return {file.name: file.read_bytes() for file in Path(folder).iterdir() if file.name != ".lock"}
