"""compare.py --given: settings that a command names are what is tried, and what cannot be meant is refused."""

from pathlib import Path

import compare
import pytest
import torch
from experiments.images.given import count_given, given_settings
from experiments.images.methods import METHODS, Setting
from experiments.images.options import CompareOptions, parse_compare

from tests.tools.compare_cases import SMALL, TINY, numbers

GIVEN = SMALL[4:]  # without a balanced choice
ONE_EACH = ("SGHMC:lr=.1", "SGD:lr=.1")


@pytest.fixture(autouse=True)
def _restore_threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_settings_are_read_for_their_method_in_the_order_of_what_it_tunes():
    given = (
        "sghmc:lr=.05, momentum-decay=.1,temperature=1",
        "SGD:lr=0.1,weight_decay=5e-4",
        "SGHMC:burn_in=.8,lr=.2",
        "SGD:lr=0.1,prior-precision=20",
    )
    assert given_settings(given, METHODS["SGHMC"], 400) == [
        Setting(0.05, (("temperature", 1.0), ("momentum_decay", 0.1))),
        Setting(0.2, (("burn_in", 0.8),)),
    ]
    assert given_settings(given, METHODS["SGD"], 400) == [
        Setting(0.1, (("prior_precision", 0.2),)),  # λ = 5e-4 · N
        Setting(0.1, (("prior_precision", 20.0),)),
    ]
    assert given_settings(given, METHODS["Adam"], 400) == []
    assert count_given(given, ["SGD", "SGHMC"]) == 2
    assert count_given((), ["SGD", "SGHMC"]) == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SGHCM:lr=.1", "must begin with a method and a colon"),
        ("lr=.1", "must begin with a method and a colon"),
        ("SGHMC", "'' must be name=value"),
        ("SGHMC:lr", "'lr' must be name=value"),
        ("SGHMC:lr=fast", "'lr=fast' must be name=value, of a number that is not negative"),
        ("SGHMC:lr=nan", "'lr=nan' must be name=value"),
        ("SGHMC:lr=.1,temperature=-1", "'temperature=-1' must be name=value"),
        ("SGHMC:lr=.1,", "'' must be name=value"),
        ("SGHMC:temperature=1", "must have a positive lr"),
        ("SGHMC:lr=0", "must have a positive lr"),
        ("SGHMC:lr=.1,lr=.2", "has lr twice"),
        ("SGD:lr=.1,weight_decay=0,prior_precision=1", "has prior_precision twice"),
        ("SGHMC:lr=.1,weight_decay=0", "SGHMC does not tune prior_precision; it has lr, temperature, momentum_decay"),
        ("SGD:lr=.1,temperature=1", "SGD does not tune temperature; it has lr, weight_decay, momentum_decay"),
    ],
)
def test_what_cannot_be_read_is_refused(text, message):
    method = METHODS.get(text.partition(":")[0], METHODS["SGHMC"])
    with pytest.raises(ValueError, match="given") as refused:
        given_settings([text], method, 400)
    assert message in str(refused.value)


def test_the_same_setting_twice_is_refused():
    with pytest.raises(ValueError, match="given: SGHMC has the same setting twice"):
        given_settings(["SGHMC:lr=.1", "sghmc:lr=0.10"], METHODS["SGHMC"], 400)


@pytest.mark.parametrize(
    ("given", "others", "message"),
    [
        (["SGHMC:lr=.1"], {}, r"given must hold equally many settings of every method, got SGHMC 1, SGD 0"),
        (["Adam:lr=.1"], {}, r"is for Adam, which is not among sampler=SGHMC, SGD"),
        (ONE_EACH, {"settings_of": Path("runs")}, r"exclude each other"),
        (ONE_EACH, {"tune_only": True, "extensions": 0}, r"tune_only=True leaves nothing to do"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(given, others, message):
    with pytest.raises(ValueError, match=message):
        CompareOptions(sampler=("SGHMC", "SGD"), given=tuple(given), **others)


def test_a_value_out_of_range_is_refused_before_anything_runs(tmp_path):
    given = ["--given", "SGHMC:lr=.1,burn_in=1", "--sampler", "SGHMC"]
    with pytest.raises(SystemExit, match="burn_in"):
        compare.main([*TINY, *GIVEN, *given, "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_what_is_given_is_tried_and_nothing_else(tmp_path):
    sampler = ["--sampler", "SGHMC", "SGD", "--seeds", "2", "--budgets", "20", "40", "--keep", "1"]
    one = ["SGHMC:lr=.05,momentum_decay=.2", "SGD:lr=.1,weight_decay=0"]
    two = ["SGHMC:lr=.02,temperature=1", "SGD:lr=.2,momentum_decay=.5"]
    compare.main([*TINY, *GIVEN, *sampler, "--given", *one, *two, "--out", str(tmp_path / "tuned")])
    tuned = numbers(tmp_path / "tuned")
    tried = {
        name: [(each["lr"], len(each["seeds"])) for each in m["tuning"]] for name, m in tuned["20"]["methods"].items()
    }
    assert {name: sorted(each) for name, each in tried.items()} == {
        "SGHMC": [(0.02, 1), (0.05, 1)],
        "SGD": [(0.1, 1), (0.2, 1)],
    }
    assert all(len(method["tuning"]) == 1 for method in tuned["40"]["methods"].values()), "the best one goes on"
    compare.main([*TINY, *GIVEN, *sampler, "--given", *one, "--out", str(tmp_path / "taken")])
    taken = numbers(tmp_path / "taken")
    assert [taken[budget]["methods"]["SGHMC"]["momentum_decay"] for budget in ("20", "40")] == [0.2, 0.2]
    assert [taken[budget]["methods"]["SGD"]["tuning"][0]["seeds"] for budget in ("20", "40")] == [[], []]
    assert len(list((tmp_path / "taken" / "steps_20" / "runs").glob("*.json"))) == 4, "final runs alone"
    assert "Nothing was tuned here" in (tmp_path / "taken" / "table.md").read_text()


def test_one_further_try_is_no_setting_that_is_taken_over():
    plain = parse_compare([*TINY, *SMALL[:-4], "--extensions", "1"])
    assert not plain.nothing_to_tune()
    assert not parse_compare(
        [*TINY, *GIVEN, "--sampler", "SGD", "--given", "SGD:lr=.1", "--extensions", "1"]
    ).nothing_to_tune()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            [],
            "Settings are tuned by validation NLL: a balanced choice at the smallest budget, its best again",
        ),
        (
            ["--given", *ONE_EACH, "--extensions", "0"],
            "Nothing was tuned here: the settings are those that the",
        ),
        (
            ["--given", *ONE_EACH, "SGHMC:lr=.2", "SGD:lr=.2"],
            "Settings are tuned by validation NLL: those that the command names (--given) at the smallest budget",
        ),
        (
            ["--settings-of", "runs/before", "--keep", "1", "--extensions", "0"],
            "Nothing was tuned here: the settings are the best of another comparison (--settings-of)",
        ),
    ],
)
def test_a_table_says_where_its_settings_come_from(arguments, sentence):
    options = parse_compare(["--dataset", "digits", "--sampler", "SGHMC", "SGD", *arguments])
    assert options.settings_note().startswith(sentence)
