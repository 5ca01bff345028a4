"""Before its first predictions a collection tries out on a few examples whether the network takes sampled weights."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from learned_samplers import SGHMC, PosteriorSamples, SampleCollection
from learned_samplers.posterior import running

X = torch.linspace(-2, 2, 160).view(40, 4)
Y = torch.arange(40) % 3
OTHER = np.random.default_rng(0)


class FromList(nn.Module):
    """Reads its weights from a plain list."""

    def __init__(self):
        super().__init__()
        self.a, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
        self.params = [self.a.weight, self.a.bias]

    def forward(self, x):
        return self.head(nn.functional.linear(x, *self.params).tanh())


def by_closure():
    """A correction of low rank by hand, in a forward that replaces the layer's."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).requires_grad_(False)
    for layer in (model[0], model[2]):
        layer.down = down = nn.Parameter(torch.randn(2, layer.in_features))
        layer.up = up = nn.Parameter(torch.randn(layer.out_features, 2))
        plain = layer.forward
        layer.forward = lambda h, plain=plain, down=down, up=up: plain(h) + h @ down.T @ up.T
    return model


class Noisy(nn.Module):
    """Adds noise in evaluation mode as well, counts its calls in a buffer, and normalises."""

    def __init__(self, source="torch"):
        super().__init__()
        self.layer, self.norm, self.source = nn.Linear(4, 3), nn.BatchNorm1d(3), source
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        out = self.norm(self.layer(x))
        return out + (torch.randn_like(out) if self.source == "torch" else torch.from_numpy(OTHER.random(out.shape)))


def collect(model, steps=4, **options):
    sampler = SGHMC([p for p in model.parameters() if p.requires_grad], lr=0.1, num_data=40)
    posterior = PosteriorSamples(model, sampler, **options)
    for _ in range(steps):
        sampler.zero_grad()
        nn.functional.cross_entropy(model(X), Y).backward()
        sampler.step()
    return posterior


@pytest.mark.parametrize(("build", "name"), [(FromList, "a.weight"), (by_closure, "0.down")])
@pytest.mark.parametrize("vectorize", [None, False])
def test_weights_that_forward_does_not_look_up_are_named(build, name, vectorize):
    posterior = collect(build())
    before = copy.deepcopy(posterior.model.state_dict())
    for use in (posterior.predict, posterior.uncertainty, posterior.predict_samples):  # again and again
        with pytest.raises(ValueError, match=rf"uses sampled weights, '{name}' perhaps, .*from a list, a closure"):
            use(X, vectorize=vectorize)
    assert all(torch.equal(before[key], tensor) for key, tensor in posterior.model.state_dict().items())


@pytest.mark.parametrize("source", ["torch", "numpy"])
def test_the_network_is_left_as_it_was_and_noise_is_no_fault(source):
    posterior = collect(Noisy(source), buffers="snapshot")
    model, tensors = posterior.model, dict(posterior.model.named_parameters())
    loss = nn.functional.cross_entropy(model(X), Y)
    before = copy.deepcopy(model.state_dict())
    versions = {key: tensor._version for key, tensor in tensors.items()}
    posterior.predict(X)
    assert posterior._runner._uses_weights
    assert all(torch.equal(before[key], tensor) for key, tensor in model.state_dict().items())
    assert versions == {key: tensor._version for key, tensor in tensors.items()}
    assert [m.training for m in model.modules()] == [True] * 3
    loss.backward()  # the weights of a graph of before were not written to


def test_the_trial_draws_no_numbers():
    posterior = collect(nn.Linear(4, 3))
    state = torch.get_rng_state()
    posterior.predict(X)
    assert torch.equal(torch.get_rng_state(), state)


def test_it_runs_once_and_on_a_few_rows(monkeypatch):
    rows = []
    model = nn.Linear(4, 3)
    posterior = collect(model)
    model.register_forward_hook(lambda module, args, out: rows.append(len(out)))
    posterior.predict(X)
    assert max(rows[:-1]) == running.FEW
    assert rows[-1] == len(X)
    del rows[:]
    posterior.predict(X)
    assert rows == [len(X)]


def test_a_sample_that_is_the_networks_own_state_tells_nothing_yet():
    model = FromList()
    samples = SampleCollection.from_samples(model, [model.state_dict()])
    with torch.no_grad():
        torch.testing.assert_close(samples.predict(X), model(X).softmax(1))
        for parameter in model.parameters():
            parameter.mul_(2)
    with pytest.raises(ValueError, match="uses sampled weights"):
        samples.predict(X)


def test_a_network_that_needs_all_rows_is_tried_with_all():
    class Graph(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)
            self.register_buffer("adjacency", torch.eye(40).roll(1, 0))

        def forward(self, x):
            return self.adjacency @ self.layer(x)

    posterior = collect(Graph())
    assert posterior.predict(X).shape == (40, 3)
    assert posterior._runner._uses_weights


def test_in_half_precision_rounding_is_no_fault():
    torch.manual_seed(0)
    members = [nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 3)).bfloat16() for _ in range(3)]
    samples = SampleCollection.from_samples(members[0], [member.state_dict() for member in members])
    assert samples.predict(X.bfloat16()).shape == (40, 3)
    assert samples._runner._uses_weights


# torch itself says that TorchScript is on its way out.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("make", [torch.jit.script, lambda module: torch.jit.trace(module, X)])
def test_torchscript_is_refused_before_a_run(make, tmp_path):
    scripted = make(nn.Sequential(nn.Linear(4, 3)))
    part = nn.Sequential(scripted, nn.Linear(3, 3))
    for model, where in ((scripted, "model is"), (part, "model: its part '0' is")):
        sampler = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(TypeError, match=rf"{where} a torch\.jit\.ScriptModule"):
            PosteriorSamples(model, sampler, path=tmp_path / "samples")
        with pytest.raises(TypeError, match="ScriptModule"):
            SampleCollection.from_samples(model, [model.state_dict()])
    assert not (tmp_path / "samples").exists()
