"""compare.py --settings-of: what another comparison chose is taken over, and what cannot be is refused."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import combine
import compare
import pytest
import torch
from experiments.images.comparison import Comparison
from experiments.images.earlier import earlier_settings
from experiments.images.methods import METHODS, Setting
from experiments.images.options import parse_compare
from experiments.images.settings import Settings

from tests.tools.compare_cases import SMALL, TINY, numbers

HERE = Settings(model="mlp", prior_precision=5.0)


@pytest.fixture(autouse=True)
def _restore_threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def tried(score, lr, **also):
    return {"lr": lr, **also, "validation_nll": score, "seeds": [score]}


def results(folder: Path, *, tuning, method="SGD", budget=40, num_data=400, **settings):
    there = asdict(replace(Settings(model="mlp", prior_precision=20.0), **settings))
    best = min(tuning, key=lambda each: each["validation_nll"] or 9.0)
    own = {**{key: value for key, value in best.items() if key not in ("validation_nll", "seeds")}, "tuning": tuning}
    content = {"settings": there, "methods": {method: own}}
    content |= {"num_data": num_data} if num_data else {}
    (folder / "results.json").write_text(json.dumps({"budgets": {"9": {}, str(budget): content}}))
    return folder


def test_the_best_settings_come_first_and_decays_stay_decays(tmp_path):
    tuning = [
        tried(0.7, 0.01, prior_precision=20.0, momentum_decay=0.1),
        tried(0.5, 0.02, prior_precision=0.0, momentum_decay=0.05),
        tried(None, 0.9, prior_precision=0.0, momentum_decay=0.1),
        tried(0.6, 0.05, prior_precision=4.0, momentum_decay=0.3),
    ]
    folder = results(tmp_path, tuning=tuning)
    found = earlier_settings(folder, METHODS["SGD"], HERE, 800, 9)
    assert found == [
        Setting(0.02, (("prior_precision", 0.0), ("momentum_decay", 0.05))),
        Setting(0.05, (("prior_precision", 8.0), ("momentum_decay", 0.3))),  # 4/400 is 8/800
        Setting(0.01, (("prior_precision", 5.0), ("momentum_decay", 0.1))),  # of the posterior's mode, here and there
    ]
    assert earlier_settings(folder, METHODS["SGD"], HERE, 800, 1) == found[:1]


@pytest.mark.parametrize(
    ("change", "method", "message"),
    [
        ({}, "SGHMC", "SGHMC is not in .*results.json, which has SGD"),
        (
            {"method": "L2E", "l2e_network": "l2e"},
            "L2E",
            "L2E had l2e_network='l2e' in .*, here it has 'l2e-damped'",
        ),
        ({"num_data": 0}, "SGD", "does not say its number of data; run its command once more"),
    ],
)
def test_what_cannot_be_taken_over_is_refused(tmp_path, change, method, message):
    folder = results(tmp_path, **{"tuning": [tried(0.5, 0.02, prior_precision=4.0)], **change})
    with pytest.raises(ValueError, match=message):
        earlier_settings(folder, METHODS[method], HERE, 800, 1)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"budgets": {}}', '{"budgets": {"5": {"methods": {}}}}'])
def test_a_file_that_is_no_comparison_is_refused(tmp_path, text):
    with pytest.raises(FileNotFoundError, match=r"no results.json, which a finished comparison leaves"):
        earlier_settings(tmp_path, METHODS["SGD"], HERE, 800, 1)
    (tmp_path / "results.json").write_text(text)
    with pytest.raises(ValueError, match=r"results.json is not that of a comparison"):
        earlier_settings(tmp_path, METHODS["SGD"], HERE, 800, 1)


def test_a_longer_comparison_with_the_settings_of_a_shorter_one(tmp_path, capsys):
    sampler = ["--sampler", "SGHMC", "SGD", "--seeds", "2"]
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    compare.main([*TINY, *SMALL, *sampler, "--budgets", "20", "--out", str(first)])
    chosen = numbers(first)["20"]["methods"]
    again = [*TINY, *SMALL, *sampler, "--budgets", "40", "--settings-of", str(first)]
    capsys.readouterr()
    compare.main([*again, "--keep", "1", "--out", str(second)])
    screen = capsys.readouterr().out
    for name, method in numbers(second)["40"]["methods"].items():
        known = {key: chosen[name][key] for key in ("lr", *METHODS[name].tunes) if key in chosen[name]}
        assert {key: method[key] for key in known} == known
        assert len(known) > 2, "more than the rate is taken over"
        assert [each["seeds"] for each in method["tuning"]] == [[]]
        assert not method["at_edge"]
    files = list((second / "steps_40" / "runs").glob("*.json"))
    assert len(files) == 4, "the final runs of two methods on two seeds, and no others"
    assert "Nothing was tuned here" in (second / "table.md").read_text()
    assert "| tries |" in screen
    assert not list(second.glob("step_sizes*.png"))
    # Two that were tried there, and one more near the better; and from what was itself taken over.
    compare.main([*again, "--keep", "2", "--extensions", "1", "--tries", "4", "--out", str(third)])
    tuned = numbers(third)["40"]["methods"]["SGHMC"]["tuning"]
    assert len(tuned) == 3
    assert all(len(each["seeds"]) == 1 for each in tuned)
    assert "Settings are tuned by validation NLL" in (third / "table.md").read_text()
    last = parse_compare([*again[:-1], str(second), "--keep", "1"])
    data, _ = last.load()
    assert [each.lr for each in last.candidates("SGD", data)] == [chosen["SGD"]["lr"]]


def test_a_folder_without_a_comparison_is_refused_before_anything_runs(tmp_path):
    with pytest.raises(SystemExit, match=r"settings_of: no results\.json"):
        compare.main([*TINY, *SMALL, "--settings-of", str(tmp_path / "none"), "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_an_interrupted_comparison_is_not_taken_for_a_finished_one(tmp_path, monkeypatch):
    report, first = Comparison.report, str(tmp_path / "first")

    def stopped(self, budget):
        if budget == 40:
            raise KeyboardInterrupt
        return report(self, budget)

    monkeypatch.setattr(Comparison, "report", stopped)
    own = [*TINY, "--sampler", "SGD", "--seeds", "1"]
    given = ["--given", "SGD:lr=.1,momentum_decay=.1", "--extensions", "0"]
    with pytest.raises(SystemExit, match="interrupted; finished runs are kept"):
        compare.main([*own, *given, "--budgets", "20", "40", "--out", first])
    assert list(numbers(tmp_path / "first")) == ["20"]
    lacks = r"results\.json is of a comparison that has not ended: it lacks the budgets 40; the command"
    with pytest.raises(SystemExit, match=f"settings_of: .*{lacks}"):
        compare.main([*own, "--steps", "40", "--settings-of", first, "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit, match=f"comparisons: .*{lacks}"):
        combine.main([first, "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()
