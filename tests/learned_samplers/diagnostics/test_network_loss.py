"""`network_loss` is the loss of the very predictions that the collection makes, or says why it cannot be."""

import pytest
import torch
from torch import nn

from learned_samplers import PosteriorSamples, SampleCollection, diagnostics, metrics
from tests.learned_samplers.posterior.test_merging_layers import LoRA, collected

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
    with pytest.raises(RuntimeError, match="no sample to predict with"):
        diagnostics.network_loss(samples, X, LABELS)
    for _ in range(3):
        sampler.zero_grad()
        nn.functional.cross_entropy(model(X), LABELS).backward()
        sampler.step()
    message = r"samples: the buffer '0\.parametrizations\.weight\.0\._[uv]' differs from sample 0 to sample \d"
    with pytest.raises(ValueError, match=message):
        diagnostics.network_loss(samples, X, LABELS)


SCORES = {"nll": metrics.nll, "error": lambda p, y: 1 - metrics.accuracy(p, y)}


def rows(probabilities):
    """Probabilities (N, C, ...) of every place as rows (·, C)."""
    return probabilities.movedim(1, -1).flatten(0, -2)


@pytest.mark.parametrize("kind", SCORES)
@pytest.mark.parametrize(
    ("make", "x", "labels", "options"),
    [
        (lambda: nn.Linear(4, 1), X, LABELS, {"output": "binary"}),
        (lambda: nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)), X, LABELS, {"output": "binary"}),
        (lambda: nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)), X, LABELS, {"output": lambda p: p}),
        (lambda: nn.Sequential(nn.Linear(4, 1), nn.Sigmoid()), X, LABELS, {"output": lambda p: p}),
        (lambda: nn.Conv2d(1, 3, 1), X.view(10, 1, 2, 2), torch.arange(40).view(10, 2, 2) % 3, {"class_axis": 1}),
        (
            lambda: nn.Conv2d(1, 1, 1),
            X.view(10, 1, 2, 2),
            torch.arange(40).view(10, 2, 2) % 2,
            {"class_axis": 1, "output": "binary"},
        ),
    ],
    ids=["binary", "binary-flat", "softmax-inside", "sigmoid-inside", "pixels", "pixels-binary"],
)
def test_an_output_of_another_kind_is_read_as_predict_reads_it(make, x, labels, options, kind):
    samples = given(members(make))
    single = [metric if metric.ndim < 3 else rows(metric) for metric in samples.predict_samples(x, **options)]
    loss = diagnostics.network_loss(samples, x, labels, kind=kind, batch_size=4, **options)
    expected = [SCORES[kind](p, labels.flatten()) for p in single]
    assert len(set(expected)) > 1
    assert [loss(sample) for sample in samples] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", SCORES)
@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (lambda: nn.Linear(4, 1), {}, r"output='softmax' needs logits .* got \(4, 1\).*use output='binary'"),
        (lambda: nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)), {}, "probabilities already.*output=lambda p: p"),
        (lambda: nn.Unflatten(1, (2, 2)), {}, r"cannot tell which axis of \(4, 2, 2\).*class_axis=1"),
        (lambda: nn.Linear(4, 2), {"output": lambda p: p}, r"output.*(is negative|is above one|are these logits\?)"),
    ],
    ids=["one-logit", "softmax-inside", "more-axes", "logits-for-probabilities"],
)
def test_an_output_that_predict_refuses_has_no_loss(make, options, message, kind):
    samples = given(members(lambda: nn.Sequential(nn.Linear(4, 4), make())))
    loss = diagnostics.network_loss(samples, X, LABELS, kind=kind, batch_size=4, **options)
    with pytest.raises(ValueError, match=message):
        loss(samples[0])


def test_a_large_loss_is_not_cut_where_the_probability_is_zero():
    samples = given(members(lambda: nn.Linear(4, 2), 1))
    weights = {"weight": torch.zeros(2, 4), "bias": torch.tensor([0.0, 1000.0])}
    assert diagnostics.network_loss(samples, X, 0 * LABELS)(weights) == 1000


@pytest.mark.parametrize("kind", SCORES)
def test_weights_without_a_finite_prediction_have_no_loss(kind):
    samples = given(members(lambda: nn.Linear(4, 2), 2))
    broken = {**samples[1], "bias": torch.tensor([0.0, float("nan")])}
    loss = diagnostics.network_loss(samples, X, LABELS, kind=kind)
    with pytest.raises(ValueError, match="loss must be finite, got nan"):
        diagnostics.loss_lines([samples[0], broken], loss)


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        (LABELS.float(), TypeError, r"labels must be integers, got torch\.float32 \(use \.long\(\)\)"),
        (LABELS[:, None], ValueError, r"labels must have shape \(10,\), one for each prediction; got \(10, 1\)"),
        (LABELS + 1, ValueError, r"labels must lie in \[0, 2\), got 2"),
        (LABELS - 100, ValueError, r"labels must lie in \[0, 2\), got -100"),
    ],
)
def test_labels_that_do_not_fit_the_predictions_are_named(labels, error, message):
    samples = given(members(lambda: nn.Linear(4, 2)))
    loss = diagnostics.network_loss(samples, X, labels)
    with pytest.raises(error, match=message):
        loss(samples[0])


def test_arguments_that_cannot_be_used_are_refused_before_the_network_runs():
    samples = given(members(lambda: nn.Linear(4, 2)))
    with pytest.raises(ValueError, match="output must say where the classes are for kind='nll', got 'regression'"):
        diagnostics.network_loss(samples, X, LABELS, output="regression")
    with pytest.raises(ValueError, match="labels must be as many as the 10 inputs, got one number"):
        diagnostics.network_loss(samples, X, LABELS[0])


class Listed(nn.Module):
    """Its forward finds the weights in a list, where no sample's can be put."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.weights = [self.layer.weight, self.layer.bias]

    def forward(self, x):
        return nn.functional.linear(x, *self.weights)


def test_a_network_that_takes_no_samples_weights_has_no_loss_of_them():
    samples = given(members(Listed))
    loss = diagnostics.network_loss(samples, X, LABELS)
    with pytest.raises(ValueError, match=r"forward of Listed uses sampled weights, 'layer\.weight' perhaps"):
        diagnostics.loss_lines(samples, loss)


def test_a_merged_adapter_hides_the_samples_of_it():
    torch.manual_seed(0)
    model = nn.Sequential(LoRA())
    samples = collected(model)
    loss = diagnostics.network_loss(samples, X, LABELS)
    right = loss(samples[0])
    assert right == pytest.approx(metrics.nll(samples.predict_samples(X)[0], LABELS), rel=1e-5)
    model.eval()
    with pytest.raises(ValueError, match=r"its layer '0' has merged its adapter into its weight \(merged=True\)"):
        loss(samples[0])


def test_arrays_get_the_dtype_of_the_network():
    samples = given(members(lambda: nn.Linear(4, 2)))
    ours = diagnostics.network_loss(samples, X.double().numpy(), LABELS.numpy())(samples[0])
    assert ours == pytest.approx(diagnostics.network_loss(samples, X, LABELS)(samples[0]))
