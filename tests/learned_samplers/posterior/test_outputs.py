"""What a network returns is never guessed: every option against its definition, and every misfit named."""

from collections import namedtuple
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from learned_samplers import SampleCollection

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
    torch.testing.assert_close(kept, expected.to(kept.dtype), rtol=0.01, atol=0.01)
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


def test_the_average_of_a_function_s_half_precision_outputs_is_in_single_precision():
    network = nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)).bfloat16()
    samples = SampleCollection.from_samples(network, [network.state_dict()] * 2000)
    found = samples.predict(X.bfloat16(), output=lambda p: p)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.sum(1), torch.ones(7), rtol=0, atol=0.01)  # .66 to .77 in bfloat16
