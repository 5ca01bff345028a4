"""What a network returns is never guessed: every option against its definition, and every misfit named."""

from collections import namedtuple
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from learned_samplers import SampleCollection
from learned_samplers.posterior.inputs import as_batches

X = torch.linspace(-2, 2, 28).view(7, 4)


class Net(nn.Module):
    """A linear layer whose output is shaped and wrapped by a function."""

    def __init__(self, width, wrap=lambda out: out):
        super().__init__()
        self.layer = nn.Linear(4, width)
        self.wrap = wrap

    def forward(self, x):
        return self.wrap(self.layer(x))


def collection(width, wrap=lambda out: out, count=3):
    torch.manual_seed(1)
    members = [Net(width, wrap) for _ in range(count)]
    raw = torch.stack([member.layer(X) for member in members]).detach()
    return SampleCollection.from_samples(members[0], [member.state_dict() for member in members]), raw


# -- what does not fit ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("width", "wrap", "options", "message"),
    [
        (1, None, {}, r"logits of shape \(batch, classes\), got \(7, 1\).*output='binary' .*output='regression'"),
        (1, lambda o: o[:, 0], {}, r"got \(7,\), a softmax of which is 1 for every row: use output='binary'"),
        (6, lambda o: o.view(-1, 3, 2), {}, r"which axis of \(7, 3, 2\) is that of the classes: give class_axis=1"),
        (3, lambda o: o.view(-1, 3, 1), {"class_axis": -1}, "has one class: use output='binary' with class_axis=-1"),
        (3, None, {"class_axis": 2}, r"class_axis=2 is not an axis of classes of outputs of shape \(7, 3\)"),
        (3, None, {"class_axis": 0}, "class_axis=0 is the axis of the examples"),
        (3, None, {"output": "regression", "class_axis": 1}, "class_axis=1 goes with output='softmax' or 'binary'"),
        (2, None, {"output": "binary"}, r"got \(7, 2\): output='softmax' is for classes, output=torch.sigmoid"),
        (2, None, {"output": "logits"}, "output must be 'softmax', 'binary', 'regression' or a function, got 'logits'"),
        (2, None, {"noise": 0.1}, r"noise=0\.1 goes with output='regression' only, got 'softmax'"),
        (2, None, {"output": "regression", "noise": -1.0}, r"noise must be greater than 0, got -1\.0"),
        (2, None, {"output": "regression", "noise": "std"}, "noise must be one of 'log_variance', 'scale', got 'std'"),
        (3, None, {"output": "regression", "noise": "scale"}, r"so an even number; got shape \(7, 3\)"),
        (3, None, {"output": "regression", "noise": torch.ones(2)}, r"noise of shape \(2,\) does not fit .*\(7, 3\)"),
        (2, lambda o: (o, o), {}, r"a tuple of 2 \(\(7, 2\), \(7, 2\)\): say which.*by select=, such as select=0"),
        (2, lambda o: {"a": o, "b": o}, {}, "a dict with 'a', 'b': say which.*such as select='a'"),
        (2, lambda o: {"a": o, "b": o}, {"select": "c"}, "select='c' is not in the network's output: a dict with 'a'"),
        (2, lambda o: (o, o), {"output": "regression"}, "noise='log_variance' or noise='scale', or .*select=0"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_does(width, wrap, options, message):
    samples, _ = collection(width, wrap or (lambda out: out))
    for vectorize in (None, False):
        with pytest.raises(ValueError, match=message):
            samples.predict(X, vectorize=vectorize, **options)


def test_options_have_types():
    samples, _ = collection(3)
    with pytest.raises(TypeError, match=r"class_axis must be an integer, got 1\.0"):
        samples.predict(X, class_axis=1.0)
    with pytest.raises(TypeError, match="unknown option 'classes'"):
        samples.predict_samples(X, classes=3)
    with pytest.raises(TypeError, match="select=0 gives a str of the network's output, no tensor"):
        collection(3, lambda out: ("text", out))[0].predict(X, select=0)
    with pytest.raises(TypeError, match=r"must hold floating-point numbers, got torch\.int64"):
        collection(3, lambda out: out.argmax(1))[0].predict(X, output="regression")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vectorize", [None, False])
def test_probabilities_are_not_squashed_again(dtype, vectorize):
    def probabilities(out):
        return out.softmax(1)

    torch.manual_seed(0)
    members = [Net(5, probabilities).to(dtype) for _ in range(3)]
    samples = SampleCollection.from_samples(members[0], [member.state_dict() for member in members])
    for use in (samples.predict, samples.uncertainty, samples.draws):
        for rows in (7, 4) if dtype in (torch.bfloat16, torch.float16) else (7, 1):
            with pytest.raises(ValueError, match=r"outputs are probabilities already .*: use output=lambda p: p"):
                use(X[:rows].to(dtype), vectorize=vectorize)
    expected = torch.stack([member(X.to(dtype)) for member in members]).mean(0)
    kept = samples.predict(X.to(dtype), output=lambda p: p, vectorize=vectorize)
    torch.testing.assert_close(kept, expected, rtol=0.01, atol=0.01)
    assert samples.predict(X.to(dtype), output="regression").shape == (7, 5)


def test_probabilities_on_another_axis_or_in_a_container_are_seen():
    for wrap, options in (
        (lambda out: out.view(-1, 3, 2).softmax(1), {"class_axis": 1}),
        (lambda out: out.view(-1, 3, 2).softmax(2), {"class_axis": -1}),
        (lambda out: (out, out.softmax(1)), {"select": 1}),
    ):
        with pytest.raises(ValueError, match="outputs are probabilities already"):
            collection(6, wrap)[0].predict(X, **options)
    samples, raw = collection(6, lambda out: out.log_softmax(1))
    torch.testing.assert_close(samples.predict(X), raw.softmax(2).mean(0))


def test_a_sigmoid_taken_for_logits_is_warned_of_once(recwarn):
    samples, _ = collection(1, torch.sigmoid)
    samples.predict(X, output="binary")
    assert not recwarn, "seven examples do not tell"
    with pytest.warns(UserWarning, match=r"16 of them all lie in \[0, 1\]: if it ends in a sigmoid already"):
        samples.predict(X.repeat(3, 1), output="binary")
    samples.predict(X.repeat(3, 1), output="binary")
    logits, _ = collection(1)
    logits.predict(X.repeat(3, 1), output="binary")


# -- what does --------------------------------------------------------------------------------------------------------


def test_one_logit():
    for wrap in (lambda out: out, lambda out: out[:, 0]):
        samples, raw = collection(1, wrap)
        expected = torch.stack([wrap(member) for member in raw]).sigmoid().mean(0)
        predicted = samples.predict(X, output="binary")
        torch.testing.assert_close(predicted, expected)
        assert predicted.std() > 0.01, "one logit gave 1 for every row before"


def test_classes_on_any_axis():
    samples, raw = collection(6, lambda out: out.view(-1, 3, 2))
    raw = raw.view(3, 7, 3, 2)
    torch.testing.assert_close(samples.predict(X, class_axis=1), raw.softmax(2).mean(0))
    torch.testing.assert_close(samples.predict(X, class_axis=-1), raw.softmax(3).mean(0))
    torch.testing.assert_close(samples.predict(X, class_axis=-2), raw.softmax(2).mean(0))


def test_the_first_name_of_softmax_still_works():
    samples, raw = collection(3)
    torch.testing.assert_close(samples.predict(X, output="classification"), raw.softmax(2).mean(0))


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
    samples, raw = collection(3, wrap)
    torch.testing.assert_close(samples.predict(X, vectorize=vectorize, **options), raw.softmax(2).mean(0))


def test_a_network_that_gives_its_noise():
    samples, raw = collection(4)
    mean, second = raw.chunk(2, -1)
    torch.testing.assert_close(samples.predict(X, output="regression", noise="log_variance"), mean.mean(0))
    torch.testing.assert_close(
        samples.uncertainty(X, output="regression", noise="log_variance").aleatoric, second.exp().mean(0)
    )
    pairs, _ = collection(4, lambda out: (out[:, :2], out[:, 2:].exp()))
    scales = pairs.uncertainty(X, output="regression", noise="scale")
    torch.testing.assert_close(scales.mean, mean.mean(0))
    torch.testing.assert_close(scales.aleatoric, second.exp().square().mean(0))
    with pytest.raises(ValueError, match="or a scale that is not above 0"):
        samples.uncertainty(X, output="regression", noise="scale")
    with pytest.raises(ValueError, match=r"needs two tensors of one shape.*a tuple of 2 \(\(7, 1\), \(7, 3\)\)"):
        collection(4, lambda out: (out[:, :1], out[:, 1:]))[0].predict(X, output="regression", noise="scale")


# -- inputs -----------------------------------------------------------------------------------------------------------


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(2, 3), nn.Linear(2, 3)

    def forward(self, first, second):
        return self.left(first) - self.right(second)


def loader(data, **options):
    return DataLoader(data, batch_size=3, **options)


def test_every_form_of_the_same_inputs_predicts_the_same():
    samples, raw = collection(3)
    expected = raw.softmax(2).mean(0)
    pairs, alone = TensorDataset(X, torch.zeros(7)), list(X)
    for x in (X, X.numpy(), X.double().numpy(), (X,), {"x": X}, {"x": X.numpy()}, loader(pairs), loader(alone)):
        torch.testing.assert_close(samples.predict(x, sample_chunk=2, batch_size=4), expected)
    torch.manual_seed(0)
    members = [Two() for _ in range(3)]
    samples = SampleCollection.from_samples(members[0], [member.state_dict() for member in members])
    first, second = X[:, :2], X[:, 2:]
    expected = torch.stack([member(first, second) for member in members]).softmax(2).mean(0)
    rows = [{"first": a, "second": b} for a, b in zip(first, second)]
    for x in ((first, second), (first.numpy(), second), {"second": second, "first": first}, loader(rows)):
        torch.testing.assert_close(samples.predict(x, batch_size=4), expected)


def test_inputs_that_cannot_be_used():
    samples, _ = collection(3)
    with pytest.raises(ValueError, match="x shuffles, so that predictions could not be matched"):
        samples.predict(loader(TensorDataset(X), shuffle=True))
    for sampler in (SubsetRandomSampler(range(4)), WeightedRandomSampler([1.0] * len(X), 4)):
        with pytest.raises(ValueError, match="x shuffles"):
            samples.predict(loader(TensorDataset(X), sampler=sampler))
    batches = BatchSampler(RandomSampler(TensorDataset(X)), 4, drop_last=False)
    with pytest.raises(ValueError, match="x shuffles"):
        samples.predict(DataLoader(TensorDataset(X), batch_sampler=batches))
    with pytest.raises(ValueError, match="x shuffles"):  # torch's idiom for data sets that index many rows at once
        samples.predict(DataLoader(TensorDataset(X), sampler=batches, batch_size=None))
    with pytest.raises(ValueError, match="got a loader of no batch"):
        samples.predict(loader([]))
    with pytest.raises(TypeError, match="a tuple or dictionary of them, or a DataLoader, got str"):
        samples.predict({"x": "text"})
    with pytest.raises(ValueError, match=r"as many in each tensor; got lengths \[7, 3\]"):
        samples.predict({"x": X, "y": X[:3]})
    with pytest.raises(ValueError, match="at least one example"):
        samples.predict(np.zeros((0, 4)))


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
    torch.manual_seed(0)
    members = [network() for _ in range(4)]
    samples = SampleCollection.from_samples(members[0], [dict(member.named_parameters()) for member in members])
    with torch.no_grad():
        expected = torch.stack([member(X) for member in members]).softmax(2)
    with caplog.at_level("DEBUG", logger="learned_samplers"):
        for _ in range(3):  # nothing that one call writes reaches the next
            torch.testing.assert_close(samples.predict_samples(X, sample_chunk=2), expected)
    said = [record for record in caplog.records if "vmap cannot run" in record.getMessage()]
    assert len(said) <= 1, "found out once"
    if network is not Recurrent:  # newer versions of torch may run that one
        assert len(said) == 1
        with pytest.raises(RuntimeError, match=r"vmap cannot run .*leave vectorize out"):
            samples.predict(X, vectorize=True)


def test_a_networks_own_error_is_not_hidden():
    samples, _ = collection(3)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        samples.predict(torch.zeros(2, 5))
    assert not samples._runner.vmap_fails


def test_a_loader_of_more_than_inputs_and_targets_is_refused():
    x = torch.zeros(4, 3)
    with pytest.raises(ValueError, match=r"batch of the loader must be inputs or \(inputs, targets\), got 3 items"):
        as_batches(DataLoader(TensorDataset(x, x, torch.zeros(4)), batch_size=2), 2)


def test_several_inputs_come_as_a_tuple_beside_the_target():
    pairs = [((torch.full((3,), float(i)), torch.ones(2)), i) for i in range(4)]
    first, _ = as_batches(DataLoader(pairs, batch_size=2), 2)
    assert [tuple(each.shape) for each in first.args] == [(2, 3), (2, 2)]


def test_one_example_without_a_batch_axis():
    samples, _ = collection(3)
    alone = DataLoader(TensorDataset(X, torch.zeros(7)), batch_size=None)
    for x in (X[0], alone):
        with pytest.raises(ValueError, match=r"got \(3,\).*one example alone needs a batch axis, x\.unsqueeze\(0\)"):
            samples.predict(x)
    with pytest.raises(ValueError, match=r"turned 4 examples into a tensor of shape \(3,\).*needs a batch axis"):
        samples.predict(X[0], output="regression")
    with pytest.raises(ValueError, match=r"got lengths \[0\] \(one example alone needs a batch axis"):
        samples.predict(X[0, 0])
    model = nn.Sequential(nn.Conv2d(3, 2, 1), nn.Flatten(), nn.Linear(8, 2))
    images = SampleCollection.from_samples(model, [model.state_dict()])
    with pytest.raises(RuntimeError, match="mat1 and mat2") as raised:
        images.predict(torch.zeros(5, 3, 2, 2)[0])
    assert "x was read as 3 examples of shape (2, 2); one example alone needs" in raised.value.__notes__[0]


def two_inputs():
    torch.manual_seed(0)
    members = [Two() for _ in range(3)]
    return SampleCollection.from_samples(members[0], [member.state_dict() for member in members])


class Optional(Two):
    def forward(self, first, second=None):
        return super().forward(first, torch.zeros_like(first) if second is None else second)


class Training(Net):
    def forward(self, x, labels=None):
        return super().forward(x)


class Switched(Net):
    def forward(self, x, features=False):
        return super().forward(x)


def test_a_loader_of_two_inputs(recwarn):
    samples = two_inputs()
    first, second = X[:, :2], X[:, 2:]
    pairs = loader(TensorDataset(first, second))
    torch.testing.assert_close(samples.predict(pairs, targets=False), samples.predict((first, second)))
    alone = collection(3)[0]
    torch.testing.assert_close(alone.predict(loader(TensorDataset(X)), targets=False), alone.predict(X))
    assert not recwarn


def test_an_input_that_is_taken_for_the_target_is_warned_of_once(recwarn):
    model = Optional()
    samples = SampleCollection.from_samples(model, [model.state_dict()])
    first, second = X[:, :2], X[:, 2:]
    pairs = loader(TensorDataset(first, second))
    expected = samples.predict(first)
    assert torch.equal(samples.predict(pairs, targets=True, batch_size=3), samples.predict(first, batch_size=3))
    assert not recwarn
    for collected in (samples, SampleCollection.from_samples(model, [model.state_dict()])):
        with pytest.warns(UserWarning, match=r"not for 'second' of the network: pass targets=False") as said:
            torch.testing.assert_close(collected.predict(pairs), expected)
        assert len(said) == 1
        collected.predict(pairs)


@pytest.mark.parametrize("network", [Training, Switched])
def test_a_second_argument_that_is_no_input_is_no_reason_to_warn(network):
    model = network(3)
    samples = SampleCollection.from_samples(model, [model.state_dict()])
    torch.testing.assert_close(samples.predict(loader(TensorDataset(X, torch.zeros(7)))), samples.predict(X))


def test_statistics_from_a_loader_of_two_inputs():
    class Normed(Two):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, first, second):
            return self.norm(super().forward(first, second))

    model = Normed()
    samples = SampleCollection.from_samples(model, [model.state_dict()])
    samples._settings["buffers"] = "reestimate"
    samples.reestimate_buffers(loader(TensorDataset(X[:, :2], X[:, 2:]), drop_last=True), targets=False)
    found = samples.predict((X[:, :2], X[:, 2:]))
    samples.reestimate_buffers((X[:6, :2], X[:6, 2:]), batch_size=3)
    torch.testing.assert_close(samples.predict((X[:, :2], X[:, 2:])), found)
