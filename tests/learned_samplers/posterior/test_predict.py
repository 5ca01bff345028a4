"""Predicting with a collection: equal to a plain loop over samples, from inputs and outputs of every form."""

import math
from collections import namedtuple
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from learned_samplers.posterior.inputs import Batches
from tests.learned_samplers.posterior.common import Built, collection, ensemble

X = torch.linspace(-2, 2, 28).view(7, 4)
FAR = 50.0


def tied():
    model = Built(lambda m, x: m.second(m.first(x).tanh()), first=nn.Linear(4, 4), second=nn.Linear(4, 4))
    model.second.weight = model.first.weight
    return model


NETWORKS = {
    "mlp": lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)),
    "convolutional": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(3, 3)
    ),
    "batch_norm": lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)),
    "tied": tied,
}


def members_of(network, count=5):
    """Networks that differ in their running statistics too."""
    members = ensemble(NETWORKS[network], count)
    for member in members:
        for name, buffer in member.named_buffers():
            if buffer.is_floating_point():
                buffer.uniform_(0.5, 2) if name.endswith("running_var") else buffer.normal_()
    return members


@pytest.mark.parametrize("vectorize", [True, False, None])
@pytest.mark.parametrize("network", NETWORKS)
def test_equals_the_plain_loop(network, vectorize):
    members = members_of(network)
    samples = collection(members)
    with torch.no_grad():
        expected = torch.stack([member.eval()(X).softmax(1) for member in members])
    assert expected.std(dim=0).mean() > 0.01, "the samples must differ for this to be a test"
    options = {"batch_size": 4, "sample_chunk": 2, "vectorize": vectorize}
    running = torch.stack([expected[: k + 1].mean(0) for k in range(5)])
    for prediction, right in (
        (samples.predict_samples(X, **options), expected),
        (torch.cat(list(samples.predict_batches(X, **options)), 1), expected),
        (samples.predict(X, **options), expected.mean(0)),
        (samples.predict(X, cumulative=True, **options), running),
        (samples.predict_samples(X, num_samples=2, **options), expected[[1, 4]]),  # evenly spaced, with the last
    ):
        torch.testing.assert_close(prediction, right, atol=1e-6, rtol=0)


@settings(max_examples=30, deadline=None)
@given(
    count=st.integers(1, 6),
    rows=st.integers(1, 9),
    batch_size=st.integers(1, 10),
    sample_chunk=st.integers(1, 7),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    data=st.data(),
)
def test_shapes_dtypes_and_chunking(count, rows, batch_size, sample_chunk, dtype, data):
    samples = collection([member.to(dtype) for member in members_of("mlp", count)])
    x = torch.randn(rows, 4, dtype=dtype)
    num_samples = data.draw(st.integers(1, count))
    options = {"batch_size": batch_size, "sample_chunk": sample_chunk, "num_samples": num_samples}
    average, running = samples.predict(x, **options), samples.predict(x, cumulative=True, **options)
    assert average.shape == (rows, 3)
    assert running.shape == (num_samples, rows, 3)
    assert average.dtype == running.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(running[-1], average)
    torch.testing.assert_close(average.sum(1), torch.ones(rows, dtype=average.dtype))
    expected = samples.predict(x, num_samples=num_samples)
    torch.testing.assert_close(average, expected, atol=1e-2 if dtype == torch.bfloat16 else 1e-6, rtol=0)


class Net(nn.Module):
    """A linear layer whose output is shaped and wrapped by a function."""

    def __init__(self, width, wrap=lambda out: out):
        super().__init__()
        self.layer = nn.Linear(4, width)
        self.wrap = wrap

    def forward(self, x):
        return self.wrap(self.layer(x))


def outputs(width, wrap=lambda out: out):
    """A collection of networks, and what their layers give."""
    members = ensemble(lambda: Net(width, wrap))
    return collection(members), torch.stack([member.layer(X) for member in members]).detach()


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(2, 3), nn.Linear(2, 3)

    def forward(self, first, second):
        return self.left(first) - self.right(second)


class OptionalSecond(Two):
    def forward(self, first, second=None):
        return super().forward(first, torch.zeros_like(first) if second is None else second)


class Labelled(Net):
    def forward(self, x, labels=None):
        return super().forward(x)


class Switched(Net):
    def forward(self, x, features=False):
        return super().forward(x)


FIRST, SECOND = X[:, :2], X[:, 2:]


def loader(data, **options):
    return DataLoader(data, batch_size=3, **options)


def test_every_form_of_the_same_inputs_predicts_the_same(recwarn):
    samples, raw = outputs(3)
    pairs, alone = TensorDataset(X, torch.zeros(7)), list(X)
    for x in (X, X.numpy(), X.double().numpy(), (X,), {"x": X}, {"x": X.numpy()}, loader(pairs), loader(alone)):
        torch.testing.assert_close(samples.predict(x, sample_chunk=2, batch_size=4), raw.softmax(2).mean(0))
    torch.testing.assert_close(samples.predict(loader(TensorDataset(X)), targets=False), samples.predict(X))
    members = ensemble(Two)
    samples = collection(members)
    expected = torch.stack([member(FIRST, SECOND) for member in members]).softmax(2).mean(0)
    rows = [{"first": a, "second": b} for a, b in zip(FIRST, SECOND)]
    forms = (FIRST, SECOND), (FIRST.numpy(), SECOND), {"second": SECOND, "first": FIRST}, loader(rows)
    for x, targets in (*((form, None) for form in forms), (loader(TensorDataset(FIRST, SECOND)), False)):
        torch.testing.assert_close(samples.predict(x, batch_size=4, targets=targets), expected)
    several = [((torch.full((3,), float(i)), torch.ones(2)), i) for i in range(4)]
    first, _ = Batches(DataLoader(several, batch_size=2), 2)
    assert [tuple(argument.shape) for argument in first.args] == [(2, 3), (2, 2)]
    for build in (Labelled, Switched):  # whose second argument is no input
        one = collection([build(3)])
        torch.testing.assert_close(one.predict(loader(pairs)), one.predict(X))
    assert not recwarn


def test_an_input_that_is_taken_for_the_target_is_warned_of_once(recwarn):
    samples = collection([OptionalSecond()])
    pairs, expected = loader(TensorDataset(FIRST, SECOND)), samples.predict(FIRST, batch_size=3)
    assert torch.equal(samples.predict(pairs, targets=True, batch_size=3), expected)
    assert not recwarn
    with pytest.warns(UserWarning, match=r"'second' of the network: pass targets=False") as said:
        torch.testing.assert_close(samples.predict(pairs), expected)
    assert len(said) == 1
    samples.predict(pairs)


class Graph(nn.Module):
    """Averages over neighbours; edges (2, E)."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x, edges):
        summed = torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])
        return self.layer(x + summed)


def test_a_graph_in_one_piece():
    members, edges = ensemble(Graph), torch.stack([torch.arange(7), torch.arange(7).roll(3)])
    samples = collection(members)
    expected = torch.stack([member(X, edges) for member in members]).softmax(2).detach()
    with pytest.raises(ValueError, match=r"got lengths \[7, 2\] .*batch_size=None, which runs all rows in one piece"):
        samples.predict((X, edges))
    for x in ((X, edges), {"x": X, "edges": edges}):
        torch.testing.assert_close(samples.predict(x, batch_size=None), expected.mean(0))
    torch.testing.assert_close(samples.uncertainty((X, edges), batch_size=None).mean, expected.mean(0))
    torch.testing.assert_close(samples.predict_samples((X, edges), batch_size=None), expected)
    pooled = samples.predict((X, edges), batch_size=None, output=lambda out: out.mean(0, keepdim=True))
    assert pooled.shape == (1, 3), "as many rows as the network says"


def alone():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, 3))


class Edges(nn.Linear):
    """Has the edges of all rows in a buffer."""

    def __init__(self):
        super().__init__(4, 3)
        self.register_buffer("edges", torch.arange(40).roll(1))

    def forward(self, x):
        return super().forward(x + x[self.edges])


def test_rows_that_depend_on_each_other_are_told(recwarn):
    x = torch.linspace(-2, 2, 160).view(40, 4)
    samples, edges = collection(ensemble(alone)), collection(ensemble(Edges))
    together = samples.predict(x)
    torch.testing.assert_close(samples.predict(x, batch_size=None), together)
    assert not recwarn, "one batch: nothing depends on how rows are shared out"
    with pytest.warns(UserWarning, match=r"depends on the rows that share its batch.*batch_size=None"):
        split = samples.predict(x, batch_size=20)
    assert (split - together).abs().max() > 0.01
    with pytest.raises(IndexError) as raised:
        edges.predict(x, batch_size=20)
    assert "need batch_size=None" in raised.value.__notes__[0]
    assert edges.predict(x).shape == (40, 3)


def test_one_example_without_a_batch_axis():
    samples, _ = outputs(3)
    alone = DataLoader(TensorDataset(X, torch.zeros(7)), batch_size=None)
    for x, options in ((X[0], {}), (alone, {}), (X[0], {"output": "regression"}), (X[0, 0], {})):
        with pytest.raises(ValueError, match=r"needs a batch axis"):
            samples.predict(x, **options)
    images = collection([nn.Sequential(nn.Conv2d(3, 2, 1), nn.Flatten(), nn.Linear(8, 2))])
    with pytest.raises(RuntimeError, match="mat1 and mat2") as raised:
        images.predict(torch.zeros(5, 3, 2, 2)[0])
    assert "x was read as 3 examples of shape (2, 2)" in raised.value.__notes__[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vectorize", [None, False])
def test_probabilities_are_not_squashed_again(dtype, vectorize):
    members = [member.to(dtype) for member in ensemble(lambda: Net(5, lambda out: out.softmax(1)))]
    samples, x = collection(members), X.to(dtype)
    for use in (samples.predict, samples.uncertainty, samples.draws):
        for rows in (7, 4) if dtype in (torch.bfloat16, torch.float16) else (7, 1):
            with pytest.raises(ValueError, match=r"outputs are probabilities already .*: use output=lambda p: p"):
                use(x[:rows], vectorize=vectorize)
    expected = torch.stack([member(x) for member in members]).mean(0)
    kept = samples.predict(x, output=lambda p: p, vectorize=vectorize)
    torch.testing.assert_close(kept, expected.to(kept.dtype), rtol=0.01, atol=0.01)
    assert samples.predict(x, output="regression").shape == (7, 5)


def test_probabilities_on_another_axis_or_in_a_container_are_seen(recwarn):
    for wrap, options in (
        (lambda out: out.view(-1, 3, 2).softmax(1), {"class_axis": 1}),
        (lambda out: out.view(-1, 3, 2).softmax(2), {"class_axis": -1}),
        (lambda out: (out, out.softmax(1)), {"select": 1}),
    ):
        with pytest.raises(ValueError, match="outputs are probabilities already"):
            outputs(6, wrap)[0].predict(X, **options)
    samples, raw = outputs(6, lambda out: out.log_softmax(1))
    torch.testing.assert_close(samples.predict(X), raw.softmax(2).mean(0))
    samples, many = outputs(1, torch.sigmoid)[0], X.repeat(3, 1)
    samples.predict(X, output="binary")
    assert not recwarn, "seven examples do not tell"
    with pytest.warns(UserWarning, match=r"16 of them all lie in \[0, 1\]"):
        samples.predict(many, output="binary")
    samples.predict(many, output="binary")  # said once
    outputs(1)[0].predict(many, output="binary")


@pytest.mark.parametrize(
    ("width", "wrap", "options", "right"),
    [
        (1, lambda out: out, {"output": "binary"}, torch.sigmoid),
        (1, lambda out: out[:, 0], {"output": "binary"}, lambda raw: raw[..., 0].sigmoid()),
        (6, lambda out: out.view(-1, 3, 2), {"class_axis": 1}, lambda raw: raw.view(3, 7, 3, 2).softmax(2)),
        (6, lambda out: out.view(-1, 3, 2), {"class_axis": -1}, lambda raw: raw.view(3, 7, 3, 2).softmax(3)),
        (6, lambda out: out.view(-1, 3, 2), {"class_axis": -2}, lambda raw: raw.view(3, 7, 3, 2).softmax(2)),
        (8, lambda out: out.view(-1, 2, 2, 2), {"class_axis": 2}, lambda raw: raw.view(3, 7, 2, 2, 2).softmax(3)),
        (5, lambda out: out, {"output": "multilabel"}, torch.sigmoid),
        (3, lambda out: out, {"output": "regression"}, lambda raw: raw),
        (3, lambda out: out, {"output": lambda logits: logits.amax(1)}, lambda raw: raw.amax(2)),
    ],
)
def test_outputs_of_every_meaning(width, wrap, options, right):
    samples, raw = outputs(width, wrap)
    prediction = samples.predict(X, **options)
    torch.testing.assert_close(prediction, right(raw).mean(0))
    assert prediction.std() > 0.01, "one logit gave 1 for every row before"


@pytest.mark.parametrize(
    ("width", "wrap", "options", "logarithms"),
    [
        (3, lambda out: out, {}, lambda raw: raw.log_softmax(-1)),
        (6, lambda out: out.view(-1, 3, 2), {"class_axis": 1}, lambda raw: raw.view(3, 7, 3, 2).log_softmax(2).mT),
        (1, lambda out: out, {"output": "binary"}, lambda raw: torch.cat([-raw, raw], -1).sigmoid().log()),
        (1, lambda out: out[:, 0], {"output": "binary"}, lambda raw: torch.cat([-raw, raw], -1).sigmoid().log()),
        (5, lambda out: out, {"output": "multilabel"}, lambda raw: torch.stack([-raw, raw], -1).sigmoid().log()),
    ],
)
@pytest.mark.parametrize("cumulative", [False, True])
def test_logarithms_of_averaged_probabilities(width, wrap, options, logarithms, cumulative):
    samples, raw = outputs(width, wrap)
    averages = logarithms(raw).exp().cumsum(0) / torch.arange(1, 4).view(3, *[1] * (logarithms(raw).ndim - 1))
    log_average = samples.predict(X, log=True, cumulative=cumulative, sample_chunk=2, batch_size=4, **options)
    torch.testing.assert_close(log_average, averages.log() if cumulative else averages[-1].log())


def test_logarithms_stay_finite_where_probabilities_vanish():
    samples = constants((1000.0, 0.0), (2000.0, 0.0))
    assert samples.predict(X)[0].tolist() == [1, 0]
    torch.testing.assert_close(samples.predict(X, log=True)[0], torch.tensor([0.0, -1000 - math.log(2)]))


Named = namedtuple("Named", ["logits", "auxiliary"])


@pytest.mark.parametrize(
    ("wrap", "options"),
    [
        (lambda out: (out,), {}),
        (lambda out: {"logits": out, "hidden": out * 2}, {}),
        (lambda out: Named(out, out * 2), {}),
        (lambda out: SimpleNamespace(logits=out, loss=None), {}),
        (lambda out: {"out": out, "aux": out * 2}, {"select": "out"}),
        (lambda out: (out * 2, out), {"select": 1}),
        (lambda out: SimpleNamespace(loss=out.sum(), prediction=out), {"select": "prediction"}),
    ],
)
@pytest.mark.parametrize("vectorize", [None, True, False])
def test_outputs_in_containers(wrap, options, vectorize):
    samples, raw = outputs(3, wrap)
    torch.testing.assert_close(samples.predict(X, vectorize=vectorize, **options), raw.softmax(2).mean(0))


def test_the_average_of_a_function_s_half_precision_outputs_is_in_single_precision():
    network = nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)).bfloat16()
    prediction = collection([network] * 2000).predict(X.bfloat16(), output=lambda p: p)
    assert prediction.dtype == torch.float32
    torch.testing.assert_close(prediction.sum(1), torch.ones(7), rtol=0, atol=0.01)  # 0.66 to 0.77 in bfloat16


class Constant(nn.Module):
    """Gives its parameter for every example."""

    def __init__(self, *values):
        super().__init__()
        self.values = nn.Parameter(torch.tensor(values))

    def forward(self, x):
        return self.values.expand(len(x), -1)


def constants(*samples):
    return collection([Constant(*values) for values in samples])


@pytest.mark.parametrize("options", [{"log": True}, {"cumulative": True}, {"log": True, "cumulative": True}])
def test_gradients_of_more_samples_than_a_chunk_are_those_of_one_chunk(options):
    samples = collection(ensemble(NETWORKS["mlp"], 5))
    gradients = []
    for chunk in (2, 5):
        x = X.clone().requires_grad_()
        samples.predict(x, sample_chunk=chunk, **options)[..., 0].sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients)


def test_arrays_have_the_dtype_of_weights_that_are_no_integers():
    def quantised(m, x):
        return m.last(x.float() + m.first.float())

    model = Built(quantised, last=nn.Linear(4, 3))
    model.first = nn.Parameter(torch.arange(4, dtype=torch.uint8), requires_grad=False)
    samples = collection([model])
    torch.testing.assert_close(samples.predict(X.numpy()), samples.predict(X))


def test_what_a_network_writes_into_its_weights_does_not_reach_the_samples():
    samples = collection(ensemble(lambda: nn.Sequential(nn.Embedding(9, 4, max_norm=0.5), nn.Flatten()), 2))
    before = samples[0]["0.weight"].clone()
    samples.predict(torch.arange(9)[:, None])
    assert torch.equal(samples[0]["0.weight"], before)


def test_a_function_of_weights_takes_all_of_them():
    samples = collection(ensemble(NETWORKS["mlp"], 2))
    function = samples.function_of_weights(X)
    torch.testing.assert_close(function(samples[1]), samples.predict_samples(X)[1])
    partial = {name: w for name, w in samples[1].items() if name != "0.bias"}
    for weights in ({}, partial, {**partial, "0.bias": torch.zeros(3)}, {**samples[1], "more": torch.zeros(1)}):
        with pytest.raises(ValueError, match="weights must be all that is sampled"):
            function(weights)
