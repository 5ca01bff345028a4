"""Statistics of a comparison against known numbers."""

import math

import numpy as np
import pytest
import torch
from experiments.compare.report import losses, paired
from experiments.harness.run_store import RunStore
from experiments.harness.runs.result import Result

from learned_samplers import metrics


def results(nlls, name="SGHMC"):
    """One run a seed; None is a run that diverged."""
    return [
        Result(name, 0.1, seed, {}, scores={} if nll is None else {"nll": nll}, diverged="so" if nll is None else None)
        for seed, nll in enumerate(nlls)
    ]


def test_differences_are_paired_by_seed():
    found = paired(results([1.0, 2.0, 3.0, None]), results([0.9, 1.8, None, 5.0]))
    assert found["mean"] == pytest.approx(0.15), "of the two seeds that both have finished"
    assert found["error"] == pytest.approx(np.std([0.1, 0.2], ddof=1) / 2**0.5)
    assert paired(results([1.0]), results([0.5])) == {"mean": 0.5, "error": None}
    assert paired(results([None]), results([0.5])) is None
    # Seeds that are good and bad for both methods alike leave no error, where unpaired ones would.
    found = paired(results([1.0, 2.0, 3.0]), results([0.9, 1.9, 2.9]))
    assert found == {"mean": pytest.approx(0.1), "error": pytest.approx(0, abs=1e-12)}


LABELS = torch.tensor([0, 1, 0])


def with_predictions(folder, name, seeds):
    """Runs whose predictions of three images are on disk; None is a run that diverged."""
    runs = results([None if test is None else metrics.nll(test, LABELS) for test in seeds], name)
    for result, test in zip(runs, seeds, strict=True):
        if test is not None:
            RunStore(folder).write_tensors(result.name, "predictions", {"test": test, "test_labels": LABELS})
    return runs


def of_losses(values):
    true = torch.tensor(values).neg().exp()
    return torch.stack([torch.where(k == LABELS, true, 1 - true) for k in range(2)], -1)


def test_the_error_of_the_images_is_that_of_their_mean_difference(tmp_path):
    """Two seeds a method, three images whose log-probabilities are known."""
    ours = with_predictions(tmp_path, "L2E", [of_losses([0.1, 0.2, 0.6]), of_losses([0.3, 0.4, 0.8])])
    theirs = with_predictions(tmp_path, "SGHMC", [of_losses([0.5, 0.1, 0.2]), of_losses([0.7, 0.1, 0.2])])
    expected = np.std([0.2 - 0.6, 0.3 - 0.1, 0.7 - 0.2], ddof=1) / np.sqrt(3)
    assert paired(ours, theirs, tmp_path)["image_error"] == pytest.approx(expected, rel=1e-5)


def test_the_error_of_the_images_is_of_the_losses_that_the_table_has_and_of_the_seeds_that_are_paired(tmp_path):
    sure, split = torch.tensor([[0.9, 0.1], [1.0, 0.0], [0.8, 0.2]]), torch.tensor([[0.6, 0.4], [0.5, 0.5], [0.3, 0.7]])
    ours = with_predictions(tmp_path, "L2E", [sure, split])
    theirs = with_predictions(tmp_path, "SGHMC", [split, None])
    assert losses(ours[:1], tmp_path).mean().item() == pytest.approx(ours[0].scores["nll"]), "a probability of 0"
    difference, found = losses(ours[:1], tmp_path) - losses(theirs, tmp_path), paired(ours, theirs, tmp_path)
    assert found["mean"] == pytest.approx(difference.mean().item())
    expected = difference.std().item() / math.sqrt(3)
    assert found["image_error"] == pytest.approx(expected), "of the first seed alone"
