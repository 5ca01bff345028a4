"""What a dry run times of a method."""

from dataclasses import replace

import pytest
import torch
from experiments.images import cost
from experiments.images.methods import METHODS
from experiments.images.settings import Settings

from learned_samplers.base import whitening
from meta_tasks.datasets import ImageData

SETTINGS = Settings(model="mlp", hidden=(4,), batch_size=8, steps=100)


def tiny():
    x, y = torch.rand(64, 1, 4, 4), torch.arange(64) % 4
    return ImageData("tiny", 4, x, y, x[:8], y[:8], x[:8], y[:8])


@pytest.mark.parametrize(
    ("method", "network", "steps", "roots"),
    [
        ("L2E", "default", whitening.ROOT_EVERY, 1),
        ("ScaleAdaptedL2E", "default", whitening.ROOT_EVERY, 1),
        ("L2E", "l2e", cost.STEPS - 1, 0),
        ("SGHMC", "default", cost.STEPS - 1, 0),
    ],
)
def test_the_steps_that_are_timed_have_the_share_of_roots_of_a_run(method, network, steps, roots, monkeypatch):
    """A step in which a covariance is decomposed costs many others; a run has one of them in ten."""
    timed = []
    run = cost.minibatch_run

    def counted(model, optimizer, data, steps, *arguments):
        made = []
        root = whitening._inverse_root
        monkeypatch.setattr(whitening, "_inverse_root", lambda covariance: made.append(1) or root(covariance))
        run(model, optimizer, data, steps, *arguments)
        monkeypatch.setattr(whitening, "_inverse_root", root)
        timed.append((steps, len(made)))

    monkeypatch.setattr(cost, "minibatch_run", counted)
    settings = replace(SETTINGS, l2e_network=network)
    assert cost.seconds_per_gradient(METHODS[method], settings, tiny()) > 0
    (_, first), (count, made) = timed
    matrices = 2
    assert (count, made) == (steps, roots * matrices)
    assert first == (whitening.AT_FIRST * matrices if roots else 0)
