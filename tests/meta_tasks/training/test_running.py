"""What `Trainer.run` refuses, and that a run that learns nothing says so."""

import warnings

import pytest
import torch

from meta_tasks.rules.classical import LearnableSGD
from tests.meta_tasks.training.test_trainer import trainer


class WithoutEffect(LearnableSGD):
    def prepare(self, weights):
        return super().prepare(torch.zeros_like(weights))


def test_no_time_begins_nothing():
    made = trainer(iterations=1)
    assert made.run(minutes=0) == "time is up"
    assert made.iteration == 0


def test_a_meta_gradient_that_stays_zero_is_told_once():
    made = trainer(iterations=8, rule=WithoutEffect())
    with pytest.warns(UserWarning, match=r"exactly 0 in 3 iterations in a row \(0 runs failed in the last\)") as told:
        made.run()
    assert len(told) == 1
    assert made.history["gradient_norm"] == [0.0] * 8
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer(iterations=2, rule=WithoutEffect()).run()  # two may be chance
        trainer(iterations=4).run()
