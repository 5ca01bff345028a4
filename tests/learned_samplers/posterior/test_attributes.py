"""What a forward leaves in its modules does not outlive a prediction, and what was there before does."""

import copy
import io

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from learned_samplers import SampleCollection

X = torch.linspace(-2, 2, 28).view(7, 4)


class Keeping(nn.Module):
    """Keeps what it computes as attributes: a tensor, a tensor in a list and in a dictionary, and a count."""

    def __init__(self):
        super().__init__()
        self.layer, self.head, self.norm = nn.Linear(4, 5), nn.Linear(5, 3), nn.BatchNorm1d(4)
        self.last, self.all, self.named, self.calls = None, [], {}, 0

    def forward(self, x):
        hidden = self.layer(self.norm(x)).tanh()
        self.last = self.named["hidden"] = hidden.detach()
        self.all.append(hidden)
        self.calls += 1
        return self.head(hidden)


class CachedTable(nn.Module):
    """Computes something from its weight once in evaluation mode."""

    def __init__(self):
        super().__init__()
        self.weight, self.table = nn.Parameter(torch.randn(4, 3)), None

    def forward(self, x):
        if self.table is None:
            self.table = self.weight.square()
        return x @ self.table


def collection(build, count=4):
    members = [build() for _ in range(count)]
    samples = SampleCollection.from_samples(members[0], [member.state_dict() for member in members])
    with torch.no_grad():  # of copies: the members' own attributes stay as they are
        copies = [build() for _ in members]
        for twin, member in zip(copies, members, strict=True):
            twin.load_state_dict(member.state_dict())
        return samples, torch.stack([twin.eval()(X) for twin in copies]).softmax(2)


def weight_norm():
    with pytest.warns(FutureWarning, match="weight_norm"):
        return nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 5)), nn.Linear(5, 3))


def pruned():
    network = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    prune.l1_unstructured(network[0], "weight", 0.3)
    return network


def spectral_norm():
    return nn.Sequential(nn.utils.spectral_norm(nn.Linear(4, 5)), nn.Linear(5, 3))


# Older hooks have no batching rule in torch, which runs them one by one and says so.
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("build", [Keeping, weight_norm, spectral_norm, pruned])
@pytest.mark.parametrize("vectorize", [None, True, False])
def test_a_network_can_be_copied_and_saved_after_predicting(build, vectorize):
    samples, expected = collection(build)
    model = samples.model
    with torch.no_grad():
        model(X)
    before = [dict(vars(module)) for module in model.modules()]
    for _ in range(2):
        torch.testing.assert_close(samples.predict_samples(X, sample_chunk=2, vectorize=vectorize), expected)
    after = [dict(vars(module)) for module in model.modules()]
    assert all(a.keys() == b.keys() and all(a[k] is b[k] for k in a) for a, b in zip(before, after, strict=True))
    torch.save(model, io.BytesIO())
    copy.deepcopy(model)
    if build is Keeping:
        assert (model.calls, len(model.all), list(model.named)) == (1, 1, ["hidden"])
        samples._settings["buffers"] = "reestimate"
        samples.reestimate_buffers(X)


@pytest.mark.parametrize("vectorize", [True, False])
def test_a_cache_of_one_sample_does_not_reach_the_next(vectorize):
    samples, expected = collection(CachedTable)
    assert expected.std(0).mean() > 0.01, "the samples must differ for this to be a test"
    torch.testing.assert_close(samples.predict_samples(X, sample_chunk=2, vectorize=vectorize), expected)
    assert samples.model.table is None


def test_what_a_failing_run_leaves_is_gone_too():
    samples, _ = collection(Keeping)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        samples.predict(X, output=lambda out: out @ torch.ones(4, 4))
    assert samples.model.last is None
    assert not samples.model.all
