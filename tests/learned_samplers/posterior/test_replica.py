"""A network with other tensors: seen by one thread alone, whatever forward writes and wherever it finds weights."""

import copy
import functools
import io
import os
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from learned_samplers import SGHMC, PosteriorSamples, SampleCollection
from learned_samplers.base.warning import Once
from tests.learned_samplers.posterior.common import Built, collection, copied, ensemble, same, sghmc, train

X = torch.linspace(-2, 2, 160).view(40, 4)
Y = torch.arange(40) % 3


def mlp():
    return nn.Sequential(nn.Linear(4, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Dropout(0.5), nn.Linear(32, 3))


def row_by_row(samples, executor, rows, vectorize):
    """The predictions of each row alone, by the threads of an executor."""
    return torch.cat(list(executor.map(lambda row: samples.predict(row[None], vectorize=vectorize), rows)))


@pytest.mark.parametrize("vectorize", [None, False])
def test_threads_predict_what_one_thread_predicts(vectorize):
    members = ensemble(mlp, 12)
    samples, fresh = collection(members), collection(members)
    rows = torch.randn(100, 4)
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(8) as eight:
        expected = row_by_row(samples, one, rows, vectorize)
        before = copied(fresh.model.state_dict())
        assert torch.equal(row_by_row(fresh, eight, rows, vectorize), expected)
    assert same(before, fresh.model.state_dict())
    assert all(module.training for module in fresh.model.modules())


def test_a_thread_trains_while_others_predict():
    model = mlp()
    samples = SampleCollection.from_samples(model, [member.state_dict() for member in ensemble(mlp, 4)])
    expected, alone = samples.predict(X), copy.deepcopy(model)
    stop, wrong = threading.Event(), []

    def serve():
        while not stop.is_set():
            if not torch.equal(samples.predict(X), expected):
                wrong.append(1)

    torch.manual_seed(0)
    train(alone, sghmc(alone), 30, X, Y)
    servers = [threading.Thread(target=serve) for _ in range(3)]
    for server in servers:
        server.start()
    try:
        torch.manual_seed(0)
        train(model, sghmc(model), 30, X, Y)
    finally:
        stop.set()
        for server in servers:
            server.join()
    assert not wrong
    assert same(model.state_dict(), alone.state_dict()), "dropout of the training thread draws the same numbers"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")  # what is tested
def test_a_forked_process_predicts_the_same():
    samples = collection(ensemble(mlp, 4))
    expected = samples.predict(X)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, b"same" if torch.equal(samples.predict(X), expected) else b"else")
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert pipe.read() == b"same"
    os.waitpid(child, 0)


def force():
    """Minus the gradient of an energy by its inputs."""

    def compute(m, x):
        x.requires_grad_()
        return -torch.autograd.grad(m.energy(x).sum(), x, create_graph=m.training)[0]

    return Built(compute, energy=nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)))


@pytest.mark.parametrize("vectorize", [None, False])
def test_a_force_field_is_averaged_and_leaves_its_inputs(vectorize):
    members, x = ensemble(force, 5), X.clone()
    samples = collection(members)
    prediction = samples.predict(x, output="regression", vectorize=vectorize, sample_chunk=2, batch_size=16)
    torch.testing.assert_close(prediction, torch.stack([member(X.clone()) for member in members]).mean(0).detach())
    assert not prediction.requires_grad
    assert not x.requires_grad
    spread = samples.uncertainty(x, output="regression").epistemic
    assert spread.min() > 0


@pytest.mark.parametrize("vectorize", [None, False])
def test_gradients_pass_to_the_inputs_and_to_nothing_else(vectorize):
    members, x = ensemble(lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)), 5), X.double()
    members = [member.double() for member in members]
    samples = collection(members)

    def by_hand(inputs):
        return torch.stack([member(inputs) for member in members])

    noise, draw = {"output": "regression", "noise": 0.3}, {"generator": torch.Generator().manual_seed(0)}
    options = {"sample_chunk": 2, "batch_size": 16, "vectorize": vectorize}
    for predicted, right in (
        (lambda z: samples.predict(z, output="regression", **options), lambda z: by_hand(z).mean(0)),
        (lambda z: samples.predict_samples(z, output="regression", **options), by_hand),
        (lambda z: samples.draws(z, **draw, **noise, **options), by_hand),  # and noise, which has no gradient
        (lambda z: samples.uncertainty(z, **noise, **options).total, lambda z: by_hand(z).var(0, correction=0)),
    ):
        inputs = x.clone().requires_grad_()
        outputs = predicted(inputs)
        weights = torch.randn_like(outputs)
        slopes = [torch.autograd.grad((weights * out).sum(), inputs)[0] for out in (outputs, right(inputs))]
        torch.testing.assert_close(*slopes)
    assert all(parameter.grad is None for parameter in samples.model.parameters())
    with torch.no_grad():
        assert not samples.predict(inputs, output="regression").requires_grad


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


def from_list():
    """Reads its weights from a plain list."""
    layer = nn.Linear(4, 8)
    compute = lambda m, x: m.head(nn.functional.linear(x, *m.params).tanh())  # noqa: E731
    return Built(compute, layer=layer, params=[layer.weight, layer.bias], head=nn.Linear(8, 3))


def by_closure():
    """A correction of low rank by hand, in a forward that replaces the layer's."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).requires_grad_(False)
    for layer in (model[0], model[2]):
        layer.down = down = nn.Parameter(torch.randn(2, layer.in_features))
        layer.up = up = nn.Parameter(torch.randn(layer.out_features, 2))
        plain = layer.forward
        layer.forward = lambda h, plain=plain, down=down, up=up: plain(h) + h @ down.T @ up.T
    return model


def bound():
    """A layer whose forward was replaced by a function of the layer and its old forward, as some libraries do."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    for layer in (model[0], model[2]):
        plain = layer.forward
        layer.forward = functools.partial(lambda layer, plain, h: plain(h) + layer.bias, layer, plain)
    return model


def compiled_inside():
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    model[0] = torch.compile(model[0], backend="eager")
    return model


@pytest.mark.parametrize("build", [from_list, by_closure, bound, compiled_inside])
@pytest.mark.parametrize("vectorize", [None, True, False])
def test_weights_are_replaced_wherever_modules_hold_them(build, vectorize):
    samples, expected = with_copies(build)
    assert expected.std(0).mean() > 0.01, "the samples must differ for this to be a test"
    before = copied(samples.model.state_dict())
    torch.testing.assert_close(samples.predict_samples(X, sample_chunk=2, vectorize=vectorize), expected)
    assert same(before, samples.model.state_dict())


def helped():
    """Reads the weights of a layer through an object that is no module."""
    layer = nn.Linear(4, 8)
    helper = SimpleNamespace(layer=layer)
    return Built(lambda m, x: m.head(m.helper.layer(x).tanh()), a=layer, helper=helper, head=nn.Linear(8, 3))


@pytest.mark.parametrize("vectorize", [None, False])
def test_weights_that_forward_finds_elsewhere_are_named(vectorize):
    samples, _ = with_copies(helped)
    before = copied(samples.model.state_dict())
    for use in (samples.predict, samples.uncertainty, samples.predict_samples):  # again and again
        with pytest.raises(ValueError, match=r"forward of Built does not read all sampled weights, 'a\.weight'"):
            use(X, vectorize=vectorize)
    assert same(before, samples.model.state_dict())


class InOneBatch(nn.Module):
    """Rows that depend on each other, and outputs that may be probabilities already: two warnings of a first batch."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x):
        time.sleep(0.01)  # all threads are in their first prediction at once
        return (self.layer(x) - self.layer(x).mean()).sigmoid()


def warnings_of_threads(samples, **options):
    """Warnings to eight threads that predict at once, in all."""
    begin = threading.Barrier(8)

    def predict(_):
        begin.wait()
        samples.predict(X, **options)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(predict, range(8)))
    return sorted(str(w.message)[:30] for w in caught)


def in_one_batch():
    return SampleCollection.from_samples(InOneBatch(), [InOneBatch().state_dict() for _ in range(3)])


def walk():
    """A chain that goes nowhere, of which a prediction says so."""
    model = nn.Linear(4, 3)
    sampler = SGHMC(model.parameters(), lr=1e-6, num_data=40, prior_precision=1.0)
    posterior = PosteriorSamples(model, sampler)
    train(model, sampler, 200, X, Y)
    return posterior


def test_what_is_said_once_is_said_once_by_eight_threads(monkeypatch):
    told = warnings_of_threads(in_one_batch(), output="binary", batch_size=20, vectorize=False)
    assert len(told) == len(set(told)) == 2, told
    assert len(warnings_of_threads(walk())) == 1
    monkeypatch.setattr(Once, "__call__", lambda self: True)  # planted
    assert len(warnings_of_threads(in_one_batch(), output="binary", batch_size=20, vectorize=False)) > 2
