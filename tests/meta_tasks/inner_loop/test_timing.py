"""The timing of an inner loop: what it measures, and that it changes nothing."""

import torch

from meta_tasks.inner_loop import Schedule, Unroll
from meta_tasks.inner_loop.timing import time_unroll
from meta_tasks.objectives import BMALoss
from meta_tasks.rules.classical import SGHMCRule
from tests.meta_tasks.toy_tasks import image_task


def test_shares_add_up_and_the_steps_are_those_of_an_untimed_run():
    timed, plain = (Unroll(image_task(lr=0.05), SGHMCRule(), BMALoss, Schedule(12, 6, 2), [1, 2]) for _ in range(2))
    timing = time_unroll(timed, torch.zeros(4, 0), 12)
    plain.advance(torch.zeros(4, 0), 12)
    assert torch.equal(timed.parameter, plain.parameter)
    assert set(timing.shares) == {"gradient", "rule", "noise", "other"}
    assert all(0 < share < 1 for share in timing.shares.values())
    assert abs(sum(timing.shares.values()) - 1) < 1e-6
    assert timing.member_steps_per_second > 0
    assert "loss_and_gradient" not in vars(timed.task)  # what was measured is as it was
