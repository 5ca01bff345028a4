"""Refusals of collecting and predicting: an error of its class that names the argument."""

import contextlib

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from learned_samplers import Chains, PosteriorSamples, SampleCollection
from learned_samplers.posterior import to_arviz
from tests.learned_samplers.posterior.common import collect, frozen, network, sgd
from tests.learned_samplers.posterior.test_predict import X, constants, outputs

SGD = torch.optim.SGD
PAIRS = TensorDataset(X, torch.zeros(7))


def refuse(call, error, named):
    with pytest.raises(error, match=named):
        call()


def collector(build=network, **options):
    model = build()
    return PosteriorSamples(**{"model": model, "sampler": sgd(model), **options})


def relu():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def with_sparse_buffer():
    model = network()
    model.register_buffer("adjacency", torch.eye(3).to_sparse())
    return model


def normed():
    return network(norm=True)


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda: collector(burn_in=-1), ValueError, "burn_in.*-1"),
        (lambda: collector(burn_in=1.5), TypeError, "burn_in.*1.5"),
        (lambda: collector(thinning=0), ValueError, "thinning.*0"),
        (lambda: collector(thinning=True), TypeError, "thinning.*True"),
        (lambda: collector(max_samples=0), ValueError, "max_samples.*0"),
        (lambda: collector(dtype=torch.int8), TypeError, "dtype.*torch.int8"),
        (lambda: collector(device="meta"), ValueError, "device.*'meta'"),
        (lambda: collector(device="gpu"), ValueError, "device='gpu'"),
        (lambda: collector(device=1.5), TypeError, "device.*1.5"),
        (lambda: collector(store_frozen="no"), TypeError, "store_frozen.*'no'"),
        (lambda: collector(buffers="copy"), ValueError, "buffers.*'copy'"),
        (lambda: collector(buffers="reestimate"), ValueError, "buffers='reestimate'"),
        (lambda: collector(normed), ValueError, "buffers='snapshot'.*buffers='reestimate'"),
        (lambda: collector(model="net"), TypeError, "model.*str"),
        (lambda: collector(sampler=None), TypeError, "sampler.*NoneType"),
        (lambda: collector(dtype=torch.float8_e5m2), TypeError, r"dtype.*float8_e5m2"),
        (lambda: collector(sampler=SGD(nn.Linear(2, 5).parameters(), 1)), ValueError, r"group 0.*\(5, 2\)"),
        (lambda: collector(with_sparse_buffer), ValueError, "'adjacency' is sparse"),
    ],
)
def test_collecting(call, error, named):
    refuse(call, error, named)


def test_nothing_to_sample():
    model = network().requires_grad_(False)
    refuse(lambda: PosteriorSamples(model, SGD(model.parameters(), 1)), ValueError, "sampler.*requires_grad=True")


def shuffling(**options):
    return DataLoader(PAIRS, **options)


BATCHES = BatchSampler(RandomSampler(PAIRS), 4, drop_last=False)


@pytest.mark.parametrize(
    ("x", "options", "error", "named"),
    [
        (shuffling(shuffle=True), {}, ValueError, "x must not shuffle"),
        (shuffling(sampler=SubsetRandomSampler(range(4))), {}, ValueError, "x must not shuffle"),
        (shuffling(sampler=WeightedRandomSampler([1.0] * 7, 4)), {}, ValueError, "x must not shuffle"),
        (shuffling(batch_sampler=BATCHES), {}, ValueError, "x must not shuffle"),
        # torch's idiom for data sets that index many rows at once
        (shuffling(sampler=BATCHES, batch_size=None), {}, ValueError, "x must not shuffle"),
        (DataLoader([]), {}, ValueError, "x .*loader"),
        (DataLoader(TensorDataset(X, X, X)), {}, ValueError, "3 items"),
        ([1.0], {}, TypeError, "x .*list: of a loader.s batch .* give the inputs"),
        ({"x": "text"}, {}, TypeError, "x .*str"),
        ({"x": X, "y": X[:3]}, {}, ValueError, r"x .*\[7, 3\]"),
        (np.zeros((0, 4)), {}, ValueError, "x .*at least one example"),
        (DataLoader(X, batch_size=4), {"output": lambda out: out[:, : len(out) - 2]}, ValueError, r"\(2,\).*\(1,\)"),
        (pd.DataFrame(X.numpy()), {}, TypeError, r"x .*DataFrame: give x\.to_numpy"),
        (X, {"batch_size": 0}, ValueError, "batch_size.*0"),
        (X, {"vectorize": "yes"}, ValueError, "vectorize.*'yes'"),
        (X, {"targets": 1}, ValueError, "targets.*1"),
        (X, {"cumulative": 1}, TypeError, "cumulative.*1"),
        (X, {"log": None}, TypeError, "log.*None"),
        (X, {"log": True, "output": "regression"}, ValueError, "log=True.*'regression'"),
        (X, {"class_axis": 1, "output": "multilabel"}, ValueError, "class_axis=1"),
        (X, {"sample_chunk": 1.0}, TypeError, "sample_chunk.*1.0"),
        (X, {"num_samples": 6}, ValueError, "num_samples.*6"),
        (X, {"output": "logits"}, ValueError, "output.*'logits'"),
        (X, {"output": lambda logits: logits.sum(0)}, ValueError, r"output.*\(3,\)"),
        (X, {"class_axis": 2}, ValueError, r"class_axis=2.*\(7, 3\)"),
        (X, {"class_axis": 0}, ValueError, "class_axis=0"),
        (X, {"class_axis": 1.0}, TypeError, r"class_axis.*1\.0"),
        (X, {"class_axis": 1, "output": "regression"}, ValueError, "class_axis=1"),
        (X, {"noise": 0.1}, ValueError, r"noise=0\.1.*'softmax'"),
        (X, {"noise": -1.0, "output": "regression"}, ValueError, r"noise.*-1\.0"),
        (X, {"noise": "std", "output": "regression"}, ValueError, "noise.*'std'"),
        (X, {"noise": "scale", "output": "regression"}, ValueError, r"noise='scale'.*\(7, 3\)"),
        (X, {"noise": torch.ones(2), "output": "regression"}, ValueError, r"noise.*\(2,\).*\(7, 3\)"),
        (X, {"noise": -torch.ones(3), "output": "regression"}, ValueError, "noise"),
    ],
)
def test_predicting(x, options, error, named):
    refuse(lambda: outputs(3)[0].predict(x, **options), error, named)


@pytest.mark.parametrize(
    ("width", "wrap", "options", "named"),
    [
        (1, lambda o: o, {}, r"\(7, 1\).*output='binary' .*output='regression'"),
        (1, lambda o: o[:, 0], {}, r"\(7,\).*output='binary'"),
        (6, lambda o: o.view(-1, 3, 2), {}, r"\(7, 3, 2\).*class_axis=1"),
        (3, lambda o: o.view(-1, 3, 1), {"class_axis": -1}, "output='binary' with class_axis=-1"),
        (2, lambda o: o, {"output": "binary"}, r"\(7, 2\): output='softmax'"),
        (2, lambda o: (o, o), {}, r"a tuple of 2 \(\(7, 2\), \(7, 2\)\).*select=0"),
        (2, lambda o: {"a": o, "b": o}, {}, "a dict with 'a', 'b'.*select='a'"),
        (2, lambda o: {"a": o, "b": o}, {"select": "c"}, "select='c'.*a dict with 'a'"),
        (2, lambda o: (o, o), {"output": "regression"}, "noise='variance', 'log_variance' or 'scale' .*select=0"),
        (4, lambda o: (o[:, :1], o[:, 1:]), {"output": "regression", "noise": "scale"}, r"\(\(7, 1\), \(7, 3\)\)"),
        (2, lambda o: -o.abs(), {"output": "regression", "noise": "scale"}, "scale that is not above 0"),
        (2, lambda o: -o.abs(), {"output": "regression", "noise": "variance"}, "not above 0 .*noise='log_variance'"),
        (3, lambda o: ("text", o), {"select": 0}, "select=0 .*str"),
        (3, lambda o: o.argmax(1), {"output": "regression"}, r"torch\.int64"),
    ],
)
def test_outputs_that_do_not_fit_are_refused_with_what_does(width, wrap, options, named):
    error = TypeError if "str" in named or "int64" in named else ValueError
    for vectorize in (None, False):
        samples = outputs(width, wrap)[0]
        use = samples.uncertainty if options.get("output") == "regression" else samples.predict
        refuse(lambda use=use, vectorize=vectorize: use(X, vectorize=vectorize, **options), error, named)


def given(index, **changes):
    """A collection of two states, one of which is changed."""
    states = [normed().state_dict() for _ in range(2)]
    states[index] = {**states[index], **changes}
    return SampleCollection.from_samples(normed(), states)


def draws(model, value, count=2):
    @contextlib.contextmanager
    def draw():
        model.weight[0, 0] = value
        yield

    return SampleCollection.from_draws(model, draw, count)


def collected(model=None, steps=3, **options):
    return collect(model, steps, **options)[2]


class ExtraState(nn.Linear):
    """A layer whose state dict holds something that is no tensor."""

    def get_extra_state(self):
        return {"scale": 2.0}

    def set_extra_state(self, state):
        pass


def of(model):
    return SampleCollection.from_samples(model, [model.state_dict()])


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda: SampleCollection.from_samples(network(), []), ValueError, "samples"),
        (lambda: SampleCollection.from_samples(None, [{}]), TypeError, "model"),
        (lambda: SampleCollection.from_samples(network(), network().state_dict()), TypeError, r"\[network.state_dict"),
        (lambda: collected().save("x.safetensors", store_frozen="no"), ValueError, "store_frozen.*'no'"),
        (lambda: collected(normed(), buffers="reestimate").reestimate_buffers(X, targets=3), ValueError, "targets.*3"),
        (lambda: SampleCollection.load("samples", type(network())), TypeError, "model.*class Sequential"),
        (lambda: given(1, **{"0.weight": torch.zeros(2)}), ValueError, r"samples\[1\]: '0\.weight'.*\[2\].*\[8, 4\]"),
        (lambda: given(1, **{"0.bias": torch.full((8,), float("nan"))}), ValueError, r"samples\[1\]: '0\.bias'"),
        (lambda: given(1, **{"0.bias": torch.zeros(8, dtype=torch.complex64)}), TypeError, r"\['0\.bias'\].*complex64"),
        (lambda: SampleCollection.from_samples(normed(), [dict(normed().named_parameters())]), ValueError, "1.running"),
        (lambda: of(ExtraState(4, 3)), TypeError, r"samples\[0\]\['_extra_state'\] .*dict"),
        (lambda: draws(nn.Linear(4, 3), float("inf")), ValueError, r"samples\[0\]: 'weight'"),
        (lambda: draws(nn.Linear(4, 3), 1.0, 0), ValueError, "count.*0"),
        (lambda: SampleCollection.from_draws(network(), None, 2), TypeError, "sampled_params.*NoneType"),
        (lambda: SampleCollection.from_draws("network", None, 2), TypeError, "model.*str"),
        (lambda: collected().load_into("network", 0), TypeError, "model.*str"),
        (lambda: collected().load_into(network(), 3), IndexError, "index .*3 samples, got 3"),
        (lambda: collected().load_into(network(), "last"), TypeError, "'last'"),
        (lambda: collected().load_into(network(9), 0), ValueError, r"'0\.weight' has shape \(8, 4\)"),
        (lambda: collected().load_into(network().to("meta"), 0), ValueError, r"'0\.weight' is on the meta device"),
        (lambda: SampleCollection.merge([]), ValueError, "collections"),
        (lambda: SampleCollection.merge("a.safetensors"), TypeError, "collections.*list.*str"),
        (lambda: SampleCollection.merge(collected()), TypeError, "collections.*list"),
        (lambda: SampleCollection.merge([collected(), 3]), TypeError, r"collections\[1\].*int"),
        (lambda: SampleCollection.merge([collected(), collected(network(6))]), ValueError, r"collections\[1\]"),
        (lambda: SampleCollection.merge([collected(), collected(frozen())]), ValueError, r"'0\.weight' .* not in coll"),
        (lambda: SampleCollection.merge([collected(), collected(steps=0)]), ValueError, r"collections\[1\]"),
        (lambda: SampleCollection.merge(["a.safetensors"]), ValueError, r"model .*collections\[0\]"),
        (lambda: SampleCollection.merge([collected()], model=3), TypeError, "model.*int"),
        (
            lambda: SampleCollection.merge([collected(buffers="snapshot"), collected()]),
            ValueError,
            r"buffers='snapshot'.*collections\[1\]",
        ),
        (lambda: collected().to_arviz(parameters=["3.weight"]), ValueError, r"parameters .*'3\.weight'"),
        (lambda: collected().to_arviz(max_parameters=0), ValueError, "max_parameters.*0"),
        (lambda: to_arviz([collected(), collected(steps=2)]), ValueError, r"chains .*\[3, 2\]"),
        (lambda: collected().to_arviz(collected(network(9))), ValueError, r"chains\[1\]"),
        (lambda: collected(steps=0).to_arviz(), ValueError, "chains"),
        (lambda: of(normed()).reestimate_buffers(X), ValueError, "buffers='reestimate', got 'snapshot'"),
        (lambda: collected(normed(), buffers="reestimate").reestimate_buffers([]), ValueError, "data"),
        (lambda: collected(normed(), buffers="reestimate").reestimate_buffers(3), TypeError, "data.*int"),
        (lambda: collected(normed(), buffers="reestimate").reestimate_buffers(X, batch_size=3), ValueError, "data"),
        (lambda: constants((0.0, 1.0)).draws(X, output="regression"), ValueError, "noise="),
        (lambda: constants((0.0, 1.0)).draws(X, output=torch.sigmoid), ValueError, "draws .*output"),
        (lambda: constants((0.0, 1.0)).uncertainty(X, output=torch.sigmoid), ValueError, "uncertainty .*output"),
        (lambda: constants((0.0, 1.0)).predict_samples(X, classes=3), TypeError, "'classes'"),
        (
            lambda: constants((0.0, 1.0)).function_of_weights(X, log=True, output="regression"),
            ValueError,
            "log=True.*'regression'",
        ),
    ],
)
def test_collections(call, error, named):
    refuse(call, error, named)


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda: Chains([]), TypeError, r"networks.*\[\]"),
        (lambda: Chains([network(), "net"]), TypeError, "networks.*'str'"),
        (lambda: Chains([network(), network(9)]), ValueError, r"networks\[1\]"),
        (lambda: Chains([normed(), normed()]), ValueError, r"networks.*'1\.running_mean'"),
        (lambda: Chains([frozen(0), frozen(1)]), ValueError, r"networks\[1\].*'0\.weight'"),
        (lambda: Chains([network().requires_grad_(False)]), ValueError, "networks"),
        (lambda: Chains([network()] * 2, prior_precision=-1.0), ValueError, "prior_precision.*-1"),
        (lambda: Chains([network()] * 2, prior_precision="x"), TypeError, "prior_precision.*'x'"),
        (lambda: Chains([network()] * 2, prior_precision=torch.ones(3)), ValueError, "prior_precision"),
        (lambda: Chains([network()] * 2).precondition({"0.weight": torch.ones(1)}), ValueError, "scales.*'0.bias'"),
        (lambda: Chains([nn.Linear(2, 1, bias=False)]).precondition({"weight": -1.0}), ValueError, "'weight'.*-1"),
        (lambda: Chains([nn.Linear(2, 1, bias=False)]).precondition({"weight": torch.ones(3)}), ValueError, "'weight'"),
        (lambda: Chains([network()]).split(collected()), ValueError, "samples.*Sequential"),
        (lambda: Chains([network(), relu()]), ValueError, r"networks\[1\] has other layers.*ReLU"),
        (lambda: Chains([network(), frozen()]), ValueError, r"networks\[1\]: '0.bias' is not sampled"),
    ],
)
def test_chains(call, error, named):
    refuse(call, error, named)


def test_a_network_that_lost_a_tensor_since():
    model = network()
    prune.l1_unstructured(model[0], "weight", 0.5)
    posterior = SampleCollection.from_samples(model, [model.state_dict()])
    prune.remove(model[0], "weight")
    with pytest.raises(ValueError, match=r"hold '0\.weight_.*no longer has"):
        posterior.predict(X)
