"""compare.py --tune-only: what tuning alone says, and that it looks at no test image."""

import json
import os

import compare
import pytest
import torch
from experiments.images import compare_validation, comparison
from experiments.images.runner import ImageRuns

from tests.tools.compare_cases import SMALL, TINY, cells, numbers

ARGUMENTS = [*TINY, *SMALL, "--temperatures", "0.1", "--budgets", "8", "16", "--sampler", "SGHMC", "L2E"]


@pytest.fixture(autouse=True)
def _restore_threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_tuning_alone_looks_at_no_test_image_and_the_command_goes_on(tmp_path, monkeypatch):
    compare.main([*ARGUMENTS, "--tune-only", "--out", str(tmp_path)])
    text = (tmp_path / "validation.md").read_text()
    records = [json.loads(path.read_text())["result"] for path in tmp_path.glob("steps_*/runs/*.json")]
    assert len(records) == 8  # two methods, two settings, two budgets
    assert not any(record["scores"] for record in records)
    assert not list(tmp_path.glob("steps_*/predictions/*"))
    assert len(list(tmp_path.glob("steps_*/samples/*"))) == 4  # of the chosen settings alone
    best = min(record["validation_nll"] for record in records)
    assert f" {best:.4f} |" in text
    assert "l2e-damped" in text
    assert not (tmp_path / "results.json").exists()

    ran, run = [], ImageRuns._train
    monkeypatch.setattr(ImageRuns, "_train", lambda self, result, *rest: ran.append(result) or run(self, result, *rest))
    compare.main([*ARGUMENTS, "--seeds", "1", "--out", str(tmp_path)])
    assert len(ran) == 4
    assert numbers(tmp_path)["16"]["methods"]["SGHMC"]["tuning"][0]["lr"] == float(
        cells(text, "### 16 gradients", "SGHMC", "lr")
    )


def test_what_diverged_is_said(tmp_path, monkeypatch):
    original = comparison.Comparison.tune

    def tune(self, method, budget):
        if method == "SGHMC":
            raise RuntimeError("it diverged at every learning rate of [9.0]")
        return original(self, method, budget)

    monkeypatch.setattr(comparison.Comparison, "tune", tune)
    compare.main([*ARGUMENTS, "--tune-only", "--out", str(tmp_path)])
    text = (tmp_path / "validation.md").read_text()
    assert text.count("SGHMC: it diverged at every learning rate of [9.0]") == 2
    assert "| L2E [" in text


def test_a_method_that_diverged_everywhere_has_had_its_tries(tmp_path):
    given = [f"SGHMC:lr={lr},momentum_decay=0.1,temperature=0.1,burn_in=0.5" for lr in ("1e15", "1e16")]
    others = [f"SGD:lr={lr},momentum_decay=0.1" for lr in (0.1, 0.2)]
    options = ["--budgets", "20", "40", "--keep", "1", "--extensions", "0", "--tune-seeds", "1", "--tune-only"]
    compare.main([*TINY, *options, "--sampler", "SGHMC", "SGD", "--given", *given, *others, "--out", str(tmp_path)])
    text = (tmp_path / "validation.md").read_text()
    at_40 = text.partition("### 40 gradients")[2]
    assert "SGHMC: at 20 gradients it diverged at every learning rate of [1000000000000000.0, 1e+16]" in at_40
    assert len(list((tmp_path / "steps_40" / "runs").glob("SGD*.json"))) == 1
    assert not list((tmp_path / "steps_40").glob("runs/SGHMC*.json"))


def test_there_must_be_something_to_tune(tmp_path, capsys):
    taken = ["--settings-of", str(tmp_path), "--keep", "1", "--extensions", "0", "--tune-only"]
    with pytest.raises(SystemExit):
        compare.main([*TINY, *taken, "--out", str(tmp_path / "out")])
    assert "tune_only=True leaves nothing to do" in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_the_tables_are_written_whole_or_not_at_all(tmp_path, monkeypatch):
    compare_validation.write_validation(tmp_path, "first", "python x")

    def full(*_):
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="the disk is full"):
        compare_validation.write_validation(tmp_path, "second", "python x")
    assert (tmp_path / "validation.md").read_text().endswith("\n\nfirst\n")
