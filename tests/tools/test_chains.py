"""tools/chains.py: a small run from end to end on the digits, read back the second time."""

import json

import pytest
from chains import main
from experiments.chains import budget

from meta_tasks.datasets import load


def test_a_run_from_end_to_end(tmp_path, monkeypatch):
    monkeypatch.setattr(budget, "_data", lambda *arguments: load("digits", limit=200, validation=100))
    arguments = ["--chains", "1", "2", "--budgets", "60", "--seeds", "1", "--samples", "6", "--out", str(tmp_path)]
    main(arguments)
    first = json.loads((tmp_path / "results.json").read_text())["runs"]["60 gradients"]
    assert list(first) == ["1", "2", "2, T / m"]
    (one,), (two,), (cold,) = first.values()
    assert one["nll"] == one["member_nll"] == pytest.approx(one["stacked_nll"])  # of one chain all three are the same
    assert two["nll"] < two["member_nll"]  # the logarithm is concave
    assert two["sureness"] <= two["member_sureness"] + 0.05
    assert two["nll"] != cold["nll"]
    assert min(one["samples"], two["samples"]) >= 6
    main(arguments)
    assert json.loads((tmp_path / "results.json").read_text())["runs"]["60 gradients"] == first


def test_refusals(tmp_path):
    for option, value in (("--chains", "0"), ("--budgets", "0"), ("--temperature", "0")):
        with pytest.raises(SystemExit):
            main([option, value, "--out", str(tmp_path)])
