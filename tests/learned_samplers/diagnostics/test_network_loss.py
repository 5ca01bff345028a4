"""`network_loss` is the loss of the very predictions that the collection makes, or says why it cannot be."""

import pytest
import torch
from torch import nn

from learned_samplers import PosteriorSamples, SampleCollection, diagnostics, metrics

X, LABELS = torch.linspace(-1, 1, 40).view(10, 4), torch.arange(10) % 2


class Scaled(nn.Module):
    """A linear layer whose outputs are scaled by a buffer."""

    def __init__(self, scale=1.0):
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.register_buffer("scale", torch.tensor(scale))

    def forward(self, x):
        return self.layer(x) * self.scale


class TwoTypes(nn.Module):
    """A layer in bfloat16, and one in float32."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 5).bfloat16(), nn.Linear(5, 2)

    def forward(self, x):
        return self.second(self.first(x.bfloat16()).float())


class Dictionary(nn.Module):
    """Its output is a dictionary, of the logits and something else."""

    def __init__(self, name="logits"):
        super().__init__()
        self.layer, self.name = nn.Linear(4, 2), name

    def forward(self, x):
        return {"hidden": x, self.name: self.layer(x)}


def given(members):
    return SampleCollection.from_samples(members[0], [member.state_dict() for member in members])


def members(make, count=3):
    torch.manual_seed(0)
    return [make() for _ in range(count)]


@pytest.mark.parametrize("make", [lambda: Scaled(2.5), TwoTypes, Dictionary])
def test_a_sample_has_the_loss_of_its_prediction(make):
    samples = given(members(make))
    single = samples.predict_samples(X, vectorize=False)
    if isinstance(samples.model, Scaled):
        samples.model.scale.fill_(0.1)  # the network's own has changed since
    for kind, score in (("nll", metrics.nll), ("error", lambda p, y: 1 - metrics.accuracy(p, y))):
        loss = diagnostics.network_loss(samples, X, LABELS, kind=kind, batch_size=4)
        assert [loss(sample) for sample in samples] == pytest.approx([score(p, LABELS) for p in single], rel=1e-5)


def test_an_entry_of_the_output_is_selected():
    samples = given(members(lambda: Dictionary("classes")))
    with pytest.raises(ValueError, match=r"'hidden', 'classes': say which entry is the prediction by select="):
        diagnostics.network_loss(samples, X, LABELS)(samples[0])
    loss = diagnostics.network_loss(samples, X, LABELS, select="classes")
    single = samples.predict_samples(X, select="classes")
    assert loss(samples[0]) == pytest.approx(metrics.nll(single[0], LABELS), rel=1e-5)


def test_buffers_of_each_samples_own_are_refused():
    torch.manual_seed(0)
    model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 8)), nn.Tanh(), nn.Linear(8, 2))
    sampler = torch.optim.SGD(model.parameters(), lr=0.3)
    samples = PosteriorSamples(model, sampler, buffers="snapshot")
    with pytest.raises(RuntimeError, match="no sample whose loss could be computed"):
        diagnostics.network_loss(samples, X, LABELS)
    for _ in range(3):
        sampler.zero_grad()
        nn.functional.cross_entropy(model(X), LABELS).backward()
        sampler.step()
    message = r"samples: the buffer '0\.parametrizations\.weight\.0\._[uv]' differs from sample 0 to sample \d"
    with pytest.raises(ValueError, match=message):
        diagnostics.network_loss(samples, X, LABELS)
