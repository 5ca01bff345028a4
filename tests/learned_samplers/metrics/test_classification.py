"""Metrics against computations by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from learned_samplers import metrics

PROBS = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4], [0.25, 0.5, 0.25]])
LABELS = torch.tensor([0, 1, 0, 2])


def random_probs(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(*shape, generator=generator, dtype=torch.float64)).softmax(-1).to(dtype)


def random_labels(count, classes, seed=1):
    return torch.randint(0, classes, (count,), generator=torch.Generator().manual_seed(seed))


def ece_by_hand(probs, labels, num_bins):
    total = 0.0
    confidence = probs.max(1).values.float().tolist()
    right = (probs.argmax(1) == labels).tolist()
    for b in range(num_bins):
        upper = math.inf if b == num_bins - 1 else (b + 1) / num_bins
        members = [n for n, c in enumerate(confidence) if b / num_bins <= c < upper]
        if members:
            gap = sum(right[n] for n in members) - sum(confidence[n] for n in members)
            total += abs(gap) / len(confidence)
    return total


def test_small_example_by_hand():
    scores = metrics.summary(PROBS, LABELS)
    assert scores["accuracy"] == 0.5
    assert scores["nll"] == pytest.approx(-math.log(0.7 * 0.8 * 0.3 * 0.25) / 4, rel=1e-6)
    rows = [0.3**2 + 0.2**2 + 0.1**2, 0.1**2 + 0.2**2 + 0.1**2, 0.7**2 + 0.3**2 + 0.4**2, 0.25**2 + 0.5**2 + 0.75**2]
    assert scores["brier"] == pytest.approx(sum(rows) / 4, rel=1e-6)
    # Confidences 0.7 (right), 0.8 (right), 0.4 (wrong), 0.5 (wrong) fall into four different bins.
    assert scores["ece"] == pytest.approx((0.3 + 0.2 + 0.4 + 0.5) / 4, rel=1e-6)
    assert list(scores) == ["accuracy", "nll", "ece", "brier"]
    assert all(type(score) is float for score in scores.values())
    assert metrics.summary(PROBS, LABELS, PROBS)["ood_auroc"] == 0.5
    for dtype in (torch.uint8, torch.uint16, torch.uint32, torch.uint64):
        assert metrics.accuracy(PROBS, LABELS.to(dtype)) == 0.5


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(1, 60),
    classes=st.integers(2, 7),
    num_bins=st.integers(1, 20),
    seed=st.integers(0, 1000),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16]),
    numpy=st.booleans(),
)
def test_properties(count, classes, num_bins, seed, dtype, numpy):
    probs, labels = random_probs(count, classes, seed=seed, dtype=dtype), random_labels(count, classes, seed)
    p, y = (probs.numpy(), labels.numpy()) if numpy and dtype != torch.bfloat16 else (probs, labels)
    exact = probs.double()
    assert metrics.accuracy(p, y) == pytest.approx((exact.argmax(1) == labels).double().mean().item(), abs=1e-6)
    assert metrics.nll(p, y) == pytest.approx(torch.nn.functional.nll_loss(exact.log(), labels).item(), rel=1e-9)
    onehot = torch.eye(classes, dtype=torch.float64)[labels]
    assert metrics.brier(p, y) == pytest.approx((exact - onehot).pow(2).sum(1).mean().item(), rel=1e-9)
    assert metrics.ece(p, y, np.int64(num_bins)) == pytest.approx(ece_by_hand(exact, labels, num_bins), abs=1e-5)
    bins = metrics.calibration_bins(p, y, num_bins)
    gaps = (bins.accuracy - bins.confidence).abs().nan_to_num() * bins.num_examples / count
    assert gaps.sum().item() == pytest.approx(metrics.ece(p, y, num_bins), abs=1e-5)


def test_certain_predictions_share_the_last_bin():
    # One bin: |mean accuracy − mean confidence| = |0.75 − 0.975|. A bin of its own for 1.0 would give 0.2625.
    probs = torch.tensor([[1.0, 0.0]] * 2 + [[0.95, 0.05]] * 2)
    labels = torch.tensor([0, 1, 0, 0])
    assert metrics.ece(probs, labels) == pytest.approx(0.225, abs=1e-6)
    bins = metrics.calibration_bins(probs, labels)
    assert bins.num_examples.tolist() == [0] * 14 + [4]
    assert bins.accuracy[-1] == 0.75
    assert bins.confidence[-1] == pytest.approx(0.975)


def test_zero_probability_costs_a_finite_and_stated_amount():
    probs = torch.tensor([[1.0, 0.0]])
    assert metrics.nll(probs, torch.tensor([1])) == pytest.approx(87.3365, abs=1e-3)
    assert metrics.nll(probs, torch.tensor([0])) == 0
    both = torch.tensor([[[1.0, 0.0]], [[0.5, 0.5]]])
    # KL([1,0] ‖ [½,½]) = log 2; the other way ½ log ½ + ½ (log ½ + 87.34).
    expected = (math.log(2) + 0.5 * math.log(0.5) + 0.5 * (math.log(0.5) + 87.3365)) / 2
    assert metrics.pairwise_kld(both) == pytest.approx(expected, abs=1e-3)


def test_pairwise_divergence_by_double_loop():
    probs = random_probs(5, 30, 4)
    pairs = [(p * (p / q).log()).sum(1).mean() for i, p in enumerate(probs) for j, q in enumerate(probs) if i != j]
    assert metrics.pairwise_kld(probs) == pytest.approx(torch.stack(pairs).mean().item(), rel=1e-10)
    assert metrics.pairwise_kld(probs[:1].expand(3, -1, -1)) == pytest.approx(0, abs=1e-12)
    many = random_probs(2, 5000, 3)  # more than one block of examples
    halves = (metrics.pairwise_kld(many[:, :2500]) + metrics.pairwise_kld(many[:, 2500:])) / 2
    assert metrics.pairwise_kld(many) == pytest.approx(halves, rel=1e-10)


def test_disagreement_by_double_loop():
    probs = random_probs(5, 40, 3)
    best = probs.argmax(-1)
    pairs = [(a != b).double().mean().item() for i, a in enumerate(best) for j, b in enumerate(best) if i != j]
    assert metrics.disagreement(probs) == pytest.approx(np.mean(pairs), rel=1e-12)
    assert metrics.disagreement(torch.eye(3)[:, None]) == 1


def test_what_two_samples_know_of_each_other():
    """Certain of opposite classes, half sure of both, and certain of the same: log 2, 0 and 0 nats."""
    samples = torch.tensor([[[1.0, 0], [0.5, 0.5], [1, 0]], [[0, 1.0], [0.5, 0.5], [1, 0]]])
    information = metrics.mutual_information(samples)
    assert information.tolist() == pytest.approx([math.log(2), 0, 0], abs=1e-12)
    # −½ log 0.9 − ½ log 0.2 less −log 0.55.
    gained = metrics.ambiguity(torch.tensor([[[0.9, 0.1]], [[0.2, 0.8]]]), torch.tensor([0]))
    assert gained == pytest.approx(math.log(0.55) - 0.5 * math.log(0.9 * 0.2))
    probs, labels = random_probs(6, 50, 4), random_labels(50, 4)
    single = np.mean([metrics.nll(sample, labels) for sample in probs])
    assert metrics.ambiguity(probs, labels) == pytest.approx(single - metrics.nll(probs.mean(0), labels))


def test_information_tells_strangers_where_confidence_does_not():
    """Samples that are half sure together, and samples that are sure of different classes: the average is the same."""
    together, apart = torch.full((2, 5, 2), 0.5), torch.eye(2)[:, None].expand(2, 7, 2)
    assert metrics.ood_auroc(together.mean(0), apart.mean(0)) == 0.5
    assert metrics.information_auroc(together, apart) == 1
    inside, outside = random_probs(4, 60, 3), random_probs(4, 70, 3, seed=1)
    information = [*metrics.mutual_information(inside), *metrics.mutual_information(outside)]
    expected = roc_auc_score([0] * 60 + [1] * 70, [float(value) for value in information])
    assert metrics.information_auroc(inside, outside) == pytest.approx(expected, abs=1e-6)


def test_agreement_and_total_variation():
    reference = torch.tensor([[0.6, 0.3, 0.1], [0.5, 0.4, 0.1], [0.3, 0.3, 0.4], [0.25, 0.5, 0.25]])
    assert metrics.agreement(PROBS, reference) == 0.75
    assert metrics.total_variation(PROBS, reference) == pytest.approx((0.1 + 0.4) / 4, abs=1e-6)
    assert metrics.total_variation(torch.eye(3), torch.eye(3).roll(1, 0)) == 1
    assert metrics.agreement(PROBS, PROBS) == 1


@pytest.mark.parametrize("levels", [5, 1000])
def test_area_under_the_curve_counts_pairs(levels):
    generator = np.random.default_rng(0)
    inside = np.ceil(generator.beta(4, 1, 200) * levels) / levels * 0.4 + 0.6  # few levels: many ties
    outside = np.ceil(generator.beta(2, 2, 150) * levels) / levels * 0.4 + 0.6
    value = metrics.ood_auroc(np.stack([inside, 1 - inside], 1), np.stack([1 - outside, outside], 1))
    wins = (inside[:, None] > outside).mean() + 0.5 * (inside[:, None] == outside).mean()
    # torchmetrics sums the curve in float32.
    assert value == pytest.approx(wins, abs=1e-6)
    assert value == pytest.approx(roc_auc_score([1] * 200 + [0] * 150, np.concatenate([inside, outside])), abs=1e-6)


@pytest.mark.parametrize("shape", [(6,), (6, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_probabilities_of_one_class_of_two(shape, dtype):
    p = torch.tensor([0.9, 0.2, 0.6, 0.45, 1.0, 0.0]).to(dtype)
    both, labels = torch.stack([1 - p.double(), p.double()], 1), torch.tensor([1, 0, 0, 1, 1, 0])
    assert metrics.summary(p.view(shape), labels) == metrics.summary(both, labels)
    assert metrics.accuracy(p.view(shape), labels) == pytest.approx(4 / 6)
    assert metrics.ood_auroc(p.view(shape), p.view(shape)) == 0.5
    assert metrics.total_variation(p.view(shape), both) == 0
    assert metrics.conformal_threshold(p.view(shape), labels, 0.5) == metrics.conformal_threshold(both, labels, 0.5)
    assert metrics.with_temperature(p.view(shape), 2).shape == (6, 2)
    draws = torch.stack([p, 1 - p])
    expected = metrics.pairwise_kld(torch.stack([1 - draws.double(), draws.double()], -1))
    assert metrics.pairwise_kld(draws.unsqueeze(-1)) == pytest.approx(expected)


@pytest.mark.parametrize(("dtype", "allowed"), [(torch.bfloat16, 4e-3), (torch.float16, 5e-4), (torch.float32, 5e-4)])
def test_rows_may_sum_to_one_as_closely_as_their_dtype_allows(dtype, allowed):
    probs = random_probs(500, 40, dtype=dtype)
    off = (probs.double().sum(1) - 1).abs().max().item()
    if dtype == torch.bfloat16:
        assert off > metrics.TOLERANCE, "refused before"
    labels = random_labels(500, 40)
    exact = metrics.nll(random_probs(500, 40), labels)
    assert metrics.nll(probs, labels) == pytest.approx(exact, rel=1e-2)
    row = torch.tensor([[0.5, 0.25, 0.25]], dtype=torch.float64)
    metrics.accuracy((row * (1 + allowed)).to(dtype), torch.tensor([0]))
    with pytest.raises(ValueError, match="row 0"):
        metrics.accuracy((row * (1 + 8 * allowed)).to(dtype), torch.tensor([0]))


def test_equal_samples_have_no_ambiguity():
    """Rounding alone makes some of these −4e-16."""
    labels, ambiguities = torch.zeros(50, dtype=torch.long), []
    for seed in range(20):
        stream = torch.Generator().manual_seed(seed)
        probs = torch.softmax(torch.randn(50, 7, dtype=torch.float64, generator=stream), 1)
        ambiguities += [metrics.ambiguity(probs.expand(count, -1, -1), labels) for count in range(2, 12)]
    assert min(ambiguities) == 0
    assert max(ambiguities) < 1e-12
