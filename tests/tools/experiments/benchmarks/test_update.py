"""tools/benchmark.py update: the rows take steps of their own, another checkout is timed, and the table has both."""

import json
from pathlib import Path

import pytest
import torch
from experiments.benchmarks import update
from experiments.benchmarks.update import LEAN, SHIPPED, UpdateBenchmark, benchmark_update, rows, speed_elsewhere

from learned_samplers.learned.native.library import ENVIRONMENT_VARIABLE
from learned_samplers.learned.registry import settings_from_card
from meta_tasks.rules.learned import L2ERule

ROOT = Path(__file__).parents[4]
TINY = ("mlp", {"hidden": [3]}, 4)


def test_the_shipped_rule_is_that_of_the_shipped_weights():
    card = json.loads((ROOT / "pretrained" / "l2e.json").read_text())
    rule = L2ERule(**SHIPPED)
    assert rule.settings == settings_from_card(card)
    assert rule.settings.features == tuple(card["features"])
    assert [list(shape) for shape in rule._shapes] == [list(shape) for shape in card["layers"]]


def test_the_lean_rule_is_that_of_the_candidates():
    lean, folder = L2ERule(**LEAN), ROOT / "docs" / "candidates"
    cards = [json.loads(path.read_text()) for path in sorted(folder.glob("gate_*.json"))]
    cards = [card for card in cards if card["feature_set"] == "lean"]  # gate_trained is another network
    assert cards
    for card in cards:
        assert lean.settings == settings_from_card(card)
        assert [list(shape) for shape in lean._shapes] == [list(shape) for shape in card["layers"]]


def test_rows_take_steps_and_those_of_the_pure_rule_without_compiled_code(monkeypatch):
    seen = []
    original = L2ERule._updated
    monkeypatch.setattr(L2ERule, "_updated", lambda self, *a, **k: seen.append(1) or original(self, *a, **k))
    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)
    with torch.no_grad():
        runs = rows(TINY, 4)
        runs["lean network, pure rule"](3)
        runs["l2e, pure rule"](2)
        assert len(seen) == 5
        runs["SGHMC"](3)
    assert len(seen) == 5


def test_the_table_with_another_checkout(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(update, "TASKS", {"tiny": TINY})
    monkeypatch.setattr(update, "one_core", lambda: None)
    monkeypatch.setattr(update, "speed_elsewhere", lambda checkout, task, members, steps: 10.0)
    benchmark_update(UpdateBenchmark(members=2, steps=1, rounds=2, checkout=ROOT, out=tmp_path / "t.md"))
    text = (tmp_path / "t.md").read_text()
    assert capsys.readouterr().out.strip() in text
    assert "| l2e, other checkout | 10 (1.00×) |" in text
    lines = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("|")}
    assert float(lines["SGHMC"].split("|")[2].split("(")[0].replace(",", "")) > 0
    benchmark_update(UpdateBenchmark(members=2, steps=1, rounds=2))
    assert "| lean network, pure rule |" in capsys.readouterr().out


def test_this_tree_as_another_checkout():
    assert speed_elsewhere(ROOT, TINY, 2, 2) > 0
    with pytest.raises(SystemExit, match=r"error: the checkout .* gave no member-steps/s"):
        speed_elsewhere(ROOT / "docs", TINY, 2, 2)


@pytest.mark.parametrize("wrong", [{"members": 3}, {"rounds": 0}, {"checkout": Path("nowhere")}])
def test_bad_options(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        UpdateBenchmark(**wrong)
