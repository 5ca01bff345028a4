"""Running a network under sampled weights: what vmap cannot run, what a forward leaves, what it does not see."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from learned_samplers import PosteriorSamples, SampleCollection
from learned_samplers.posterior import trial
from tests.learned_samplers.posterior.common import (
    Built,
    collect,
    collection,
    copied,
    ensemble,
    recurrent,
    same,
    sghmc,
    train,
)

X = torch.linspace(-2, 2, 160).view(40, 4)
Y = torch.arange(40) % 3
OTHER = np.random.default_rng(0)


def chain(model, **options):
    sampler = sghmc(model)
    posterior = PosteriorSamples(model, sampler, **options)
    train(model, sampler, 4, X, Y)
    return posterior


def branching():
    return Built(lambda m, x: m.layer(x) * (1 if m.layer(x).sum() > 0 else -2), layer=nn.Linear(4, 3))


class Caching(nn.Module):
    """Writes into its buffers in evaluation mode as well."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("cache", torch.zeros(3))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        out = self.layer(x)
        self.cache.add_(out.mean(0))
        return out + self.cache + self.calls


@pytest.mark.parametrize("network", [branching, Caching, recurrent])
def test_the_loop_takes_over_by_itself_with_the_same_numbers(network, caplog):
    members = ensemble(network, 4)
    samples = SampleCollection.from_samples(members[0], [dict(member.named_parameters()) for member in members])
    with torch.no_grad():
        expected = torch.stack([member(X) for member in members]).softmax(2)
    with caplog.at_level("DEBUG", logger="learned_samplers"):
        for vectorize in (None, None, False):  # nothing that one call writes reaches the next
            torch.testing.assert_close(samples.predict_samples(X, sample_chunk=2, vectorize=vectorize), expected)
    said = [record for record in caplog.records if "vmap cannot run" in record.getMessage()]
    assert len(said) <= 1, "found out once"
    if network is not recurrent:  # newer versions of torch may run that one
        assert len(said) == 1
        with pytest.raises(RuntimeError, match=r"vmap cannot run .*leave vectorize out"):
            samples.predict(X, vectorize=True)


def bag():
    return nn.Sequential(nn.EmbeddingBag(10, 8), nn.Linear(8, 3))


def masked():
    """A transformer, whose mask is made of its inputs."""

    def compute(m, tokens):
        return m.head(m.layer(m.words(tokens), src_key_padding_mask=tokens == 0).mean(1))

    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return Built(compute, words=nn.Embedding(10, 8), layer=layer, head=nn.Linear(8, 3))


@pytest.mark.parametrize("network", [bag, masked])
def test_torch_asks_nobody_to_report_a_missing_batching_rule(network):
    tokens, members = torch.tensor([[1, 2, 3, 0], [4, 5, 0, 0], [1, 1, 2, 9]]), ensemble(network)
    with torch.no_grad():
        expected = torch.stack([member.eval()(tokens) for member in members]).softmax(2)
    for vectorize in (None, True):
        samples = collection(members)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            torch.testing.assert_close(samples.predict_samples(tokens, vectorize=vectorize), expected)
        assert not said
        assert samples._runner.vmap_fails == (vectorize is None), "the loop over samples is taken"


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


@pytest.mark.parametrize("source", ["torch", "numpy"])
def test_the_network_is_left_as_it_was_and_noise_is_no_fault(source):
    posterior = chain(Noisy(source), buffers="snapshot")
    model, tensors = posterior.model, dict(posterior.model.named_parameters())
    model.layer.eval()
    loss = nn.functional.cross_entropy(model(X), Y)
    before, versions = copied(model.state_dict()), {key: tensor._version for key, tensor in tensors.items()}
    posterior.predict(X)
    assert posterior._runner.trial.reads_weights
    assert same(before, model.state_dict())
    assert versions == {key: tensor._version for key, tensor in tensors.items()}
    fails = posterior._runner.vmap_fails
    with pytest.raises(RuntimeError, match="mat1 and mat2"):  # the network's own error is not hidden
        posterior.predict(torch.randn(6, 5))
    assert posterior._runner.vmap_fails == fails == (source == "torch")
    assert [m.training for m in model.modules()] == [True, False, True]
    assert torch.is_grad_enabled()
    loss.backward()  # the weights of a graph of before were not written to


def test_the_network_is_tried_once_on_a_few_rows_and_draws_no_numbers():
    rows, model = [], nn.Linear(4, 3)
    posterior = chain(model)
    model.register_forward_hook(lambda module, args, out: rows.append(len(out)))
    state = torch.get_rng_state()
    posterior.predict(X)
    assert torch.equal(torch.get_rng_state(), state)
    assert (max(rows[:-1]), rows[-1]) == (trial.FEW, len(X))
    del rows[:]
    posterior.predict(X)
    assert rows == [len(X)]


def test_a_network_that_needs_all_rows_is_tried_with_all():
    class Graph(nn.Linear):
        def forward(self, x):
            return torch.eye(40).roll(1, 0) @ super().forward(x)

    posterior = chain(Graph(4, 3))
    assert posterior.predict(X).shape == (40, 3)
    assert posterior._runner.trial.reads_weights


def test_in_half_precision_rounding_is_no_fault():
    samples = collection(ensemble(lambda: nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 3)).bfloat16()))
    assert samples.predict(X.bfloat16()).shape == (40, 3)
    assert samples._runner.trial.reads_weights


@pytest.mark.parametrize("vectorize", [None, False])
def test_within_torchs_cache_of_computed_weights_nothing_is_predicted(vectorize):
    """It would give every sample the weights of the first."""
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 8)), nn.Tanh(), nn.Linear(8, 3))
    samples = SampleCollection.from_samples(model, [model.state_dict()])
    with parametrize.cached(), pytest.raises(RuntimeError, match=r"parametrize\.cached\(\)"):
        samples.predict(X, vectorize=vectorize)
    assert samples.predict(X, vectorize=vectorize).shape == (len(X), 3)


# torch itself says that TorchScript is on its way out.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("make", [torch.jit.script, lambda module: torch.jit.trace(module, X)])
def test_torchscript_is_refused_before_a_run(make, tmp_path):
    scripted = make(nn.Sequential(nn.Linear(4, 3)))
    part = nn.Sequential(scripted, nn.Linear(3, 3))
    for model, where in ((scripted, "model is"), (part, "model: its part '0' is")):
        with pytest.raises(TypeError, match=rf"{where} a torch\.jit\.ScriptModule"):
            collect(model, path=tmp_path / "samples")
        with pytest.raises(TypeError, match="ScriptModule"):
            SampleCollection.from_samples(model, [model.state_dict()])
    assert not (tmp_path / "samples").exists()
