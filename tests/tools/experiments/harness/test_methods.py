"""Names of methods on the command line, in any letter case."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import pytest
import torch
import tyro
from experiments.bandits.posteriors import METHODS as BANDIT_METHODS
from experiments.function_space.uci import RATES as REGRESSION_METHODS
from experiments.harness.options import one_of
from experiments.harness.runs.methods import METHODS as RUN_METHODS
from experiments.harness.runs.settings import Settings
from experiments.harness.runs.trials import candidates
from experiments.multi_task.methods import METHODS as TASK_METHODS

import learned_samplers


@dataclass(frozen=True)
class Options:
    """Some methods."""

    # Methods.
    sampler: tuple[Annotated[str, one_of(("SGHMC", "CyclicalSGMCMC"))], ...] = ("SGHMC",)
    # A value that is spelt as it is.
    network: str = "sghmc"


@pytest.mark.parametrize(
    "words", [("SGHMC", "CyclicalSGMCMC"), ("sghmc", "cyclicalsgmcmc"), ("Sghmc", "CYCLICALSGMCMC")]
)
def test_letter_case_does_not_matter(words):
    options = tyro.cli(Options, args=["--sampler", *words, "--network", "l2E"])
    assert options == Options(("SGHMC", "CyclicalSGMCMC"), "l2E")


def test_an_unknown_name_is_refused_with_the_known_ones(capsys):
    with pytest.raises(SystemExit):
        tyro.cli(Options, args=["--sampler", "sgd"])
    said = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert "Error parsing --sampler" in said
    assert "{SGHMC,CyclicalSGMCMC}" in said
    with pytest.raises(ValueError, match="'sgd' is unknown; choose from SGHMC, CyclicalSGMCMC"):
        one_of(("SGHMC", "CyclicalSGMCMC")).instance_from_str(["sgd"])


@pytest.mark.parametrize("methods", [RUN_METHODS, TASK_METHODS, REGRESSION_METHODS, BANDIT_METHODS])
def test_no_two_methods_have_the_same_name_in_any_case(methods):
    assert len({name.lower() for name in methods}) == len(methods)


@pytest.mark.parametrize("name", ["AdaptedAsItComes", "AdaptedL2EAsItComes"])
def test_a_method_as_it_comes_has_one_setting_and_the_librarys_defaults(name):
    method = RUN_METHODS[name]
    shape = {"model": "mlp", "hidden": (2,)}
    settings = Settings(temperature=0.1, prior_precision=2.0, batch_size=10, steps=100, epochs=None, **shape)
    rate, weight = method.rate(settings, 50), torch.zeros(3, 2, requires_grad=True)
    (setting,) = candidates(method, 8, 4, {"temperature": (1.0, 0.1), "burn_in": (0.5, 0.9)}, rate)
    made = method.build([{"params": [weight]}], method.plan(settings, setting.lr, 50, 100))
    usual = learned_samplers.AdaptedSGHMC([weight], num_data=50, total_steps=100, temperature=0.1)
    theirs, ours = usual.param_groups[0], made.param_groups[0]
    changed = {key for key in ours if key != "params" and ours[key] != theirs[key]}
    assert changed == {"prior_precision", "settling_share"}
    assert ours["temperature"] == 0.1
    filled = method.settings(settings, 50)
    assert filled.burn_in * 100 == ours["warmup_steps"]  # all that it samples is collected, and nothing before
    with pytest.raises(ValueError, match=f"{name}.*13 gradients, got 12"):
        method.settings(replace(settings, steps=12), 50)


@pytest.mark.parametrize("name", ["AdaptedWhitenedSGHMC", "PlannedWhitenedSGHMC"])
def test_an_unlearned_warmup_is_tuned_with_the_chain(name):
    settings = Settings(batch_size=10, steps=100, epochs=None, model="mlp", hidden=(2,))
    weight = torch.zeros(3, 2, requires_grad=True)
    for lr in (0.003, 0.006):
        made = RUN_METHODS[name].build([{"params": [weight]}], RUN_METHODS[name].plan(settings, lr, 50, 100))
        assert made.explorer.optimizer.param_groups[0]["lr"] == pytest.approx(lr / 1.5)
