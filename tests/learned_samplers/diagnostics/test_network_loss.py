"""`network_loss` is the loss of the very predictions that the collection makes, or says why it cannot be."""

import pytest
import torch
from torch import nn

from learned_samplers import PosteriorSamples, diagnostics, metrics
from learned_samplers.posterior import OwnBuffers
from tests.learned_samplers.posterior.common import (
    Built,
    collect,
    collection,
    ensemble,
    frozen,
    network,
    one_of_many,
    sgd,
)
from tests.learned_samplers.posterior.test_collection import MergingLoRA

X, LABELS = torch.linspace(-1, 1, 40).view(10, 4), torch.arange(10) % 2


def scaled():
    return Built(lambda m, x: m.layer(x) * m.scale, layer=nn.Linear(4, 2), scale=nn.Buffer(torch.tensor(2.5)))


def two_types():
    """A layer in bfloat16, and one in float32."""
    layers = {"first": nn.Linear(4, 5).bfloat16(), "second": nn.Linear(5, 2)}
    return Built(lambda m, x: m.second(m.first(x.bfloat16()).float()), **layers)


def dictionary(name="logits"):
    """Its output is a dictionary, of the logits and something else."""
    return Built(lambda m, x: {"hidden": x, name: m.layer(x)}, layer=nn.Linear(4, 2))


SCORES = {"nll": metrics.nll, "error": lambda p, y: 1 - metrics.accuracy(p, y)}


def rows(probabilities):
    """Probabilities (N, C, ...) of every place as rows (·, C)."""
    return probabilities if probabilities.ndim < 3 else probabilities.movedim(1, -1).flatten(0, -2)


IMAGES = X.view(10, 1, 2, 2)


@pytest.mark.parametrize("kind", SCORES)
@pytest.mark.parametrize(
    ("make", "x", "labels", "options"),
    [
        (scaled, X, LABELS, {}),
        (two_types, X, LABELS, {}),
        (dictionary, X, LABELS, {}),
        (lambda: dictionary("classes"), X, LABELS, {"select": "classes"}),
        (lambda: nn.Linear(4, 2), X.double().numpy(), LABELS.numpy(), {}),
        (lambda: nn.Linear(4, 1), X, LABELS, {"output": "binary"}),
        (lambda: nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)), X, LABELS, {"output": "binary"}),
        (lambda: nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)), X, LABELS, {"output": lambda p: p}),
        (lambda: nn.Sequential(nn.Linear(4, 1), nn.Sigmoid()), X, LABELS, {"output": lambda p: p}),
        (lambda: nn.Conv2d(1, 3, 1), IMAGES, torch.arange(40).view(10, 2, 2) % 3, {"class_axis": 1}),
        (
            lambda: nn.Conv2d(1, 1, 1),
            IMAGES,
            torch.arange(40).view(10, 2, 2) % 2,
            {"class_axis": 1, "output": "binary"},
        ),
    ],
)
def test_a_sample_has_the_loss_of_its_prediction(make, x, labels, options, kind):
    samples = collection(ensemble(make))
    single = [rows(outputs) for outputs in samples.predict_samples(x, vectorize=False, **options)]
    if make is scaled:
        samples.model.scale.fill_(0.1)  # the network's own has changed since
    loss = diagnostics.network_loss(samples, x, labels, kind=kind, batch_size=4, **options)
    expected = [SCORES[kind](p, labels.reshape(-1)) for p in single]
    assert len(set(expected)) > 1 or kind == "error"
    assert [loss(sample) for sample in samples] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", SCORES)
def test_network_loss_along_a_line(kind):
    samples, labels = collection(ensemble(lambda: one_of_many(hidden=5))), LABELS
    lines = diagnostics.loss_lines(samples, diagnostics.network_loss(samples, X, labels, kind=kind), num_points=3)
    middle = network(5)
    middle.load_state_dict({name: (tensor + samples[1][name]) / 2 for name, tensor in samples[0].items()})
    assert lines.losses[0, 1] == pytest.approx(SCORES[kind](middle(X).softmax(1).detach(), labels), rel=1e-5)


def test_a_large_loss_is_not_cut_where_the_probability_is_zero():
    samples = collection(ensemble(lambda: nn.Linear(4, 2), 1))
    weights = {"weight": torch.zeros(2, 4), "bias": torch.tensor([0.0, 1000.0])}
    assert diagnostics.network_loss(samples, X, torch.zeros_like(LABELS))(weights) == 1000


def test_buffers_of_each_samples_own_are_refused():
    torch.manual_seed(0)
    model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 8)), nn.Tanh(), nn.Linear(8, 3))
    with pytest.raises(RuntimeError, match="no sample"):
        diagnostics.network_loss(PosteriorSamples(model, sgd(model), buffers="snapshot"), X, LABELS)
    _, _, samples = collect(model, 3, buffers="snapshot")
    with pytest.raises(OwnBuffers, match=r"'0\.parametrizations\.weight\.0\._[uv]' differs from sample 0 to sample \d"):
        diagnostics.network_loss(samples, X, LABELS)
    with pytest.raises(OwnBuffers, match="running statistics"):
        diagnostics.network_loss(collection(ensemble(lambda: one_of_many(norm=True))), X, LABELS)


@pytest.mark.parametrize("kind", SCORES)
@pytest.mark.parametrize(
    ("make", "options", "labels", "error", "named"),
    [
        (lambda: nn.Linear(4, 1), {}, LABELS, ValueError, r"\(4, 1\).*output='binary'"),
        (lambda: nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)), {}, LABELS, ValueError, "probabilities already"),
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.Unflatten(1, (2, 2))), {}, LABELS, ValueError, "class_axis=1"),
        (lambda: nn.Linear(4, 2), {"output": lambda p: p}, LABELS, ValueError, "output"),
        (dictionary, {"select": "other"}, LABELS, ValueError, "select='other'"),
        (lambda: nn.Linear(4, 2), {}, LABELS.float(), TypeError, r"labels.*float32"),
        (lambda: nn.Linear(4, 2), {}, LABELS[:, None], ValueError, r"labels.*\(10, 1\)"),
        (lambda: nn.Linear(4, 2), {}, LABELS + 1, ValueError, "labels.*2"),
        (lambda: nn.Linear(4, 2), {}, LABELS - 100, ValueError, "labels.*-100"),
    ],
)
def test_what_predict_refuses_has_no_loss(make, options, labels, error, named, kind):
    samples = collection(ensemble(make))
    loss = diagnostics.network_loss(samples, X, labels, kind=kind, batch_size=4, **options)
    with pytest.raises(error, match=named):
        loss(samples[1])


@pytest.mark.parametrize("kind", SCORES)
def test_weights_without_a_finite_prediction_have_no_loss(kind):
    samples = collection(ensemble(lambda: nn.Linear(4, 2), 2))
    broken = {**samples[1], "bias": torch.tensor([0.0, float("nan")])}
    loss = diagnostics.network_loss(samples, X, LABELS, kind=kind)
    with pytest.raises(ValueError, match="loss must be finite, got nan"):
        diagnostics.loss_lines([samples[0], broken], loss)


def test_a_merged_adapter_hides_the_samples_of_it():
    model, _, samples = collect(nn.Sequential(MergingLoRA()))
    loss = diagnostics.network_loss(samples, X, LABELS)
    assert loss(samples[0]) == pytest.approx(metrics.nll(samples.predict_samples(X)[0], LABELS), rel=1e-5)
    model.eval()
    with pytest.raises(ValueError, match=r"its layer '0' has merged its adapter"):
        loss(samples[0])


def test_frozen_weights_that_are_not_those_of_the_samples_are_refused():
    model, _, samples = collect(frozen(), store_frozen=False)
    assert diagnostics.network_loss(samples, X, LABELS)(samples[0]) > 0
    model[0].weight.data = 3 * model[0].weight.data
    with pytest.raises(ValueError, match=r"the frozen parameters are not stored there.*'0\.weight'"):
        diagnostics.network_loss(samples, X, LABELS)
