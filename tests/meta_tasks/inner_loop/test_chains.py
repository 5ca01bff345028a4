"""Chains on the tape: what compiled steps write over and what chains that fail do leaves the others' gradient alone."""

import pytest
import torch

from meta_tasks.inner_loop import ChainUnroll, Schedule
from meta_tasks.rules.learned import MetaSGMCMCRule
from meta_tasks.tasks import GaussianFamily

TASK = GaussianFamily(dimensions=(2,), noise=0.0).task(0, 0)
RULE = MetaSGMCMCRule((5,))


@pytest.fixture
def weights():
    drawn = torch.randn(RULE.num_weights, generator=torch.Generator().manual_seed(0))
    return RULE.initial_weights(0) + 0.05 * drawn


class Stiff:
    """A task whose loss is so steep for the first of ``chains`` that it runs away from anywhere but the mode."""

    def __init__(self, task, chains):
        self.task, self.slope = task, torch.ones(chains)
        self.slope[0] = 1e4

    def __getattr__(self, name):
        return getattr(self.task, name)

    def loss_and_gradient(self, parameter, indices):
        loss, gradient = self.task.loss_and_gradient(parameter, indices)
        return loss * self.slope, gradient * self.slope[:, None]


@pytest.mark.parametrize("skipped", [40, 35])
def test_samples_of_a_skipped_stretch_are_the_states_that_the_chains_had(weights, skipped, monkeypatch):
    kept, gradients = [], []
    for native in ("0", "1"):
        monkeypatch.setenv("LEARNED_SAMPLERS_NATIVE", native)
        unroll = ChainUnroll(TASK, RULE, Schedule(60, 0, 10), [1, 2, 3, 4])
        unroll.advance(weights.expand(4, -1), skipped)
        gradients.append(unroll.backpropagate(weights, 60 - skipped, 5))
        kept.append(torch.stack(unroll.objective.kept))
    torch.testing.assert_close(kept[1], kept[0], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-3, atol=1e-3 * gradients[0].abs().max().item())


def test_samples_of_a_window_last_through_the_steps_after_it(weights):
    unroll = ChainUnroll(TASK, RULE, Schedule(60, 0, 10), [1, 2, 3, 4])
    unroll.backpropagate(weights, 20, 5)
    before = [sample.clone() for sample in unroll.objective.kept]
    unroll.advance(weights.expand(4, -1), 5)
    assert all(map(torch.equal, before, unroll.objective.kept))


def test_a_chain_that_has_failed_takes_no_gradient_from_the_others(weights):
    seeds = list(range(6))
    unroll = ChainUnroll(Stiff(TASK, 6), RULE, Schedule(240, 0, 10), seeds)
    others = ChainUnroll(TASK, RULE, Schedule(240, 0, 10), seeds[1:])
    for window in range(4):
        gradient, expected = (chains.backpropagate(weights, 60, 5) for chains in (unroll, others))
        if window == 0:
            assert gradient is None
        else:
            torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())
        assert unroll.failed_at == [60, -1, -1, -1, -1, -1]
        assert unroll.counts.tolist() == (~unroll.losses().isnan()).tolist() == [False, *[True] * 5]
        torch.testing.assert_close(unroll.parameter[1:], others.parameter)
