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
from tests.learned_samplers.posterior.common import collection, copied, ensemble, same

X = torch.linspace(-2, 2, 28).view(7, 4)
FAR = 50.0


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(x).tanh())


NETWORKS = {
    "mlp": lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)),
    "convolutional": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(3, 3)
    ),
    "batch_norm": lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)),
    "tied": Tied,
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
    for found, right in (
        (samples.predict_samples(X, **options), expected),
        (torch.cat(list(samples.predict_batches(X, **options)), 1), expected),
        (samples.predict(X, **options), expected.mean(0)),
        (samples.predict(X, cumulative=True, **options), running),
        (samples.predict_samples(X, num_samples=2, **options), expected[[1, 4]]),  # evenly spaced, with the last
    ):
        torch.testing.assert_close(found, right, atol=1e-6, rtol=0)


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
    whole = samples.predict(x, num_samples=num_samples)
    torch.testing.assert_close(average, whole, atol=1e-2 if dtype == torch.bfloat16 else 1e-6, rtol=0)


def test_the_model_is_left_as_it_was():
    samples = collection(members_of("batch_norm"))
    model = samples.model.train()
    model[1].eval()
    before, modes = copied(model.state_dict()), [module.training for module in model.modules()]
    samples.predict(X)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):  # the network's own error is not hidden
        samples.predict(torch.randn(6, 5))
    assert not samples._runner.vmap_fails
    assert [module.training for module in model.modules()] == modes
    assert torch.is_grad_enabled()
    assert same(before, model.state_dict())
    assert all(parameter.grad is None for parameter in model.parameters())


# -- inputs -----------------------------------------------------------------------------------------------------------


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
    assert [tuple(each.shape) for each in first.args] == [(2, 3), (2, 2)]
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


# -- outputs ----------------------------------------------------------------------------------------------------------


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
        (3, lambda out: out, {"output": "regression"}, lambda raw: raw),
        (3, lambda out: out, {"output": lambda logits: logits.amax(1)}, lambda raw: raw.amax(2)),
    ],
)
def test_outputs_of_every_meaning(width, wrap, options, right):
    samples, raw = outputs(width, wrap)
    found = samples.predict(X, **options)
    torch.testing.assert_close(found, right(raw).mean(0))
    assert found.std() > 0.01, "one logit gave 1 for every row before"


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
    found = collection([network] * 2000).predict(X.bfloat16(), output=lambda p: p)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.sum(1), torch.ones(7), rtol=0, atol=0.01)  # 0.66 to 0.77 in bfloat16


# -- uncertainty and draws, against closed forms ----------------------------------------------------------------------


class Constant(nn.Module):
    """Gives its parameter for every example."""

    def __init__(self, *values):
        super().__init__()
        self.values = nn.Parameter(torch.tensor(values))

    def forward(self, x):
        return self.values.expand(len(x), -1)


def constants(*samples):
    return collection([Constant(*values) for values in samples])


LOG2 = torch.full((7,), math.log(2))


def test_samples_that_are_sure_and_disagree_are_epistemic():
    found = constants([FAR, 0.0], [0.0, FAR]).uncertainty(X)
    torch.testing.assert_close(tuple(found), (torch.full((7, 2), 0.5), LOG2, 0 * LOG2, LOG2))


@pytest.mark.parametrize(("values", "options"), [((0.0, 0.0), {}), ((0.0,), {"output": "binary"})])
def test_samples_that_agree_on_not_knowing_are_aleatoric(values, options):
    found = constants(values, values, values).uncertainty(X, sample_chunk=2, **options)
    assert (found.epistemic == 0).all()
    torch.testing.assert_close(found.total.flatten(), LOG2)
    torch.testing.assert_close(found.aleatoric, found.total)


def test_two_classes_and_one_logit_are_the_same():
    logits = [(0.3, -1.0), (2.0, 0.5), (-1.0, 1.0)]
    two = constants(*logits).uncertainty(X)
    one = constants(*[(b - a,) for a, b in logits]).uncertainty(X, output="binary")
    torch.testing.assert_close(one.mean[:, 0], two.mean[:, 1])
    for name in ("total", "aleatoric", "epistemic"):
        torch.testing.assert_close(getattr(one, name)[:, 0], getattr(two, name))
    torch.testing.assert_close(two.total, two.aleatoric + two.epistemic)


def test_uncertainty_of_classes_on_another_axis():
    samples, raw = outputs(6, lambda out: out.view(-1, 2, 3))
    found, p = samples.uncertainty(X, class_axis=-1), raw.view(3, 7, 2, 3).softmax(-1)
    entropy = lambda q: -(q * q.log()).sum(-1)  # noqa: E731
    torch.testing.assert_close(found.total, entropy(p.mean(0)))
    torch.testing.assert_close(found.aleatoric, entropy(p).mean(0))
    assert samples.draws(X, class_axis=-1).shape == (3, 7, 2)


@pytest.mark.parametrize("chunk", [1, 2, 3, 8])
def test_variances_of_a_regression(chunk):
    # Far from zero, where a difference of sums of squares would have no digit left in float32.
    values = [(10_000.0 + k, math.log(0.5 + k)) for k in range(5)]
    found = constants(*values).uncertainty(X, output="regression", noise="log_variance", sample_chunk=chunk)
    right = (10_002.0, 4.5, 2.5, 2.0)  # (4 + 1 + 0 + 1 + 4) / 5 is the last
    torch.testing.assert_close(tuple(found), tuple(torch.full((7, 1), value) for value in right))


def test_given_noise():
    samples = constants((1.0, 5.0), (3.0, 5.0))
    none = samples.uncertainty(X, output="regression")
    assert (none.aleatoric == 0).all()
    torch.testing.assert_close(none.epistemic[0], torch.tensor([1.0, 0.0]))
    with pytest.warns(UserWarning, match="epistemic uncertainty is 0"):
        assert not constants((1.0, 2.0)).uncertainty(X).epistemic.any()
    some = samples.uncertainty(X, output="regression", noise=torch.tensor([0.5, 2.0]))
    torch.testing.assert_close(some.total[0], torch.tensor([1.25, 4.0]))
    assert samples.uncertainty(X, output="regression", noise=3).aleatoric.unique().item() == 9


def test_a_network_that_gives_its_noise():
    samples, raw = outputs(4)
    mean, second = raw.chunk(2, -1)
    found = samples.uncertainty(X, output="regression", noise="log_variance")
    torch.testing.assert_close((found.mean, found.aleatoric), (mean.mean(0), second.exp().mean(0)))
    pairs, _ = outputs(4, lambda out: (out[:, :2], out[:, 2:].exp()))
    found = pairs.uncertainty(X, output="regression", noise="scale")
    torch.testing.assert_close((found.mean, found.aleatoric), (mean.mean(0), second.exp().square().mean(0)))


def test_draws_have_the_law_they_are_drawn_from():
    x, generator = torch.zeros(20_000, 1), torch.Generator().manual_seed(0)
    classes = constants((0.0, math.log(3.0)), (FAR, 0.0)).draws(x, generator=generator)
    assert (classes.shape, classes.dtype) == ((2, 20_000), torch.int64)
    assert classes[0].double().mean().item() == pytest.approx(0.75, abs=0.015)  # 5 standard errors
    assert classes[1].sum() == 0
    binary = constants((math.log(3.0),), (-FAR,)).draws(x, output="binary", generator=generator)
    assert binary.shape == (2, 20_000, 1)
    assert binary[0].double().mean().item() == pytest.approx(0.75, abs=0.015)
    reals = constants((1.0,), (-1.0,)).draws(x, output="regression", noise=0.5, generator=generator)
    assert reals.shape == (2, 20_000, 1)
    assert reals[0].mean().item() == pytest.approx(1, abs=0.018)
    assert reals.std(1).flatten().tolist() == pytest.approx([0.5, 0.5], abs=0.0125)
    again, twice = (
        constants((1.0,)).draws(X, output="regression", noise=1, generator=torch.Generator().manual_seed(3))
        for _ in range(2)
    )
    assert torch.equal(again, twice)
