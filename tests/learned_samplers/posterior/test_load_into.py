"""One sample of a collection in a network: it predicts what the collection says that this sample predicts."""

import copy

import pytest
import torch
from torch import nn

from learned_samplers import SGHMC, PosteriorSamples, SampleCollection

X = torch.linspace(-2, 2, 48).view(12, 4)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        return self.head(self.norm(self.second(self.first(x).tanh())))


def collect(model, **options):
    sampler = SGHMC([p for p in model.parameters() if p.requires_grad], lr=0.1, num_data=12)
    posterior = PosteriorSamples(model, sampler, thinning=2, **options)
    for _ in range(6):
        sampler.zero_grad()
        nn.functional.cross_entropy(model(X), torch.arange(12) % 3).backward()
        sampler.step()
    return posterior


def probabilities(model):
    with torch.no_grad():
        return model.eval()(X).softmax(1)


@pytest.mark.parametrize("buffers", ["snapshot", "reestimate"])
@pytest.mark.parametrize("wrap", [lambda model: model, lambda model: torch.compile(model, backend="eager")])
def test_a_network_with_a_sample_predicts_what_the_sample_does(buffers, wrap):
    posterior = collect(Tied(), buffers=buffers)
    other = wrap(Tied())
    if buffers == "reestimate":
        with pytest.raises(RuntimeError, match="have not been re-estimated"):
            posterior.load_into(other, 0)
        posterior.reestimate_buffers(X)
    kept = copy.deepcopy(posterior.model.state_dict())
    expected = posterior.predict_samples(X)
    for index in (0, 1, -1):
        posterior.load_into(other, index)
        torch.testing.assert_close(probabilities(other), expected[index])
        assert other.second.weight is other.first.weight
    assert all(torch.equal(kept[name], tensor) for name, tensor in posterior.model.state_dict().items())
    stored = posterior[2]["head.weight"].clone()
    with torch.no_grad():
        other.head.weight.add_(1)  # a copy: the sample stays what it is
    assert torch.equal(posterior[2]["head.weight"], stored)
    posterior.load_into(posterior.model, 0)
    torch.testing.assert_close(probabilities(posterior.model), expected[0])


def test_frozen_weights_come_too_or_must_be_there():
    def build():
        return nn.Sequential(nn.Linear(4, 5).requires_grad_(False), nn.Tanh(), nn.Linear(5, 3))

    stored = collect(build(), dtype=torch.bfloat16)
    other = build().double()
    stored.load_into(other, 1)
    torch.testing.assert_close(other[0].weight.float(), stored.model[0].weight)
    torch.testing.assert_close(other[2].weight.bfloat16(), stored[1]["2.weight"])
    assert other[2].weight.dtype == torch.float64
    left_out = collect(build(), store_frozen=False)
    other = build()
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(ValueError, match=r"the samples: the frozen parameters are not stored there.*'0\.weight'"):
        left_out.load_into(other, 0)
    assert all(torch.equal(before[name], tensor) for name, tensor in other.state_dict().items())
    left_out.load_into(left_out.model, 0)
    torch.testing.assert_close(probabilities(left_out.model), left_out.predict_samples(X)[0])


def test_what_cannot_be_loaded_is_named():
    posterior = collect(nn.Sequential(nn.Linear(4, 3)))
    with pytest.raises(IndexError, match="sample 3 of a collection of 3"):
        posterior.load_into(posterior.model, 3)
    with pytest.raises(TypeError, match="a sample is chosen by an integer, got 'last'"):
        posterior.load_into(posterior.model, "last")
    with pytest.raises(ValueError, match=r"the samples: '0\.weight' has shape \(3, 4\) there and has shape \(2, 4\)"):
        posterior.load_into(nn.Sequential(nn.Linear(4, 2)), 0)


def test_tied_weights_that_differ_in_given_samples_are_refused():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.second(self.first(x))

    model, eye = Tied(), torch.eye(3)
    with pytest.raises(ValueError, match=r"samples\[0\]: 'second.weight' and 'first.weight' are one tensor"):
        SampleCollection.from_samples(model, [{"first.weight": eye, "second.weight": 5 * eye}])
    samples = SampleCollection.from_samples(model, [{"first.weight": eye, "second.weight": eye.clone()}])
    torch.testing.assert_close(samples.predict(eye, output="regression"), eye)
