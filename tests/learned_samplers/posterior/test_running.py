"""Running a network under sampled weights: what vmap cannot run, what a forward leaves, what it does not see."""

import copy
import io
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize, prune

from learned_samplers import PosteriorSamples, SampleCollection
from learned_samplers.posterior import running
from tests.learned_samplers.posterior.common import collect, collection, copied, ensemble, same, sghmc, train

X = torch.linspace(-2, 2, 160).view(40, 4)
Y = torch.arange(40) % 3
OTHER = np.random.default_rng(0)


def chain(model, **options):
    sampler = sghmc(model)
    posterior = PosteriorSamples(model, sampler, **options)
    train(model, sampler, 4, X, Y)
    return posterior


# -- networks that vmap cannot run ------------------------------------------------------------------------------------


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        out = self.layer(x)
        return out if out.sum() > 0 else -2 * out


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


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.lstm(x.unsqueeze(1))[0][:, -1])


@pytest.mark.parametrize("network", [Branching, Caching, Recurrent])
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
    if network is not Recurrent:  # newer versions of torch may run that one
        assert len(said) == 1
        with pytest.raises(RuntimeError, match=r"vmap cannot run .*leave vectorize out"):
            samples.predict(X, vectorize=True)


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(10, 8), nn.Linear(8, 3)

    def forward(self, tokens):
        return self.head(self.bag(tokens))


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(10, 8), nn.Linear(8, 3)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, tokens):
        return self.head(self.layer(self.words(tokens), src_key_padding_mask=tokens == 0).mean(1))


@pytest.mark.parametrize("network", [Bag, Masked])
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


# -- what a forward leaves in its modules -----------------------------------------------------------------------------


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


def with_copies(build):
    """A collection, and what copies of its members predict."""
    members = ensemble(build)
    model, copies = members[0], ensemble(build)
    samples = SampleCollection.from_samples(model, [member.state_dict() for member in members])
    with torch.no_grad():
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


@pytest.mark.parametrize("build", [Keeping, weight_norm, spectral_norm, pruned])
@pytest.mark.parametrize("vectorize", [None, True, False])
def test_a_network_can_be_copied_and_saved_after_predicting(build, vectorize):
    samples, expected = with_copies(build)
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
        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            samples.predict(X, output=lambda out: out @ torch.ones(4, 4))
        assert model.calls == 1, "what a failing run leaves is gone too"


@pytest.mark.parametrize("vectorize", [True, False])
def test_a_cache_of_one_sample_does_not_reach_the_next(vectorize):
    samples, expected = with_copies(CachedTable)
    assert expected.std(0).mean() > 0.01, "the samples must differ for this to be a test"
    torch.testing.assert_close(samples.predict_samples(X, sample_chunk=2, vectorize=vectorize), expected)
    assert samples.model.table is None


# -- weights that forward does not look up ----------------------------------------------------------------------------


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


@pytest.mark.parametrize(("build", "name"), [(FromList, "a.weight"), (by_closure, "0.down")])
@pytest.mark.parametrize("vectorize", [None, False])
def test_weights_that_forward_does_not_look_up_are_named(build, name, vectorize):
    posterior = chain(build())
    before = copied(posterior.model.state_dict())
    for use in (posterior.predict, posterior.uncertainty, posterior.predict_samples):  # again and again
        with pytest.raises(ValueError, match=rf"forward .*'{name}' perhaps"):
            use(X, vectorize=vectorize)
    assert same(before, posterior.model.state_dict())


def test_a_sample_that_is_the_networks_own_state_tells_nothing_yet():
    model = FromList()
    samples = SampleCollection.from_samples(model, [model.state_dict()])
    with torch.no_grad():
        torch.testing.assert_close(samples.predict(X), model(X).softmax(1))
        for parameter in model.parameters():
            parameter.mul_(2)
    with pytest.raises(ValueError, match=r"forward .*weights"):
        samples.predict(X)


@pytest.mark.parametrize("source", ["torch", "numpy"])
def test_the_network_is_left_as_it_was_and_noise_is_no_fault(source):
    posterior = chain(Noisy(source), buffers="snapshot")
    model, tensors = posterior.model, dict(posterior.model.named_parameters())
    loss = nn.functional.cross_entropy(model(X), Y)
    before, versions = copied(model.state_dict()), {key: tensor._version for key, tensor in tensors.items()}
    posterior.predict(X)
    assert posterior._runner._uses_weights
    assert same(before, model.state_dict())
    assert versions == {key: tensor._version for key, tensor in tensors.items()}
    assert [m.training for m in model.modules()] == [True] * 3
    loss.backward()  # the weights of a graph of before were not written to


def test_the_network_is_tried_once_on_a_few_rows_and_draws_no_numbers():
    rows, model = [], nn.Linear(4, 3)
    posterior = chain(model)
    model.register_forward_hook(lambda module, args, out: rows.append(len(out)))
    state = torch.get_rng_state()
    posterior.predict(X)
    assert torch.equal(torch.get_rng_state(), state)
    assert (max(rows[:-1]), rows[-1]) == (running.FEW, len(X))
    del rows[:]
    posterior.predict(X)
    assert rows == [len(X)]


def test_a_network_that_needs_all_rows_is_tried_with_all():
    class Graph(nn.Linear):
        def forward(self, x):
            return torch.eye(40).roll(1, 0) @ super().forward(x)

    posterior = chain(Graph(4, 3))
    assert posterior.predict(X).shape == (40, 3)
    assert posterior._runner._uses_weights


def test_in_half_precision_rounding_is_no_fault():
    samples = collection(ensemble(lambda: nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 3)).bfloat16()))
    assert samples.predict(X.bfloat16()).shape == (40, 3)
    assert samples._runner._uses_weights


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
