"""The tallies of HMC and MCLMC: they move with the update, and a saved one is checked."""

import copy
import math

import pytest

from learned_samplers.base.guards.broken_off import Attempt
from tests.harness import closure_for, running


@pytest.mark.parametrize("name", ["HMC", "MCLMC", "MCLMC-noise"])
def test_an_interruption_between_evaluation_and_update_changes_nothing(name, monkeypatch):
    def interrupt(attempt, evaluation):
        raise KeyboardInterrupt

    model, sampler, unchanged = running(name)
    monkeypatch.setattr(Attempt, "begins_update", interrupt)
    with pytest.raises(KeyboardInterrupt):
        sampler.step(closure_for(model, sampler))
    assert unchanged()


@pytest.mark.parametrize(
    ("name", "spoil", "said"),
    [
        ("HMC", lambda group: group.pop("tally"), "tally must be a dict, got None"),
        ("HMC", lambda group: group.update(tally={}), "tally lacks accepted, average"),
        ("HMC", lambda group: group["tally"].update(accepted=-1), "finite number in accepted, got -1"),
        ("HMC", lambda group: group["tally"].update(lr_factor="x"), "finite number in lr_factor"),
        ("MCLMC", lambda group: group.update(tally=3), "tally must be a dict, got 3"),
        ("MCLMC", lambda group: group["tally"].pop("ahead"), "tally lacks ahead"),
        ("MCLMC", lambda group: group["tally"].update(ahead=2.0), "lists of finite numbers in ahead"),
        ("MCLMC", lambda group: group["tally"].update(squares=[math.nan]), "lists of finite numbers in squares"),
        ("MCLMC", lambda group: group["tally"].update(count=True), "finite number in count"),
    ],
)
def test_a_broken_tally_is_refused_and_nothing_changes(name, spoil, said):
    _, sampler, unchanged = running(name)
    saved = copy.deepcopy(sampler.state_dict())
    spoil(saved["param_groups"][0])
    with pytest.raises(ValueError, match=said):
        sampler.load_state_dict(saved)
    assert unchanged()
