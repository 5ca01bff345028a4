"""Refusals of diagnostics and plots: an error of its class that names the argument."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from learned_samplers import HMC, diagnostics, plots
from learned_samplers.posterior import SampleCollection
from tests.learned_samplers.diagnostics.test_landscape import at, double_well
from tests.learned_samplers.diagnostics.test_learning_coefficient import squared
from tests.learned_samplers.diagnostics.test_network_loss import LABELS, X
from tests.learned_samplers.posterior.common import collection, ensemble

DRAWS = np.ones((2, 10, 3))
PAIR = [at(-1, 0), at(1, 0)]
PROBS = torch.full((4, 2), 0.5)


def cosine(*samples):
    return diagnostics.cosine_similarity(list(samples))


def lines(samples=PAIR, loss=double_well, **options):
    return diagnostics.loss_lines(samples, loss, **options)


def unequal():
    """Chains of 4 and 5 samples, of different networks."""
    return [SampleCollection.from_samples(net, [net.state_dict()] * k) for k in (4, 5) for net in [nn.Linear(k, 1)]]


def loss(labels=LABELS, **options):
    return diagnostics.network_loss(collection(ensemble(lambda: nn.Linear(4, 2))), X, labels, **options)


def explore(count=2, **options):
    models = [nn.Linear(4, 2) for _ in range(count)]
    samples = SampleCollection.from_samples(models[0], [model.state_dict() for model in models])
    return diagnostics.exploration(samples, X, LABELS, **options)


def coefficient(**options):
    arguments = {"model": nn.Linear(3, 1), "loss": squared, "data": (torch.zeros(4, 3), torch.zeros(4, 1)), "lr": 0.1}
    return diagnostics.local_learning_coefficient(**{**arguments, **options})


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda: diagnostics.ess(DRAWS[:, :3]), ValueError, "draws.*4.*3"),
        (lambda: diagnostics.ess(DRAWS[0, :, 0]), ValueError, r"draws.*\(10,\)"),
        (lambda: diagnostics.ess(DRAWS, "tail"), ValueError, "method.*'tail'"),
        (lambda: diagnostics.ess("chain"), TypeError, "draws.*str"),
        (lambda: diagnostics.ess(DRAWS * 1j), TypeError, "draws.*complex128"),
        (lambda: diagnostics.ess(torch.ones(2, 10, dtype=torch.complex64)), TypeError, "draws.*complex64"),
        (lambda: diagnostics.ess(DRAWS * np.nan), ValueError, r"draws.*nan at \(0, 0, 0\)"),
        (lambda: diagnostics.ess_per_second(DRAWS, 0), ValueError, "seconds.*0"),
        (lambda: diagnostics.split_rhat(DRAWS[:1]), ValueError, "draws.*1"),
        (lambda: diagnostics.chainwise_rhat(DRAWS, 1), ValueError, "num_splits.*1"),
        (lambda: diagnostics.chainwise_rhat(DRAWS, 3), ValueError, "draws.*12.*10"),
        (lambda: diagnostics.split_rhat(unequal()), ValueError, r"draws\[1\]"),
        (lambda: diagnostics.cosine_similarity(3), TypeError, "samples.*int"),
        (lambda: cosine(torch.ones(2), 3), TypeError, r"samples\[1\].*int"),
        (lambda: cosine(at(1, 2), torch.ones(2)), TypeError, r"samples\[1\].*Tensor"),
        (lambda: diagnostics.cosine_similarity(PAIR, origin=torch.ones(2)), TypeError, "origin.*Tensor"),
        (lambda: cosine(torch.ones(2), torch.zeros(2)), ValueError, r"samples\[1\]"),
        (lambda: cosine(torch.ones(2), torch.ones(3)), ValueError, r"samples.*\[2, 3\]"),
        (lambda: cosine(), ValueError, "samples"),
        (lambda: cosine(at(1, 2), {"a": torch.ones(1), "c": torch.ones(1)}), ValueError, r"samples\[1\].*'b', 'c'"),
        (lambda: cosine(at(1, 2), {"a": torch.ones(2), "b": torch.ones(1)}), ValueError, r"samples\[1\].*shapes"),
        (lambda: diagnostics.cosine_similarity(PAIR, origin={"a": torch.ones(1)}), ValueError, "origin.*'b'"),
        (lambda: diagnostics.exploration(PAIR, X, LABELS), TypeError, "samples.*list.*from_samples"),
        (lambda: explore(max_lines=0), ValueError, "max_lines.*0"),
        (lambda: explore(num_points=2), ValueError, "num_points.*2"),
        (lambda: explore(origin=at(1, 2)), ValueError, "origin.*names"),
        (lambda: explore(count=1), ValueError, "samples.*1"),
        (lambda: lines(num_points=2), ValueError, "num_points.*2"),
        (lambda: lines(pairs=[(0, 2)]), ValueError, r"pairs.*\(0, 2\)"),
        (lambda: lines(PAIR[:1]), ValueError, "samples.*1"),
        (lambda: lines(3), TypeError, "samples.*int"),
        (lambda: lines(loss=3), TypeError, "loss.*int"),
        (lambda: lines(pairs=3), TypeError, "pairs.*3"),
        (lambda: lines(pairs=[3]), TypeError, r"pairs.*\[3\]"),
        (lambda: diagnostics.network_loss(PAIR, X, LABELS), TypeError, "samples.*list"),
        (lambda: lines([at(1, 2), {"a": torch.ones(2)}]), ValueError, "samples 0 and 1"),
        (lambda: lines(loss=lambda state: float("inf")), ValueError, r"loss.*inf .*t=0\.000"),
        (lambda: loss(kind="brier"), ValueError, "kind.*'brier'"),
        (lambda: loss(batch_size=0), ValueError, "batch_size.*0"),
        (lambda: loss(output="regression"), ValueError, "output.*'regression'"),
        (lambda: loss(LABELS[0]), ValueError, "labels.*10.*one number"),
        (lambda: loss(LABELS[:3]), ValueError, "labels.*10.*3"),
        (lambda: coefficient(sampler=HMC), TypeError, "sampler.*HMC"),
        (lambda: coefficient(sampler="SGLD"), TypeError, "sampler"),
        (lambda: coefficient(data=TensorDataset(X, LABELS)), TypeError, "data.*TensorDataset"),
        (lambda: coefficient(data=(torch.zeros(3, 3), torch.zeros(2, 1))), ValueError, "data"),
        (lambda: coefficient(localization=0.0), ValueError, "localization"),
        (lambda: coefficient(num_data=1), ValueError, "num_data"),
        (lambda: coefficient(num_chains=0), ValueError, "num_chains"),
        (lambda: coefficient(loss=3), TypeError, "loss.*int"),
        (lambda: coefficient(seed="0"), TypeError, "seed.*'0'"),
        (lambda: coefficient(seed=10**30), ValueError, "seed.*64 bits"),
        (lambda: coefficient(steps=0), ValueError, "steps"),
        (lambda: coefficient(batch_size=0), ValueError, "batch_size"),
        (lambda: coefficient(lr=-1.0), ValueError, "lr"),
        (lambda: coefficient(temperature=0.0), ValueError, "temperature"),
        (lambda: plots.reliability_diagram(PROBS, LABELS[:3]), ValueError, "labels"),
        (lambda: plots.cosine_similarity_map(np.ones((2, 3))), ValueError, "similarity.*K, K"),
        (lambda: plots.cosine_similarity_map([[2.0]]), ValueError, "similarity.*2"),
        (lambda: plots.loss_barriers({}), ValueError, "lines"),
        (lambda: plots.loss_barriers({"a": 1}), TypeError, r"lines\['a'\].*int"),
    ],
)
def test_refusals(call, error, named):
    with pytest.raises(error, match=named):
        call()
