"""The lean form of L2E: it computes the paper's form of a linear network, and its gain is one number of a tensor."""

import json
from dataclasses import replace

import pytest
import torch
from experiments.meta_training import lean
from experiments.meta_training.lean_rule import START, LeanRule

from meta_tasks.estimators.base import perturbation
from meta_tasks.inner_loop import Horizon, Run, Schedule, unrolls_of
from meta_tasks.objectives import BMALoss
from meta_tasks.rules.learned import L2ERule
from tests.meta_tasks.toy_tasks import image_task

#: Tasks that differ in all that a batch may mix.
TASKS = ({"lr": 0.02, "prior_precision": 3.0}, {"lr": 0.05, "temperature": 0.5, "num_data": 23})


def parameters(rule, weights):
    """Parameters of the members after 20 steps, side by side."""
    runs = [Run(image_task("mlp", {"hidden": (6,)}, seed=i, **options), rule, (i,)) for i, options in enumerate(TASKS)]
    ((_, unroll),) = unrolls_of(runs, BMALoss, Schedule(20, 10, 5))
    unroll.advance(weights)
    return unroll.parameter


def test_without_a_gain_it_is_the_papers_form_of_a_linear_network():
    rule, paper = LeanRule(), L2ERule("paper", "paper", (), alpha_scale=0.0, beta_scale=START)
    w = 0.3 * torch.randn(4, 9, generator=torch.Generator().manual_seed(0))
    lean = torch.cat([w, torch.zeros(4, 6)], 1)
    network = torch.zeros(4, 2, 9)
    network[:, 1] = w
    network[:, 1, 2] += 1.0
    theirs = parameters(paper, torch.cat([network.flatten(1), torch.zeros(4, 2)], 1))
    torch.testing.assert_close(parameters(rule, lean), theirs, rtol=2e-3, atol=2e-4)
    lean[:, 0] += 0.01  # the fault
    assert not torch.allclose(parameters(rule, lean), theirs, rtol=2e-3, atol=2e-4)


def test_a_constant_gain_scales_the_velocity():
    louder, scaled = torch.zeros(4, 15), torch.zeros(4, 15)
    louder[:, 14] = 0.5
    scaled[:, 2] = torch.e**0.5 - 1  # at the start all of β is r̂
    torch.testing.assert_close(parameters(LeanRule(), louder), parameters(LeanRule(), scaled), rtol=2e-3, atol=2e-4)


@pytest.fixture
def digits_alone(monkeypatch):
    """The protocol on the digits, which need no files, with four tasks and short runs."""
    small = dict(TASKS=4, STEPS=20, HORIZON=Horizon(20, 20, 5, 0.5), CHAINS=2, PRECISIONS=(1.0, 3.0), RATES=(0.1,))
    names = dict(IMAGES=("digits",), TABLES=("digits",), HELD_OUT={"digits": lean.HELD_OUT["digits"]})
    for name, value in {**small, **names}.items():
        monkeypatch.setattr(lean, name, value)


def test_a_run_goes_on_from_its_folder_and_keeps_its_differences_to_sghmc(digits_alone, tmp_path):
    for iterations in (1, 2):
        run = lean.trainer(tmp_path, iterations)
        assert run.run() == "finished"
        run.close()
    assert run.iteration == 2
    assert len(run.history["loss"]) == 2
    assert run.averaged.count_nonzero() == LeanRule.num_weights
    mean, error = run.scores["sampler"][0]["tasks"]["digits"]
    best = json.loads((tmp_path / "sghmc.json").read_text())["digits"]
    config = replace(lean.held_out_config("digits"), prior_precision=best["prior_precision"])
    theirs = (
        lean.losses(LeanRule(), torch.zeros(15), [config], "digits", 2)[0].log() - torch.tensor(best["losses"]).log()
    )
    assert mean == pytest.approx(theirs.mean().item(), abs=1e-6)
    assert error == pytest.approx(theirs.std().item() / 2**0.5, abs=1e-6)


def test_what_diverges_has_a_loss():
    estimator = lean.LeanES(0.1, 1, lean.HORIZON)
    losses = torch.tensor([[torch.nan, 1.0]])
    step = perturbation(0, (0, 0), 0.1, 3).double()
    expected = (lean.FAILED - 1.0) / ((lean.FAILED + 1.0) / 2) / (2 * 0.1**2) * step
    torch.testing.assert_close(estimator.gradient(0, [(0, 0)], losses, 3), expected)
