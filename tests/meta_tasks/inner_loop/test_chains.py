"""Chains on the tape: what compiled steps write over is no sample."""

import pytest
import torch

from meta_tasks.inner_loop import ChainUnroll, Schedule
from meta_tasks.objectives import SteinKL
from meta_tasks.rules.learned import MetaSGMCMCRule
from meta_tasks.tasks import GaussianFamily

TASK = GaussianFamily(dimensions=(2,), noise=0.0).task(0, 0)
RULE = MetaSGMCMCRule("signed", (5,))


@pytest.fixture
def weights():
    drawn = torch.randn(RULE.num_weights, generator=torch.Generator().manual_seed(0))
    return RULE.initial_weights(0) + 0.05 * drawn


@pytest.mark.parametrize("skipped", [40, 35])
def test_samples_of_a_skipped_stretch_are_the_states_that_the_chains_had(weights, skipped, monkeypatch):
    kept, gradients = [], []
    for native in ("0", "1"):
        monkeypatch.setenv("LEARNED_SAMPLERS_NATIVE", native)
        unroll = ChainUnroll(TASK, RULE, SteinKL, Schedule(60, 0, 10), [1, 2, 3, 4])
        unroll.advance(weights.expand(4, -1), skipped)
        gradients.append(unroll.backpropagate(weights, 60 - skipped, 5))
        kept.append(torch.stack(unroll.objective.kept))
    torch.testing.assert_close(kept[1], kept[0], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-3, atol=1e-3 * gradients[0].abs().max().item())


def test_samples_of_a_window_last_through_the_steps_after_it(weights):
    unroll = ChainUnroll(TASK, RULE, SteinKL, Schedule(60, 0, 10), [1, 2, 3, 4])
    unroll.backpropagate(weights, 20, 5)
    before = [each.clone() for each in unroll.objective.kept]
    unroll.advance(weights.expand(4, -1), 5)
    assert all(map(torch.equal, before, unroll.objective.kept))
