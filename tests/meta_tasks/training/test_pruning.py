"""What fresh tasks say of a few vectors of meta-parameters, and which is the simplest that is good enough."""

import math

import pytest
import torch

from meta_tasks.inner_loop.schedule import Horizon
from meta_tasks.rules.learned import L2ERule
from meta_tasks.training.pruning import Candidate, compared, losses_on_fresh_tasks, sparsest
from tests.meta_tasks.toy_tasks import QuadraticFamily

HORIZON = Horizon(20, 40, samples=5)
RULE = L2ERule("residual", "adaptive", (4, 4), start=("average_0.9_to_rms", 1.0))


def losses(candidates, tasks=4, **changes):
    family = QuadraticFamily(lr=0.05, temperature=1.0)
    return torch.stack(list(losses_on_fresh_tasks(family, RULE, candidates, HORIZON, tasks=tasks, **changes)))


def test_candidates_meet_the_same_tasks_minibatches_and_noise():
    start = RULE.initial_weights(0)
    found = losses(torch.stack([start, start + 0.3, start]))
    assert found.shape == (4, 3)
    assert torch.equal(found[:, 0], found[:, 2])
    assert found[:, 0].ne(found[:, 1]).all()
    assert len(found[:, 0].unique()) == 4  # no task twice


def test_it_goes_on_where_another_run_ended():
    candidates = torch.stack([RULE.initial_weights(seed) for seed in (0, 1)])
    assert torch.equal(losses(candidates, first=3), losses(candidates)[3:])
    assert not torch.equal(losses(candidates, seed=1), losses(candidates))


def test_what_cannot_be_compared_is_named():
    with pytest.raises(ValueError, match=r"candidates must be \(k, n\), k vectors of meta-parameters, got \(5,\)"):
        losses(torch.zeros(5))
    with pytest.raises(ValueError, match="objective='stein_kl' has no value"):
        losses(torch.zeros(1, RULE.num_weights), objective="stein_kl")


def test_differences_are_paired():
    level = torch.tensor([0.0, 5.0, -3.0, 1.0])  # of the tasks: its spread is no error of a difference
    own = torch.tensor([[0.1, 0.3, 0.0], [0.1, 0.1, 0.0], [0.1, 0.3, 0.0], [0.1, 0.1, 0.0]])
    rows = compared(level[:, None] + own)
    assert [row.difference for row in rows] == pytest.approx([0.1, 0.2, 0.0], abs=1e-6)
    assert [row.error for row in rows] == pytest.approx([0.0, math.sqrt(0.04 / 3) / 2, 0.0], abs=1e-6)
    assert [row.loss for row in rows] == pytest.approx([0.85, 0.95, 0.75], abs=1e-6)


def test_a_candidate_that_fails_is_neither_the_best_nor_the_sparsest():
    found = torch.tensor([[0.0, 0.5, 0.4], [math.nan, 0.5, 0.4], [0.0, 0.3, 0.4], [0.0, 0.4, 0.4]])
    rows = compared(found)
    assert [row.failed for row in rows] == [1, 0, 0]
    assert rows[0].difference == pytest.approx(-0.4)
    assert rows[1].difference == pytest.approx(0.0)  # over the tasks that all have, beside the second or third
    assert sparsest(rows) == 1
    found[0] = math.nan
    found[2] = math.nan
    with pytest.raises(ValueError, match="of 4 tasks only 1 had a finite loss of every candidate"):
        compared(found)


def test_the_first_within_one_standard_error():
    for differences, chosen in (((0.3, 0.09, 0.0), 1), ((0.05, 0.2, 0.0), 0), ((0.3, 0.2, 0.0), 2)):
        rows = [Candidate(1.0 + each, each, 0.1 if each else 0.0, 0) for each in differences]
        assert sparsest(rows) == chosen
