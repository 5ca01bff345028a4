"""Runs that are kept on disk are read where nothing has changed, and made again where something has."""

from __future__ import annotations

import json

import pytest
from experiments.common.kept import kept


def test_a_run_is_made_once_for_the_same_settings(tmp_path):
    made = []

    def make():
        made.append(1)
        return {"values": (1.0, 2.0), "steps": {4: "a"}}

    path = tmp_path / "runs" / "one.json"
    first = kept(path, {"lr": 0.1, "hidden": (5, 5)}, make)
    # As it comes from the disk, the first time too.
    assert first == {"values": [1.0, 2.0], "steps": {"4": "a"}}
    assert kept(path, {"lr": 0.1, "hidden": (5, 5)}, make) == first
    assert len(made) == 1
    kept(path, {"lr": 0.2, "hidden": (5, 5)}, make)
    assert len(made) == 2
    assert json.loads(path.read_text())["settings"]["lr"] == 0.2


def test_another_torch_makes_it_again(tmp_path, monkeypatch):
    path = tmp_path / "one.json"
    kept(path, {}, lambda: {"value": 1})
    monkeypatch.setattr("torch.__version__", "1.0")
    assert kept(path, {}, lambda: {"value": 2}) == {"value": 2}


@pytest.mark.parametrize("content", ["", "[]", '{"settings": {}}', "{half"])
def test_a_file_that_is_no_run_is_refused_by_name(tmp_path, content):
    path = tmp_path / "one.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"one\.json is not the result of a run"):
        kept(path, {}, lambda: {"value": 1})
    assert path.read_text() == content


def test_a_run_that_fails_leaves_what_was_there(tmp_path):
    path = tmp_path / "one.json"
    kept(path, {"lr": 1}, lambda: {"value": 1})
    before = path.read_text()
    with pytest.raises(ValueError, match="JSON"):
        kept(path, {"lr": 2}, lambda: {"value": float("nan")})
    assert path.read_text() == before
