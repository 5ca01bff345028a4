"""BatchBALD against the mutual information of labels and weights, enumerated."""

import itertools

import pytest
import torch

from learned_samplers import metrics


def sample_probs(samples=6, examples=7, classes=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(samples, examples, classes, generator=generator).double()).softmax(-1)


def information(p, chosen):
    """I(y of the chosen; θ), by all labellings."""
    joint = torch.stack(
        [
            torch.stack([p[:, n, label] for n, label in zip(chosen, labels, strict=True)]).prod(0)
            for labels in itertools.product(range(p.shape[2]), repeat=len(chosen))
        ]
    )  # (labelling, sample)
    entropy = torch.special.entr
    return (entropy(joint.mean(1)).sum() - entropy(joint).sum(0).mean()).item()


@pytest.mark.parametrize("seed", range(5))
def test_it_is_greedy_in_the_joint_information(seed):
    p = sample_probs(seed=seed)
    chosen = []
    for _ in range(4):
        left = [n for n in range(7) if n not in chosen]
        chosen.append(max(left, key=lambda n: information(p, [*chosen, n])))
    assert metrics.batch_bald(p, 4).tolist() == chosen


def test_the_best_scores_alone_are_copies_and_are_not_taken():
    p = sample_probs(examples=6)
    best = int(metrics.mutual_information(p).argmax())
    copies = torch.cat([p, p[:, best : best + 1], p[:, best : best + 1]], 1)
    top = set(metrics.mutual_information(copies).topk(3).indices.tolist())
    assert top == {best, 6, 7}
    assert len(top & set(metrics.batch_bald(copies, 3).tolist())) == 1


def test_draws_of_labels_choose_as_well_as_all_of_them():
    generator = torch.Generator().manual_seed(0)
    p = sample_probs(samples=20, examples=12)
    exact = metrics.batch_bald(p, 5)
    drawn = metrics.batch_bald(p, 5, num_labellings=80, generator=generator)
    again = metrics.batch_bald(p, 5, num_labellings=80, generator=torch.Generator().manual_seed(0))
    assert drawn.tolist() == again.tolist()
    best = information(p, exact.tolist())
    assert information(p, drawn.tolist()) > 0.97 * best
    worst = metrics.mutual_information(p).topk(5, largest=False).indices
    assert information(p, worst.tolist()) < 0.9 * best


def test_all_examples_can_be_chosen_each_once():
    assert sorted(metrics.batch_bald(sample_probs(), 7, num_labellings=30).tolist()) == list(range(7))


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda p: metrics.batch_bald(p, 8), ValueError, "count.*7 examples.*8"),
        (lambda p: metrics.batch_bald(p, 0), ValueError, "count.*0"),
        (lambda p: metrics.batch_bald(p[0], 1), ValueError, "sample_probs"),
        (lambda p: metrics.batch_bald(p, 1, num_labellings=0.5), TypeError, "num_labellings"),
    ],
)
def test_what_it_refuses(call, error, named):
    with pytest.raises(error, match=named):
        call(sample_probs())
