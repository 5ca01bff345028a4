"""Pairs of samples of networks so small that everything about them is known."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from learned_samplers import diagnostics, metrics
from learned_samplers.posterior import SampleCollection


class Product(nn.Module):
    """Logits (a·b·x, 0): changing both signs changes nothing, and between the two there is a hill."""

    def __init__(self, a=0.0, b=0.0):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.tensor(float(a))), nn.Parameter(torch.tensor(float(b)))

    def forward(self, x):
        return torch.cat([self.a * self.b * x, torch.zeros_like(x)], 1)


def collected(*models):
    return SampleCollection.from_samples(models[0], [model.state_dict() for model in models])


X, LABELS = torch.ones(3, 1), torch.zeros(3, dtype=torch.long)
SURE = 1 / (1 + math.exp(-4))  # the first two samples' probability of the label
SAMPLES = collected(Product(2, 2), Product(-2, -2), Product(2, -2))


def test_signs_that_change_nothing_are_another_mode_and_the_same_function():
    exploration = diagnostics.exploration(SAMPLES, X, LABELS)
    assert exploration.pairs == exploration.lines.pairs == [(0, 1), (0, 2), (1, 2)]
    assert exploration.separation.tolist() == [1, 2, 1]
    # In the middle of the first line both weights are zero; on the others one is fixed, and the loss is convex.
    assert exploration.barrier == pytest.approx([math.log(2) + math.log(SURE), 0, 0], abs=1e-6)
    assert exploration.cosine == pytest.approx([-1, 0, 0], abs=1e-12)
    assert exploration.disagreement.tolist() == [0, 1, 1]
    apart = (2 * SURE - 1) * math.log(SURE / (1 - SURE))
    assert exploration.kl == pytest.approx([0, apart, apart], abs=1e-6)
    gained = -0.5 * math.log(SURE * (1 - SURE)) - math.log(2)
    assert exploration.ambiguity == pytest.approx([0, gained, gained], abs=1e-6)


def test_the_cosine_is_that_of_the_ways_from_the_start():
    start = {"a": torch.tensor(2.0), "b": torch.tensor(0.0)}
    exploration = diagnostics.exploration(SAMPLES, X, LABELS, origin=start)
    assert exploration.cosine == pytest.approx([-4 / (2 * 20**0.5), -1, 4 / (2 * 20**0.5)])


def test_medians_over_pairs_and_at_each_separation():
    exploration = diagnostics.exploration(SAMPLES, X, LABELS)
    assert exploration.summary()["disagreement"] == 1
    assert exploration.summary()["barrier"] == pytest.approx(0, abs=1e-6)
    near, far = exploration.by_separation().values()
    assert near["disagreement"] == 0.5
    assert far["cosine"] == pytest.approx(0, abs=1e-12)


def test_other_chains_have_no_separation_in_steps():
    both = SampleCollection.merge([collected(Product(2, 2), Product(1, 2)), collected(Product(2, -2))])
    assert diagnostics.exploration(both, X, LABELS).separation.tolist() == [1, np.inf, np.inf]


def test_each_pair_has_the_metrics_of_its_two_samples():
    torch.manual_seed(0)
    samples = collected(*(nn.Linear(4, 3) for _ in range(4)))
    x, labels = 3 * torch.randn(30, 4), torch.randint(3, (30,))
    exploration = diagnostics.exploration(samples, x, labels)
    probs = samples.predict_samples(x)
    for k, (i, j) in enumerate(exploration.pairs):
        two = probs[[i, j]]
        assert exploration.kl[k] == pytest.approx(metrics.pairwise_kld(two), rel=1e-5)
        assert exploration.disagreement[k] == pytest.approx(metrics.disagreement(two))
        assert exploration.ambiguity[k] == pytest.approx(metrics.ambiguity(two, labels), rel=1e-4)
    assert exploration.barrier.max() < 1e-6  # of a convex loss


def test_one_logit_of_two_classes_may_lack_an_axis():
    models = [nn.Sequential(nn.Linear(1, 1), nn.Flatten(0)) for _ in range(3)]
    with_axis = [nn.Sequential(nn.Linear(1, 1), nn.Flatten(1)) for _ in range(3)]
    for model, twin in zip(models, with_axis, strict=True):
        twin.load_state_dict(model.state_dict())
    flat, usual = (
        diagnostics.exploration(collected(*networks), X, LABELS, output="binary") for networks in (models, with_axis)
    )
    assert flat.kl.tolist() == usual.kl.tolist()
    assert flat.barrier.tolist() == usual.barrier.tolist()


def test_some_lines_stand_for_all():
    few = diagnostics.exploration(SAMPLES, X, LABELS, max_lines=2)
    again = diagnostics.exploration(SAMPLES, X, LABELS, max_lines=2)
    assert few.lines.pairs == again.lines.pairs
    assert [pair in few.lines.pairs for pair in few.pairs] == (~np.isnan(few.barrier)).tolist()
    assert len(few.lines.pairs) == 2
    assert len(few.kl) == 3


def test_it_prints_as_one_line():
    result = diagnostics.exploration(collected(Product(2, 1), Product(-2, -1), Product(3, 1)), X, LABELS, max_lines=2)
    assert repr(result).startswith("Exploration of 3 pairs, 2 of them with lines; medians: cosine ")
    assert len(repr(result)) < 200
